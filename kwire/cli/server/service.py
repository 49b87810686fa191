"""The process of `kwire serve`: one node, its signals, its messages to the operator and to systemd.

The process runs the node's event loop in its main thread. It imports trio only if other tasks run beside the
node: the HTTP port or the watchdog of systemd. The import takes as long as the rest of the start.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Final

from kwire.broker.config import BrokerConfig
from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.running_node import FatalFailure, RunningNode
from kwire.broker.observe.flight_recorder import FlightRecorder
from kwire.broker.observe.open_files import watch_open_files
from kwire.broker.observe.systemd import READY, STOPPING, SystemdNotifier
from kwire.broker.storage.disk import is_shortage
from kwire.cli.broker_settings import READY_FD
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.standard_streams import discard_output
from kwire.wire.record_scan import IMPLEMENTATION

if TYPE_CHECKING:
    from kwire.broker.observe.http import HttpPort

GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Thresholds for rare collections. A pause takes about a millisecond, since startup objects are frozen."""


LATE_IMPORT_MS: Final = 1_000
"""The time from the start of the service to the import of modules that the start does not need."""


class Service:
    """The process of one node."""

    def __init__(
        self, config: BrokerConfig, http: HttpPort | None, slow_seconds: float, crash: CrashRecorder
    ) -> None:
        """`slow_seconds` is the time above which requests are logged as slow."""
        self._config = config
        self._http = http
        self._slow_seconds = slow_seconds
        self._crash = crash
        self._systemd = SystemdNotifier(os.environ)
        self._ready_fd = os.environ.pop(READY_FD, "")
        self._stop_requested = LoopEvent()

    def run(self) -> int:
        """Serve until a stop signal or a failure, and return the exit status.

        Raises CommandError if the node failed before it served. A later failure is in the log.
        """
        if self._http is not None or self._systemd.watchdog_seconds:
            import trio

            failure = trio.run(self._run_with_tasks)
        else:
            failure = self._run_alone()
        if failure.reason and not failure.is_logged:
            raise CommandError(failure.reason)
        return 1 if failure.reason else 0

    def _run_alone(self) -> FatalFailure:
        signals = _StopSignals(self._stop_requested.set)
        running = RunningNode(self._config)
        signals.wake = running.loop.wake
        try:
            running.loop.run_until(self._steps(running))
        finally:
            running.close()
        return running.failure

    def _steps(self, running: RunningNode) -> Iterator[Wait]:
        yield Wait((running.ready, self._stop_requested), math.inf)
        running.set_bootstrap()
        try:
            yield from self._serve(running)
        except Exception:
            yield from running.shut_down()
            raise
        yield from running.shut_down()

    async def _run_with_tasks(self) -> FatalFailure:
        import trio

        from kwire.broker.net.serve import run_waits, serve

        token = trio.lowlevel.current_trio_token()
        _StopSignals(lambda: token.run_sync_soon(self._stop_requested.set))
        tasks: list[Callable[[RunningNode], Awaitable[None]]] = []
        if self._http is not None:
            tasks.append(self._http.serve)
        if self._systemd.watchdog_seconds:
            tasks.append(self._systemd.run_watchdog)
        async with serve(self._config, alone=True, stop=self._stop_requested, background=tasks) as running:
            await run_waits(self._serve(running))
            return running.failure

    def _serve(self, running: RunningNode) -> Iterator[Wait]:
        """Report that the node serves, and wait until it must stop."""
        if self._stop_requested.is_set or running.failure.reason:
            return
        self._crash.watch(running)
        watch_open_files(running)
        if self._slow_seconds < math.inf:
            from kwire.broker.observe.slow_requests import SlowRequests

            logger = running.loop.logger("kwire.dispatch")
            running.server.request_metrics.watch_slow(self._slow_seconds, SlowRequests(logger, perf_counter))
        self._systemd.notify(READY, f"STATUS=serves on {running.bootstrap}")
        self._print_start_message(running)
        self._notify_parent()
        running.loop.schedule(LATE_IMPORT_MS, lambda: _import_groups(running))
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        yield Wait((self._stop_requested, running.failure.happened), math.inf)
        if running.failure.reason:
            self._crash.write(running.failure.reason)
        self._systemd.notify(STOPPING)
        running.loop.logger("kwire.node").info("Shutting down")

    def _notify_parent(self) -> None:
        """Write a byte to the pipe that `READY_FD` names, and close the pipe."""
        if self._ready_fd.isdecimal():
            with suppress(OSError):  # the parent process may have ended
                os.write(int(self._ready_fd), b"\n")
                os.close(int(self._ready_fd))

    def _print_start_message(self, running: RunningNode) -> None:
        message = (
            f"kwire serves on {running.bootstrap}, with data in {', '.join(self._config.log_dirs)} "
            f"(record validation: {IMPLEMENTATION}); Ctrl-C or SIGTERM stops it"
        )
        if self._http is not None and self._http.console_url:
            message += f"\nthe console is at {self._http.console_url}"
        try:
            print(message, flush=True)
        except OSError as error:  # the broker serves anyway
            logger = running.loop.logger("kwire.node")
            logger.warning("Cannot write to standard output (%s): %s", error.strerror, message)
            discard_output()


def _import_groups(running: RunningNode) -> None:
    """Import the group coordinator, before an upgrade replaces its files."""
    try:
        with running.node.quorum.log.disk.lent():
            import kwire.coordinator.groups.state_machine  # noqa: F401
    except OSError as error:
        if not is_shortage(error):
            raise
        running.loop.schedule(LATE_IMPORT_MS, lambda: _import_groups(running))


class CrashRecorder:
    """Writer of the flight record when the broker ends with a signal or an error."""

    def __init__(self) -> None:
        self._recorder: FlightRecorder | None = None

    def watch(self, broker: RunningNode) -> None:
        """Start recording, and write the record on SIGABRT, with which systemd ends a hanging service."""
        self._recorder = FlightRecorder(broker)
        self._recorder.begin()
        faulthandler.enable()  # for signals after which Python code cannot run
        signal.signal(signal.SIGABRT, self._aborted)

    def write(self, reason: str, trace: str = "") -> None:
        """Write the flight record with the reason of the end."""
        if self._recorder is not None:
            self._recorder.write(reason, trace)

    def end(self) -> None:
        """Stop recording."""
        if self._recorder is not None:
            self._recorder.end()

    def _aborted(self, number: int, frame: FrameType | None) -> None:
        self.write("SIGABRT", "".join(traceback.format_stack(frame)))
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


class _StopSignals:
    """Stop signals: the first starts a clean shutdown, the second ends the process at once."""

    def __init__(self, on_stop: Callable[[], None]) -> None:
        """Install the handlers. `on_stop` is called in the main thread, between any two instructions."""
        self.wake: Callable[[], None] = lambda: None
        """Called after `on_stop`, so that an event loop that waits notices the signal."""
        self._on_stop = on_stop
        self._count = 0
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, self._received)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may be closed

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        self._on_stop()
        self.wake()
