"""The test oracle of a simulated cluster whose clients are arbitrary programs.

It observes the connections of the programs. When a Produce with acks=all is acknowledged, its records must be
committed at the offsets in the response, and stay the same on all replicas. Records of a producer id must be
in the log once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from kwire.broker.metadata.image import MetadataImage
from kwire.testing import results
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.violation import Violation
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import COMMIT, BatchHeader, CorruptBatch, Record, batches, control_type, records
from kwire.wire.errors import WireError
from kwire.wire.messages.produce import ProduceRequest, ProduceResponse
from kwire.wire.registry import decode_request, decode_request_header, decode_response

ACKS_ALL: Final = -1
SEQUENCE_COUNT: Final = 1 << 31
"""The number of sequence numbers. The last one is followed by 0."""


class ProgramOracle(Oracle):
    """An oracle that learns from Produce responses what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self._sequences: dict[tuple[TopicPartition, int, int], int] = {}
        """The next sequence number, by partition, producer id and producer epoch."""
        self._deleted: set[TopicPartition] = set()
        """Partitions of deleted topics. Programs may still get responses for them."""
        self._records: dict[TopicPartition, dict[int, Record]] = {}
        """Committed records by partition and offset, without those of open or aborted transactions."""
        self._pending: dict[tuple[TopicPartition, int], list[Record]] = {}
        """Records of open transactions, by partition and producer id."""

    def commit_batch(
        self, topic_partition: TopicPartition, header: BatchHeader, found: Iterable[Record]
    ) -> None:
        """Record a committed batch. Raises Violation if its sequence number is not the expected one."""
        found = list(found)
        visible = self._records.setdefault(topic_partition, {})
        transaction = topic_partition, header.producer_id
        if header.is_control:
            pending = self._pending.pop(transaction, [])
            if control_type(found[0])[1] == COMMIT:
                visible.update((record.offset, record) for record in pending)
            return
        if header.producer_id >= 0:
            self._check_sequence(topic_partition, header)
        if header.is_transactional:
            self._pending.setdefault(transaction, []).extend(found)
        else:
            visible.update((record.offset, record) for record in found)
        self.committed_in(topic_partition).values.update(
            (record.offset, record.value or b"") for record in found
        )

    def _check_sequence(self, topic_partition: TopicPartition, header: BatchHeader) -> None:
        key = topic_partition, header.producer_id, header.producer_epoch
        expected = self._sequences.get(key, header.base_sequence)
        if header.base_sequence != expected:
            raise Violation(
                f"{topic_partition} has sequence {header.base_sequence} at offset {header.base_offset} of "
                f"producer {header.producer_id} epoch {header.producer_epoch}, expected {expected}"
            )
        self._sequences[key] = (expected + header.records_count) % SEQUENCE_COUNT

    def records(self, topic: str) -> list[results.Record]:
        """Return all committed records of a topic, sorted by partition and offset."""
        return [
            results.Record(*topic_partition, one.offset, one.timestamp, one.key, one.value, one.headers)
            for topic_partition, found in sorted(self._records.items())
            if topic_partition.topic == topic
            for one in (found[offset] for offset in sorted(found))
            if one.offset >= self.committed_in(topic_partition).start
        ]

    def on_log_start(self, topic_partition: TopicPartition, offset: int, name: str) -> None:
        """Accept any log start offset, since programs and retention may delete records."""
        committed = self.committed_in(topic_partition)
        committed.start = max(committed.start, offset)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition, since its topic was deleted."""
        super().forget(topic_partition)
        self._records.pop(topic_partition, None)
        self._pending = {key: found for key, found in self._pending.items() if key[0] != topic_partition}
        self._deleted.add(topic_partition)
        self._sequences = {
            key: next_one for key, next_one in self._sequences.items() if key[0] != topic_partition
        }

    def on_values_acked(self, topic_partition: TopicPartition, base_offset: int, values: list[bytes]) -> None:
        """Check an acknowledgment. Raises Violation if the values are not committed at these offsets."""
        committed = self.committed_in(topic_partition)
        for offset, value in enumerate(values, max(base_offset, 0)):
            if offset < committed.start or topic_partition in self._deleted:
                continue
            found = committed.values.get(offset)
            if found != value:
                there = "nothing" if found is None else repr(found)
                raise Violation(
                    f"{value!r} was acknowledged at {offset} of {topic_partition}, where "
                    f"{there} is committed (committed up to {committed.end})"
                )


class ProduceObserver:
    """An observer of the Produce requests and responses of one connection."""

    def __init__(self, oracle: ProgramOracle, image: Callable[[], MetadataImage]) -> None:
        self._oracle = oracle
        self._image = image
        self._pending: dict[int, tuple[int, list[tuple[TopicPartition, list[bytes]]]]] = {}
        """By correlation id: the API version, and the values that must be stored, by partition."""

    def on_request(self, frame: bytes) -> None:
        """Observe a request frame, including its size prefix."""
        view = memoryview(frame)[4:]
        if int.from_bytes(view[:2], "big") != ApiKey.PRODUCE:
            return
        try:
            header, position = decode_request_header(view)
            request = decode_request(header, view, position)
            if request.acks == ACKS_ALL:
                self._pending[header.correlation_id] = header.api_version, self._values_by_partition(request)
        except (WireError, CorruptBatch):
            return  # the broker will return an error

    def _values_by_partition(self, request: ProduceRequest) -> list[tuple[TopicPartition, list[bytes]]]:
        image = self._image()
        return [
            (
                TopicPartition(topic.name or image.name_of(topic.topic_id) or "", one.index),
                _values(one.records),
            )
            for topic in request.topic_data
            for one in topic.partition_data
        ]

    def on_response(self, frame: memoryview) -> None:
        """Observe a response frame without its size prefix.

        Raises Violation if acknowledged values are not committed at the offsets in the response.
        """
        pending = self._pending.pop(int.from_bytes(frame[:4], "big", signed=True), None)
        if pending is None:
            return
        version, sent = pending
        _, response = decode_response(ProduceResponse, version, frame)
        image = self._image()
        results_by_partition = {
            TopicPartition(topic.name or image.name_of(topic.topic_id) or "", one.index): one
            for topic in response.responses
            for one in topic.partition_responses
        }
        for topic_partition, values in sent:
            one = results_by_partition.get(topic_partition)
            if one is not None and not one.error_code and one.base_offset >= 0:
                self._oracle.on_values_acked(topic_partition, one.base_offset, values)


def _values(content: Any) -> list[bytes]:
    return [
        record.value or b""
        for position, header in batches(content or b"")
        for record in records(content, position, header)
    ]
