"""The queue of outputs of the KRaft state machine, which are executed one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kwire.broker.raft.outputs import Output
from kwire.broker.storage.disk import Disk, ResourceShortage, StorageError


class OutputQueue:
    """Outputs that are not executed yet, and responses that must not overtake them."""

    def __init__(self, execute: Callable[[Output], None]) -> None:
        self.is_held = False
        """Whether outputs and responses wait: until quorum-state is durable, or until the process has free
        descriptors."""
        self._execute = execute
        self._outputs: deque[Output] = deque()
        self._responses: list[Callable[[], None]] = []
        self._is_running = False

    @property
    def is_idle(self) -> bool:
        """Whether all outputs have been executed, and the queue is not held."""
        return not self._outputs and not self.is_held

    def add(self, output: Output) -> None:
        """Append an output, which the next `run` or the current one executes."""
        self._outputs.append(output)

    def run(self, disk: Disk) -> None:
        """Execute outputs until the queue is empty or held. An output may add outputs and call `run`.

        Raises ResourceShortage if the disk has no descriptors for the next output, which stays in the queue.
        Every other exception of an output is raised, too: a shortage in the middle of an output as a
        StorageError, because the output can neither be undone nor be repeated.
        """
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._outputs and not self.is_held:
                with disk.reserved():
                    self._run_next()
        finally:
            self._is_running = False

    def _run_next(self) -> None:
        try:
            self._execute(self._outputs.popleft())
        except ResourceShortage as error:
            raise StorageError(str(error)) from error

    def when_released(self, callback: Callable[[], None]) -> bool:
        """Return whether the queue is not held. If it is held, `call_released` calls `callback` later."""
        if self.is_held:
            self._responses.append(callback)
        return not self.is_held

    def call_released(self) -> None:
        """Call the callbacks of `when_released` in order, until one of them holds the queue again."""
        while self._responses and not self.is_held:
            self._responses.pop(0)()

    def clear(self) -> None:
        """Drop all outputs and callbacks, because this node has left the quorum."""
        self._outputs.clear()
        self._responses.clear()
