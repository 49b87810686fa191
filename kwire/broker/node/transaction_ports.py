"""What the transaction coordinator gets of the node that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from kwire.broker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.broker.storage.log.producer_state import MarkerTerms
from kwire.coordinator.machine import TopicPartition
from kwire.coordinator.transactions.machine import Ending
from kwire.wire import batch
from kwire.wire.errors import ApiError

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION, _ABORT, _COMMIT = 0, 0, 1


class TransactionPorts(StateTopic):
    """`coordinator.transactions.ports.TransactionPorts` on a node."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, TRANSACTION_STATE_TOPIC)

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""
        return self._node.producer_ids.next()

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""
        return self._node.image.features.get("transaction.version", 0)

    def write_marker(
        self,
        partition: TopicPartition,
        ending: Ending,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write one marker into the log of a partition that this broker leads, unless it comes too late."""
        node = self._node
        topic, index = partition

        def committed(error: ApiError | None) -> None:
            if error is None:
                node.marker_written(topic, index, ending.producer_id, commit=ending.commit)
            done(error)

        now_ms = node.host.now_ms()
        try:
            if topic == GROUP_METADATA_TOPIC:
                # What groups did before the transaction ended comes before its end in the log, too.
                node.groups.append_gathered(index)
            led = node.led_partition(topic, index)
            led.append(
                memoryview(marker(ending, coordinator_epoch, now_ms)),
                now_ms=now_ms,
                on_committed=committed,
                origin=AppendOrigin.COORDINATOR,
                marker=MarkerTerms(coordinator_epoch, ending.version),
            )
        except ApiError as error:
            done(error)


def marker(ending: Ending, coordinator_epoch: int, now_ms: int) -> bytearray:
    """A batch with the control record that ends a transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if ending.commit else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return batch.build(
        [(now_ms, key, value, ())],
        producer_id=ending.producer_id,
        producer_epoch=ending.producer_epoch,
        transactional=True,
        control=True,
    )
