"""What the transaction coordinator gets of the node that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from struct import Struct
from typing import Protocol

from kwire.broker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.node.producer_ids import ProducerIds
from kwire.broker.node.state_topic import StateTopic, StateTopicNode
from kwire.broker.replication.partition import Partition
from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.broker.storage.log.producer_state import MarkerTerms
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.machine import TopicPartition
from kwire.coordinator.transactions.machine import Ending
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION, _ABORT, _COMMIT = 0, 0, 1


class TransactionNode(StateTopicNode, Protocol):
    """What the transaction coordinator needs of the node that it is on."""

    @property
    def producer_ids(self) -> ProducerIds: ...
    @property
    def groups(self) -> GroupCoordinatorService: ...

    def led_partition(self, topic: str, index: int, /) -> Partition:
        """A partition that this broker leads. ApiError: it does not."""


class NodeTransactionPorts(StateTopic):
    """`coordinator.transactions.ports.TransactionPorts` on a node."""

    def __init__(self, node: TransactionNode) -> None:
        super().__init__(node, TRANSACTION_STATE_TOPIC)
        self._node: TransactionNode = node

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""
        return self._node.producer_ids.next()

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""
        return self._node.image.features.get("transaction.version", 0)

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        ending: Ending,
        coordinator_epoch: int,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Write a marker into the log of each partition; one that this broker does not lead is refused."""
        codes: dict[TopicPartition, ErrorCode] = {}

        def written(partition: TopicPartition, error: ApiError | None) -> None:
            codes[partition] = ErrorCode.NONE if error is None else ErrorCode(error.code)
            if len(codes) == len(partitions):
                done(codes)

        for partition in partitions:
            self.write_marker(partition, ending, coordinator_epoch, partial(written, partition))

    def write_marker(
        self,
        partition: TopicPartition,
        ending: Ending,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write one marker into the log of a partition that this broker leads, unless it comes too late.

        `done` is called exactly once, maybe inside.
        """
        groups, now_ms = self._node.groups, self._node.host.now_ms()
        topic, index = partition
        is_of_groups = topic == GROUP_METADATA_TOPIC

        def committed(error: ApiError | None) -> None:
            if error is None and is_of_groups:
                # Offsets that the transaction committed count now.
                groups.transaction_ended(index, ending.producer_id, commit=ending.commit)
            done(error)

        try:
            if is_of_groups:
                # What groups did before the transaction ended comes before its end in the log, too.
                groups.append_gathered(index)
            self._node.led_partition(topic, index).append(
                memoryview(marker(ending, coordinator_epoch, now_ms)),
                now_ms=now_ms,
                on_replicated=committed,
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
