"""A thread with an event loop in the process of a test: its start, its end, and the errors of both."""

from __future__ import annotations

import _thread
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kwire.testing.one_shot_event import OneShotEvent

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.loop_events import LoopEvent, Wait

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60


class LoopThread(threading.Thread, ABC):
    """A thread that runs an event loop from `launch` to `request_end`."""

    def __init__(self, subject: str) -> None:
        """`subject` is what the thread runs, such as "broker". Errors and the thread's name contain it."""
        super().__init__(name=f"kwire {subject}", daemon=True)
        self.failure: BaseException | None = None
        """The error that `wait_until_started` or `request_end` raises."""
        self._subject = subject
        self._loop: Loop | None = None
        self._started_or_ended = OneShotEvent()
        self._stop_requested: LoopEvent | None = None
        self._requested_ending: str | None = None
        self._has_begun = False
        self._beginning = threading.Lock()
        self._may_close = OneShotEvent()
        """Set when the thread that requested the end no longer uses the event loop, which may then close."""

    @abstractmethod
    def serve(self) -> None:
        """Start, run the loop with `run_until_end`, and close everything."""

    @abstractmethod
    def end(self, ending: str) -> None:
        """Prepare the requested kind of end, in the thread of the loop."""

    def launch(self) -> None:
        """Start the thread, without waiting for it.

        `Thread.start` waits for the new thread with a `threading.Event`, which does not survive an interrupt
        by a signal handler. In a helper thread, no signal handler runs.
        """
        _thread.start_new_thread(self._start, ())

    def _start(self) -> None:
        try:
            self.start()
        except RuntimeError as error:  # no further thread can be started
            self.failure = error
            self._started_or_ended.set()

    def run(self) -> None:
        """Run until the end. `wait_until_started` and `request_end` raise the error, if there is one."""
        with self._beginning:
            if self._requested_ending is not None:
                return
            self._has_begun = True
        try:
            self.serve()
        except BaseException as error:
            self.failure = error
        finally:
            self._started_or_ended.set()

    @property
    def is_ending(self) -> bool:
        """Whether the end has been requested and has begun."""
        return self._stop_requested is not None and self._stop_requested.is_set

    def run_until_end(self, loop: Loop, *failures: LoopEvent) -> Iterator[Wait]:
        """Report the start, and yield waits for the loop until the end is requested or an event is set."""
        from kwire.broker.net.loop_events import LoopEvent, Wait

        self._stop_requested = LoopEvent()
        self._loop = loop
        self._started_or_ended.set()
        if self._requested_ending is not None:  # `start` was interrupted, for example by Ctrl-C
            self._begin_end(self._requested_ending)
        yield Wait((self._stop_requested, *failures), math.inf)
        if self._stop_requested.is_set:
            self._may_close.wait()

    def wait_until_started(self) -> None:
        """Wait until the loop runs. Raises the error that prevents the start."""
        if not self._started_or_ended.wait(START_TIMEOUT_SECONDS):
            raise TimeoutError(f"the {self._subject} did not start within {START_TIMEOUT_SECONDS} s")
        if self.failure is not None:
            if self._has_begun:
                self.join()
            raise self.failure

    def request_end(self, ending: str) -> None:
        """End the thread, and wait for its end. If it has failed before, raise the error."""
        with self._beginning:
            self._requested_ending = ending
            if not self._has_begun:  # `launch` was interrupted, and `run` will do nothing
                return
        if self.is_alive() and self._loop is not None:
            with suppress(OSError):  # the thread may be ending already, with a closed loop
                self._loop.call_from_thread(lambda: self._begin_end(ending))
        self._may_close.set()
        self.join(STOP_TIMEOUT_SECONDS)
        if self.is_alive():
            raise TimeoutError(f"the {self._subject} did not stop within {STOP_TIMEOUT_SECONDS} s")
        if self.failure is not None:
            raise self.failure

    def _begin_end(self, ending: str) -> None:
        assert self._stop_requested is not None
        self.end(ending)
        self._stop_requested.set()
