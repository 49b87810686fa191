"""Transaction markers for partitions that other brokers lead: WriteTxnMarkers v1-2. KIP-98.

If a partition gets a new leader, the markers that wait for the old leader fail, so that the coordinator sends
them to the new leader. The old leader may still write a marker. Then the marker is either truncated, or
appears twice in the log, which has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from kwire.broker.node.controller_requests import error_code
from kwire.broker.node.request_batcher import MAX_BATCHED, RequestBatcher
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.host.host import Host, PeerAddress, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kwire.wire.primitives import TopicPartition
from kwire.wire.schema import Message

OUTCOMES: Final = {
    # The broker may not know the topic yet. The coordinator checks in its own metadata for a deleted topic.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # A log in an old message format has no records of the transaction.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: ErrorCode.NONE,
    ErrorCode.UNSUPPORTED_VERSION: ErrorCode.NONE,
}
"""The error codes of other brokers that have another meaning to the coordinator, and that meaning."""


class _Marker:
    """The marker of a transaction for all its partitions on one broker."""

    __slots__ = ("callback", "coordinator_epoch", "partitions", "txn_marker")

    def __init__(
        self,
        partitions: Collection[TopicPartition],
        txn_marker: TransactionMarker,
        coordinator_epoch: int,
        callback: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        self.partitions = dict.fromkeys(partitions)
        """The partitions that have no result yet."""
        self.txn_marker = txn_marker
        self.coordinator_epoch = coordinator_epoch
        self.callback = callback

    def complete(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        """Report the error codes of those partitions that have no result yet."""
        news = {partition: code for partition, code in codes.items() if partition in self.partitions}
        for partition in news:
            del self.partitions[partition]
        if news:
            self.callback(news)


class TransactionMarkerSender:
    """The markers that this broker's transaction coordinator sends to other brokers."""

    purpose: Final = "markers"

    def __init__(
        self,
        host: Host,
        *,
        address_of: Callable[[int], PeerAddress | None],
        leader_of: Callable[[TopicPartition], int],
        timeout_ms: Callable[[], int],
    ) -> None:
        """`leader_of` returns the broker id of a partition's leader according to the current metadata."""
        self._leader_of = leader_of
        self._batcher: RequestBatcher[_Marker] = RequestBatcher(self, host, address_of, timeout_ms)

    def send(
        self,
        broker_id: int,
        partitions: Collection[TopicPartition],
        txn_marker: TransactionMarker,
        coordinator_epoch: int,
        callback: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Send a marker to a broker. `callback` gets the error code of each partition once.

        The error codes may arrive in several calls of `callback`.
        """
        self._batcher.submit(broker_id, _Marker(partitions, txn_marker, coordinator_epoch, callback))

    def leaders_changed(self) -> None:
        """Fail the pending markers of partitions whose leader has changed."""
        batcher = self._batcher
        for by_broker in (batcher.in_flight, batcher.waiting):
            for broker_id, markers in list(by_broker.items()):
                for marker in list(markers):
                    moved = [one for one in marker.partitions if self._leader_of(one) != broker_id]
                    marker.complete(dict.fromkeys(moved, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # --- BatchedApi

    def select_batch(self, waiting: list[_Marker]) -> tuple[list[_Marker], list[_Marker]]:
        waiting = [marker for marker in waiting if marker.partitions]
        return waiting[:MAX_BATCHED], waiting[MAX_BATCHED:]

    def build_request(self, batch: Sequence[_Marker]) -> Message:
        return WriteTxnMarkersRequest(markers=[_to_wire(marker) for marker in batch])

    def handle_response(self, batch: Sequence[_Marker], response: Message | PeerUnreachable) -> None:
        if isinstance(response, PeerUnreachable):
            for marker in batch:
                marker.complete(dict.fromkeys(marker.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        assert isinstance(response, WriteTxnMarkersResponse)
        codes: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for result in response.markers:
            of_producer = codes.setdefault(result.producer_id, {})
            for topic in result.topics:
                for partition in topic.partitions:
                    code = error_code(partition.error_code)
                    of_producer[topic.name, partition.partition_index] = OUTCOMES.get(code, code)
        for marker in batch:
            found = codes.get(marker.txn_marker.producer_id, {})
            missing = ErrorCode.UNKNOWN_SERVER_ERROR
            marker.complete({partition: found.get(partition, missing) for partition in marker.partitions})


def _to_wire(marker: _Marker) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for name, index in marker.partitions:
        topics.setdefault(name, WritableTxnMarkerTopic(name=name)).partition_indexes.append(index)
    txn_marker = marker.txn_marker
    return WritableTxnMarker(
        producer_id=txn_marker.producer_id,
        producer_epoch=txn_marker.producer_epoch,
        transaction_result=txn_marker.commit,
        topics=list(topics.values()),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=txn_marker.version,
    )
