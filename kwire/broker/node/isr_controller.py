"""ISR changes, sent as commands to the active controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kwire.broker.controller.commands import AlteredPartition, AlterPartition, PartitionAlteration
from kwire.broker.controller.port import ControllerPort
from kwire.broker.replication.alter_partition_manager import IsrChange, IsrChangeResult
from kwire.wire.errors import ApiError
from kwire.wire.primitives import TopicIdPartition


class NodeIsrController:
    """`IsrController` of one broker."""

    def __init__(self, controller: ControllerPort, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch

    def alter_isr(
        self,
        changes: Sequence[IsrChange],
        done: Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None],
    ) -> None:
        def on_done(reply: list[AlteredPartition] | ApiError) -> None:
            if isinstance(reply, ApiError):
                done(reply)
                return
            done(
                {
                    (one.topic_id, one.partition_index): IsrChangeResult(
                        one.error,
                        one.leader_id,
                        one.leader_epoch,
                        tuple(one.isr),
                        one.leader_recovery_state,
                        one.partition_epoch,
                    )
                    for one in reply
                }
            )

        alterations = [PartitionAlteration(*change) for change in changes]
        self._controller.submit(AlterPartition(self._node_id, self._broker_epoch(), alterations), on_done)
