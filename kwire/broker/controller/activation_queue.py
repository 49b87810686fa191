"""The commands that wait until the controller of a new quorum leader is active.

A node is the quorum leader before its controller is active: a majority of the voters must first have the
record that begins the leader epoch. Brokers send their registrations and heartbeats as soon as they learn of
the leader, so these arrive in the meantime. Apache Kafka returns NOT_CONTROLLER, and each broker retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kwire.broker.controller.commands import Command, OnDone
from kwire.broker.controller.runtime import ControllerRuntime
from kwire.wire.errors import ApiError


class ActivationQueue:
    """The `ControllerPort` and the `Leadership` of a node, in front of its `ControllerRuntime`."""

    def __init__(self, runtime: ControllerRuntime, leads: Callable[[], bool]) -> None:
        """`leads` returns whether this node is the quorum leader."""
        self._runtime = runtime
        self._leads = leads
        self._waiting: list[tuple[Command, OnDone[Any]]] = []

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        if self._leads() and not self._runtime.is_active:
            self._waiting.append((command, on_done))
        else:
            self._runtime.submit(command, on_done)

    def leader_changed(self) -> None:
        """Refuse the waiting commands if this node is no longer the leader."""
        if not self._leads():
            self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for command, on_done in waiting:
            self._runtime.submit(command, on_done)

    # --- Leadership

    def check_bootstrap(self) -> None:
        self._runtime.check_bootstrap()

    def became_leader(self, epoch: int) -> None:
        self._runtime.became_leader(epoch)
        self._release()

    def resigned(self, reason: ApiError) -> None:
        self._runtime.resigned(reason)

    def committed(self, offset: int) -> None:
        self._runtime.committed(offset)

    def idle(self) -> None:
        self._runtime.idle()
