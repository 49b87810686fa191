"""A thread that starts a broker, runs its loop and shuts it down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kwire.testing.loop_thread import START_TIMEOUT_SECONDS as START_TIMEOUT_SECONDS
from kwire.testing.loop_thread import LoopThread

if TYPE_CHECKING:
    from kwire.broker.net.loop_events import Wait
    from kwire.broker.net.running_node import RunningNode
    from kwire.testing.debugger_clock import DebuggerClock
    from kwire.testing.denials import Denials
    from kwire.testing.disk_space import DiskSpace
    from kwire.testing.faults import Faults
    from kwire.testing.recorder import Recorder
    from kwire.testing.unexpected_errors import UnexpectedErrors


class BrokerThread(LoopThread):
    """A thread that runs a broker, and imports the broker's modules."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        clock: DebuggerClock,
        recorder: Recorder,
        faults: Faults,
        denials: Denials,
        space: DiskSpace,
        errors: UnexpectedErrors,
        syncs: bool,
    ) -> None:
        super().__init__("broker")
        self.running: RunningNode | None = None
        self._properties = properties
        self._clock = clock
        self._recorder, self._faults, self._denials, self._disk_space = recorder, faults, denials, space
        self._errors, self._syncs = errors, syncs

    def serve(self) -> None:
        """Start the broker, and run its loop until the broker has shut down."""
        from kwire.broker.config import load
        from kwire.broker.net.running_node import RunningNode
        from kwire.testing.debugger_clock import StoppedTime
        from kwire.testing.embedded_disk import EmbeddedDisk

        disk = EmbeddedDisk(self._disk_space, syncs=self._syncs)
        running = RunningNode(load(None, {}, self._properties), clock=self._clock, disk=disk)
        running.loop.on_exception = self._add_error
        running.loop.wrap_poller(lambda poller: StoppedTime(poller, running.loop, self._clock))
        try:
            running.loop.run_until(self._run_node(running))
        finally:
            running.close()

    def _run_node(self, running: RunningNode) -> Iterator[Wait]:
        from kwire.broker.net.loop_events import Wait
        from kwire.testing.interceptor import ImageTopics, Interceptor

        yield Wait((running.ready,), math.inf)
        running.set_bootstrap()
        topics = ImageTopics(running.node, self._recorder)
        Interceptor(running.server, self._recorder, self._faults, topics)
        audit_log = running.node.gate.audit_log
        if audit_log is not None:
            audit_log.on_denied = self._denials.record
        self.running = running
        failed = running.failure.happened
        yield from self.run_until_end(running.loop, failed)
        if failed.is_set and not self.is_ending and not self._disk_space.is_full:
            # With a full disk, the test expects the failure.
            self.failure = RuntimeError(f"the broker has failed: {running.failure.reason}")
        yield from running.shut_down()

    def _add_error(self, message: str, error: BaseException) -> None:
        # A full disk and a crash have exceptions of their own, which the test has caused.
        if not (self._disk_space.is_full or self.is_ending):
            self._errors.add(message, error)

    def stop(self, *, keeps_data: bool) -> None:
        """Shut the broker down. Without `keeps_data`, its data is not flushed, because it will be deleted.

        If the broker has failed before, this method raises the error.
        """
        self.request_end("CLEAN" if keeps_data else "DISCARDED")

    def kill(self) -> None:
        """End the broker as if its process were killed. If it has failed before, raise the error."""
        self.request_end("KILLED")

    def end(self, ending: str) -> None:
        """Choose how the broker shuts down, in the thread of its loop."""
        from kwire.broker.net.running_node import ShutdownMode

        assert self.running is not None
        self.running.shutdown_mode = ShutdownMode[ending]
