"""What programs were told by a simulated cluster, as it went over their connections: the oracle of it.

Programs write what they like. What counts is what each Produce with acks=all was answered: its records are
committed where that says, at once, and from then on the same on all replicas; and what a producer with a
producer id has sent stands once, in its order.
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
"""After the last one comes 0 again."""


class ProgramOracle(Oracle):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sequences: dict[tuple[TopicPartition, int, int], int] = {}
        """By partition, producer id and epoch: the next one."""
        self._deleted: set[TopicPartition] = set()
        """Partitions of topics that were deleted: programs may hear of them still."""
        self._records: dict[TopicPartition, dict[int, Record]] = {}
        """By partition and offset: what is committed, but for what is of transactions."""
        self._pending: dict[tuple[TopicPartition, int], list[Record]] = {}
        """What is of a transaction, by partition and producer id, until it ends."""

    def commit_batch(self, place: TopicPartition, header: BatchHeader, found: Iterable[Record]) -> None:
        found = list(found)
        count = self._records.setdefault(place, {})
        transaction = place, header.producer_id
        if header.is_control:
            of_it = self._pending.pop(transaction, [])
            if control_type(found[0])[1] == COMMIT:
                count.update((record.offset, record) for record in of_it)
            return
        if header.producer_id >= 0:
            self._check_sequence(place, header)
        if header.is_transactional:
            self._pending.setdefault(transaction, []).extend(found)
        else:
            count.update((record.offset, record) for record in found)
        self.committed_in(place).values.update((record.offset, record.value or b"") for record in found)

    def _check_sequence(self, place: TopicPartition, header: BatchHeader) -> None:
        key = place, header.producer_id, header.producer_epoch
        expected = self._sequences.get(key, header.base_sequence)
        if header.base_sequence != expected:
            raise Violation(
                f"{place} has number {header.base_sequence} at {header.base_offset} of producer "
                f"{header.producer_id} in epoch {header.producer_epoch}, and not {expected}"
            )
        self._sequences[key] = (expected + header.records_count) % SEQUENCE_COUNT

    def records(self, topic: str) -> list[results.Record]:
        """All records of a topic that count, partition by partition."""
        return [
            results.Record(*place, one.offset, one.timestamp, one.key, one.value, one.headers)
            for place, found in sorted(self._records.items())
            if place.topic == topic
            for one in (found[offset] for offset in sorted(found))
            if one.offset >= self.committed_in(place).start
        ]

    def on_log_start(self, place: TopicPartition, offset: int, name: str) -> None:
        """Programs may delete, and so may time."""
        committed = self.committed_in(place)
        committed.start = max(committed.start, offset)

    def forget(self, place: TopicPartition) -> None:
        super().forget(place)
        self._records.pop(place, None)
        self._pending = {key: found for key, found in self._pending.items() if key[0] != place}
        self._deleted.add(place)
        self._sequences = {key: next_one for key, next_one in self._sequences.items() if key[0] != place}

    def on_values_acked(self, place: TopicPartition, base_offset: int, values: list[bytes]) -> None:
        """A program was told that these are there from then on. Violation where they are not."""
        committed = self.committed_in(place)
        for offset, value in enumerate(values, max(base_offset, 0)):
            if offset < committed.start or place in self._deleted:
                continue
            found = committed.values.get(offset)
            if found != value:
                there = "nothing" if found is None else repr(found)
                raise Violation(
                    f"{value!r} was acknowledged at {offset} of {place}, where {there} is committed, up to "
                    f"{committed.end}"
                )


class ProduceObserver:
    """One connection of a program: what is asked there, and answered in the same order."""

    def __init__(self, ledger: ProgramOracle, image: Callable[[], MetadataImage]) -> None:
        self._oracle = ledger
        self._image = image
        self._pending: dict[int, tuple[int, list[tuple[TopicPartition, list[bytes]]]]] = {}
        """By correlation id: the version, and what is to be where."""

    def on_request(self, frame: bytes) -> None:
        """A request is sent, its size in front."""
        view = memoryview(frame)[4:]
        if int.from_bytes(view[:2], "big") != ApiKey.PRODUCE:
            return
        try:
            header, position = decode_request_header(view)
            request = decode_request(header, view, position)
            if request.acks == ACKS_ALL:
                self._pending[header.correlation_id] = header.api_version, self._values_by_partition(request)
        except (WireError, CorruptBatch):
            return  # it will be told by the broker

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
        """An answer has come, without its size. Violation."""
        awaited = self._pending.pop(int.from_bytes(frame[:4], "big", signed=True), None)
        if awaited is None:
            return
        version, sent = awaited
        _, answer = decode_response(ProduceResponse, version, frame)
        image = self._image()
        told = {
            TopicPartition(topic.name or image.name_of(topic.topic_id) or "", one.index): one
            for topic in answer.responses
            for one in topic.partition_responses
        }
        for place, values in sent:
            one = told.get(place)
            if one is not None and not one.error_code and one.base_offset >= 0:
                self._oracle.on_values_acked(place, one.base_offset, values)


def _values(content: Any) -> list[bytes]:
    return [
        record.value or b""
        for position, header in batches(content or b"")
        for record in records(content, position, header)
    ]
