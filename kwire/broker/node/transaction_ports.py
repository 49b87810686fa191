"""The parts of a node that its transaction coordinator uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.metadata.image import NO_LEADER
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.node.producer_id_manager import ProducerIdManager
from kwire.broker.node.state_topic import StateTopic, StateTopicNode
from kwire.broker.node.verification_metrics import VerificationMetrics
from kwire.broker.replication.partition import Partition
from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.broker.storage.log.producer_state import MarkerContext
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.transactions.service import TransactionCoordinatorService
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
from kwire.host.host import PeerAddress, Timer
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition

if TYPE_CHECKING:
    from kwire.broker.node.add_partitions_to_txn_manager import AddPartitionsToTxnManager
    from kwire.broker.node.transaction_markers import TransactionMarkerSender

VERSION_THAT_ADDS: Final = 2
"""The transaction version from which on a produce request adds its partition to the transaction (KIP-890)."""

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION, _ABORT, _COMMIT = 0, 0, 1


class TransactionNode(StateTopicNode, Protocol):
    """The part of a node that the transaction coordinator uses."""

    @property
    def producer_ids(self) -> ProducerIdManager: ...
    @property
    def groups(self) -> GroupCoordinatorService: ...
    @property
    def transactions(self) -> TransactionCoordinatorService: ...
    def peer_address(self, broker_id: int, /) -> PeerAddress | None:
        """Return the address of a broker; None if the broker is not registered."""

    def led_partition(self, topic: str, index: int, /) -> Partition:
        """Return a partition. Raises ApiError if this broker is not its leader or the replica is offline."""


class NodeTransactionPorts(StateTopic):
    """`TransactionPorts` of the transaction coordinator, implemented by a node."""

    def __init__(self, node: TransactionNode) -> None:
        super().__init__(node, TRANSACTION_STATE_TOPIC)
        self._node: TransactionNode = node
        self._marker_sender: TransactionMarkerSender | None = None
        self._txn_manager: AddPartitionsToTxnManager | None = None
        self.verification_metrics = VerificationMetrics()

    def next_producer_id(self) -> int:
        return self._node.producer_ids.next()

    def transaction_version(self) -> int:
        return self._node.image.features.get("transaction.version", 0)

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        txn_marker: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Write a marker to the partitions that this broker leads, and send it to the other leaders."""
        here: list[TopicPartition] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._leader_of(partition)
            if leader in (self._node.config.node_id, NO_LEADER):
                here.append(partition)
            else:
                elsewhere.setdefault(leader, []).append(partition)
        for leader, led in elsewhere.items():
            self._markers().send(leader, led, txn_marker, coordinator_epoch, done)
        codes: dict[TopicPartition, ErrorCode] = {}

        def written(partition: TopicPartition, error: ApiError | None) -> None:
            codes[partition] = ErrorCode.NONE if error is None else ErrorCode(error.code)
            if len(codes) == len(here):
                done(codes)

        for partition in here:
            self.write_marker(partition, txn_marker, coordinator_epoch, partial(written, partition))

    def leaders_changed(self) -> None:
        """Fail the pending markers of partitions that were deleted or have new leaders."""
        if self._marker_sender is not None:
            self._marker_sender.leaders_changed()

    def _leader_of(self, partition: TopicPartition) -> int:
        image = self._node.image.partition(*partition)
        return NO_LEADER if image is None else image.leader

    def _timeout_ms(self) -> int:
        """Return the request timeout, limited to the session timeout: a silent broker is fenced by then."""
        config = self._node.config
        return min(config.request_timeout_ms, config.broker_session_timeout_ms)

    def _markers(self) -> TransactionMarkerSender:
        if self._marker_sender is None:
            # Imported here and below to shorten the start of a single broker, which does not need it.
            from kwire.broker.node.transaction_markers import TransactionMarkerSender

            self._marker_sender = TransactionMarkerSender(
                self._node.host,
                address_of=self._node.peer_address,
                leader_of=self._leader_of,
                timeout_ms=self._timeout_ms,
            )
        return self._marker_sender

    def write_marker(
        self,
        partition: TopicPartition,
        txn_marker: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write one marker to a partition that this broker leads. An outdated marker is an error.

        `done` is called exactly once, possibly within this call, with None or the error. After
        REQUEST_TIMED_OUT, the marker may still be committed.
        """
        groups, host = self._node.groups, self._node.host
        now_ms = host.now_ms()
        topic, index = partition
        is_of_groups = topic == GROUP_METADATA_TOPIC
        is_done = False

        def complete(error: ApiError | None) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                done(error)

        def committed(error: ApiError | None) -> None:
            if waiting is not None:
                waiting.cancel()
            is_committed = error is None or error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            if is_of_groups and is_committed:
                # The offsets that were committed in the transaction become valid, or are dropped on an abort.
                groups.on_transaction_completed(index, txn_marker.producer_id, commit=txn_marker.commit)
            complete(error)

        waiting: Timer | None = None
        try:
            if is_of_groups:
                # Groups first write the records that they have batched: these come before the marker.
                groups.flush_batch(index)
            led = self._node.led_partition(topic, index)
            led.append(
                memoryview(marker_batch(txn_marker, coordinator_epoch, now_ms)),
                now_ms=now_ms,
                on_replicated=committed,
                origin=AppendOrigin.COORDINATOR,
                marker=MarkerContext(coordinator_epoch, txn_marker.version),
            )
        except ApiError as error:
            complete(error)
            return
        if led.remote_replicas is not None and not is_done:
            waiting = host.internode_clock.schedule(
                self._node.config.request_timeout_ms,
                lambda: complete(ApiError(ErrorCode.REQUEST_TIMED_OUT)),
            )

    # --- for the leaders of partitions

    def add_or_verify_partition(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        *,
        adds: bool,
        callback: Callable[[ErrorCode], None],
    ) -> None:
        """Verify that a partition is part of a transaction. With `adds`, also add it. KIP-890.

        `callback` is called once, possibly within this call. It gets NONE, the error from the transaction
        coordinator, or the error of looking up the transaction coordinator.
        """
        transactions, metrics, host = self._node.transactions, self.verification_metrics, self._node.host
        began_ms = host.monotonic_ms()

        def verified(code: ErrorCode) -> None:
            metrics.record(host.monotonic_ms() - began_ms, is_failure=code is not ErrorCode.NONE)
            callback(code)

        try:
            coordinator_id = transactions.find_coordinator(transactional_id)
        except ApiError as error:
            verified(error.code)
            return
        if coordinator_id != self._node.config.node_id:
            self._verification().verify(
                coordinator_id, transactional_id, producer, partition, adds=adds, callback=verified
            )
        elif adds:
            transactions.add_partitions(transactional_id, producer, [partition], VERSION_THAT_ADDS, verified)
        else:
            transactions.verify_partitions(
                transactional_id,
                producer,
                [partition],
                lambda codes: verified(codes.code if isinstance(codes, ApiError) else codes[partition]),
            )

    def _verification(self) -> AddPartitionsToTxnManager:
        if self._txn_manager is None:
            from kwire.broker.node.add_partitions_to_txn_manager import AddPartitionsToTxnManager

            self._txn_manager = AddPartitionsToTxnManager(
                self._node.host,
                address_of=self._node.peer_address,
                timeout_ms=self._timeout_ms,
            )
        return self._txn_manager


def marker_batch(txn_marker: TransactionMarker, coordinator_epoch: int, now_ms: int) -> bytearray:
    """Return a batch with the control record that commits or aborts a transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if txn_marker.commit else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return batch.build(
        [(now_ms, key, value, ())],
        producer_id=txn_marker.producer_id,
        producer_epoch=txn_marker.producer_epoch,
        transactional=True,
        control=True,
    )
