"""Reports of log directories and their replicas to the controller, as in AssignmentsManager. KIP-858."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.controller.commands import AssignReplicasToDirs
from kwire.broker.controller.port import ControllerPort
from kwire.broker.node.broker_lifecycle import BrokerLifecycleManager
from kwire.broker.replication.directory_moves import OnAssigned
from kwire.broker.replication.log_dirs import DirectoryAssignments
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid


class NodeAssignmentsManager:
    """`AssignmentsManager` of one broker."""

    def __init__(self, controller: ControllerPort, lifecycle: BrokerLifecycleManager, node_id: int) -> None:
        self._controller = controller
        self._lifecycle = lifecycle
        self._node_id = node_id

    def assign(self, assignments: DirectoryAssignments, done: OnAssigned) -> None:
        """Send AssignReplicasToDirs. `done` gets the error of the complete request; None means success.

        Errors of single replicas are ignored.
        """
        self._controller.submit(
            AssignReplicasToDirs(self._node_id, self._lifecycle.broker_epoch, assignments),
            lambda reply: done(reply if isinstance(reply, ApiError) else None),
        )

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid]) -> None:
        self._lifecycle.report_directories(failed, cordoned)
