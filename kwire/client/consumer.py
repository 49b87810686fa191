"""A consumer of assigned partitions, without a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from kwire.client.cluster_client import ClusterClient, group_by_topic
from kwire.client.errors import Disconnected, raise_for_code
from kwire.client.offsets import find_offsets
from kwire.wire.batch import ABORT, BatchHeader, CorruptBatch, Record, batches, control_type, records
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.primitives import Buffer, TopicPartition

MAX_WAIT_SECONDS: Final = 0.5
"""Total wait time of a poll without records, split over the leaders."""
PARTITION_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a decompressed batch."""


class ConsumerRecord(NamedTuple):
    """A record and its partition."""

    partition: TopicPartition
    record: Record


class Consumer:
    """Positions in partitions, which advance as records are consumed."""

    def __init__(
        self,
        cluster: ClusterClient,
        positions: Mapping[TopicPartition, int],
        *,
        committed: bool,
        note: Callable[[str], None] = lambda text: None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_headers: int = 0x7FFFFFFF,
    ) -> None:
        """Start at the given positions. `committed` selects the isolation level read_committed.

        `note` is called with a message when an invalid position is reset. Batches above `max_batch_bytes`
        when decompressed, and records with more than `max_headers`, are rejected.
        """
        self.positions = dict(positions)
        self.end_offsets: dict[TopicPartition, int] = {}
        """End offsets for this isolation level, from the latest poll."""
        self._records_of = partial(records, max_bytes=max_batch_bytes, max_headers=max_headers)
        self._cluster = cluster
        self._committed = committed
        self._note = note
        self._partitions_by_leader: Mapping[int, Sequence[TopicPartition]] | None = None

    def poll(self, partitions: Sequence[TopicPartition] | None = None) -> Iterator[ConsumerRecord]:
        """Yield the next records of some or all partitions, or nothing if no record arrives in time.

        Raises ApiError, Disconnected, UnknownPartition, CorruptBatch.
        """
        places = {one: self.positions[one] for one in (partitions or self.positions)}
        responses: dict[int, FetchResponse] = {}

        def attempt() -> None:
            try:
                if self._partitions_by_leader is None or set(places) != {
                    one for led in self._partitions_by_leader.values() for one in led
                }:
                    self._partitions_by_leader = self._cluster.leaders(places)
                wait_seconds = MAX_WAIT_SECONDS / len(self._partitions_by_leader)
                for leader, led in self._partitions_by_leader.items():
                    if leader not in responses:
                        responses[leader] = self._fetch(leader, led, wait_seconds)
            except (ApiError, Disconnected):
                self._partitions_by_leader = None
                raise

        self._cluster.retry(attempt)
        for response in responses.values():
            for topic in response.responses:
                for one in topic.partitions:
                    yield from self._records((topic.topic, one.partition_index), one)

    def _fetch(self, leader: int, led: Sequence[TopicPartition], wait_seconds: float) -> FetchResponse:
        """Fetch from one leader. Raises Disconnected, or ApiError except OFFSET_OUT_OF_RANGE."""
        request = FetchRequest(
            max_wait_ms=int(wait_seconds * 1000),
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=int(self._committed),
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=self.positions[topic, index],
                            partition_max_bytes=PARTITION_BYTES,
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in group_by_topic(led)
            ],
            forgotten_topics_data=[],
        )
        response = self._cluster.send_to_node(
            leader, request, FetchResponse, wait_seconds + self._cluster.timeout_seconds
        )
        raise_for_code(response.error_code, None, "a fetch")
        for topic in response.responses:
            for one in topic.partitions:
                if one.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise_for_code(one.error_code, None, f"{topic.topic}-{one.partition_index}")
        return response

    def _records(self, partition: TopicPartition, found: PartitionData) -> Iterator[ConsumerRecord]:
        self.end_offsets[partition] = found.last_stable_offset if self._committed else found.high_watermark
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset_position(partition)
            return
        data = cast("Buffer", found.records or b"")  # a received response has no file regions
        aborted = AbortedTransactions(found.aborted_transactions or ()) if self._committed else None
        try:
            for position, header in batches(data, allow_partial=True):
                void = aborted is not None and aborted.covers(header, data, position)
                if not void and not header.is_control:
                    at = self.positions[partition]
                    for record in self._records_of(data, position, header, from_offset=at):
                        self.positions[partition] = record.offset + 1
                        yield ConsumerRecord(partition, record)
                self.positions[partition] = max(self.positions[partition], header.next_offset)
        except CorruptBatch as error:
            at = self.positions[partition]
            raise CorruptBatch(
                f"{_name(partition)} cannot be read at offset {at} ({error}): continue after it, at {at + 1}"
            ) from error

    def _reset_position(self, partition: TopicPartition) -> None:
        """Move to the nearest valid offset. Raises ApiError, Disconnected."""
        at = self.positions[partition]
        first = find_offsets(self._cluster, {partition: EARLIEST})[partition]
        self.positions[partition] = (
            first if at < first else find_offsets(self._cluster, {partition: LATEST})[partition]
        )
        self._note(f"{_name(partition)} has no offset {at}: continuing at {self.positions[partition]}")


def _name(partition: TopicPartition) -> str:
    return "{}-{}".format(*partition)


class AbortedTransactions:
    """The aborted transactions among fetched batches, from the Fetch response.

    The response has the first offset of each aborted transaction. An abort marker in the data ends the
    transaction.
    """

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(transactions, key=lambda one: one.first_offset))
        self._producers: set[int] = set()

    def covers(self, header: BatchHeader, data: Buffer, position: int) -> bool:
        """Return whether a batch belongs to an aborted transaction; False for control batches.

        Callers must pass all batches in order. Raises CorruptBatch.
        """
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            self._producers.add(self._coming.popleft().producer_id)
        if header.is_control:
            marker = next(records(data, position, header), None)
            if marker is not None and control_type(marker)[1] == ABORT:
                self._producers.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._producers
