"""How a broker has the cluster know where its replicas lie: by commands to the active controller. KIP-858."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kwire.broker.controller.commands import AssignDirectories, UpdateDirectories
from kwire.broker.controller.port import ControllerPort
from kwire.broker.replication.directory_moves import Assigned
from kwire.broker.replication.log_dirs import Places
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid


class Placement:
    """`replication.log_dirs.Placement` of one broker."""

    def __init__(self, controller: ControllerPort, node_id: int, *, broker_epoch: Callable[[], int]) -> None:
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch

    def assign(self, places: Places, done: Assigned) -> None:
        """Tell in which directories replicas lie."""
        self._controller.submit(
            AssignDirectories(self._node_id, self._broker_epoch(), places),
            lambda reply: done(reply if isinstance(reply, ApiError) else None),
        )

    def update(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid], done: Assigned) -> None:
        """Tell which directories have failed, and which take nothing new."""
        self._controller.submit(
            UpdateDirectories(self._node_id, failed, cordoned),
            lambda reply: done(reply if isinstance(reply, ApiError) else None),
        )
