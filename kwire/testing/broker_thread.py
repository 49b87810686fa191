"""A thread that starts a broker, runs its loop and shuts it down."""

from __future__ import annotations

import _thread
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kwire.testing.one_shot_event import OneShotEvent

if TYPE_CHECKING:
    from kwire.broker.net.loop_events import LoopEvent, Wait
    from kwire.broker.net.running_node import RunningNode
    from kwire.host.clock import Clock
    from kwire.testing.denials import Denials
    from kwire.testing.disk_space import DiskSpace
    from kwire.testing.faults import Faults
    from kwire.testing.recorder import Recorder

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60


class BrokerThread(threading.Thread):
    """A thread that runs a broker, and imports the broker's modules."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        clock: Clock,
        recorder: Recorder,
        faults: Faults,
        denials: Denials,
        space: DiskSpace,
        syncs: bool,
    ) -> None:
        super().__init__(name="kwire broker", daemon=True)
        self.running: RunningNode | None = None
        self._properties = properties
        self._clock = clock
        self._recorder, self._faults, self._denials, self._disk_space = recorder, faults, denials, space
        self._syncs = syncs
        self._started_or_ended = OneShotEvent()
        self._failure: BaseException | None = None
        self._stop_requested: LoopEvent | None = None
        self._requested_ending: str | None = None
        self._has_begun = False
        self._beginning = threading.Lock()
        self._may_close = OneShotEvent()
        """Set when the thread that requested the end no longer uses the event loop, which may then close."""

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
            self._failure = error
            self._started_or_ended.set()

    def run(self) -> None:
        """Run the broker until it ends. `wait_until_started`, `stop` and `kill` raise its error."""
        with self._beginning:
            if self._requested_ending is not None:
                return
            self._has_begun = True
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
        finally:
            self._started_or_ended.set()

    def _serve(self) -> None:
        from kwire.broker.config import load
        from kwire.broker.net.running_node import RunningNode
        from kwire.testing.embedded_disk import EmbeddedDisk

        disk = EmbeddedDisk(self._disk_space, syncs=self._syncs)
        running = RunningNode(load(None, {}, self._properties), clock=self._clock, disk=disk)
        try:
            running.loop.run_until(self._run_node(running))
        finally:
            running.close()

    def _run_node(self, running: RunningNode) -> Iterator[Wait]:
        from kwire.broker.net.loop_events import LoopEvent, Wait
        from kwire.testing.interceptor import Interceptor

        yield Wait((running.ready,), math.inf)
        running.set_bootstrap()
        Interceptor(running, self._recorder, self._faults)
        audit_log = running.node.gate.audit_log
        if audit_log is not None:
            audit_log.on_denied = self._denials.record
        self._stop_requested = LoopEvent()
        self.running = running
        self._started_or_ended.set()
        if self._requested_ending is not None:  # `start` was interrupted, for example by Ctrl-C
            self._end(self._requested_ending)
        failed = running.failure.happened
        yield Wait((self._stop_requested, failed), math.inf)
        if self._stop_requested.is_set:
            self._may_close.wait()
        elif not self._disk_space.is_full:  # with a full disk, the test expects the failure
            self._failure = RuntimeError(f"the broker has failed: {running.failure.reason}")
        yield from running.shut_down()

    def wait_until_started(self) -> None:
        """Wait until the broker serves requests. Raises the error that prevents the start."""
        if not self._started_or_ended.wait(START_TIMEOUT_SECONDS):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            if self._has_begun:
                self.join()
            raise self._failure

    def stop(self, *, keeps_data: bool) -> None:
        """Shut the broker down. Without `keeps_data`, its data is not flushed, because it will be deleted.

        If the broker has failed before, this method raises the error.
        """
        self._request_end("CLEAN" if keeps_data else "DISCARDED")

    def kill(self) -> None:
        """End the broker as if its process were killed. If it has failed before, raise the error."""
        self._request_end("KILLED")

    def _request_end(self, ending: str) -> None:
        with self._beginning:
            self._requested_ending = ending
            if not self._has_begun:  # `launch` was interrupted, and `run` will do nothing
                return
        if self.is_alive() and self.running is not None:
            with suppress(OSError):  # the broker may be ending already, with a closed loop
                self.running.loop.call_from_thread(lambda: self._end(ending))
        self._may_close.set()
        self.join(STOP_TIMEOUT_SECONDS)
        if self.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            raise self._failure

    def _end(self, ending: str) -> None:
        from kwire.broker.net.running_node import ShutdownMode

        assert self.running is not None
        assert self._stop_requested is not None
        self.running.shutdown_mode = ShutdownMode[ending]
        self._stop_requested.set()
