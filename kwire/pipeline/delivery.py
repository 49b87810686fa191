"""Putting records into partitions of a topic so that each is there once, whatever is killed when.

Two ways, by whether the target's offsets are to be the source's:

*With a map.* Records go out in transactions. Each also writes into the topic `<topic>.offset-map` which
offsets of the source became which of the target, and how far that is (pipeline/offset_map.py). What was not
committed was never there, so a job goes on where its map ends, and needs to remember nothing elsewhere.

*With the same offsets*, where the source has no gaps: then there is no room for the markers of transactions,
and no need for them either, since the target's end says how far one has come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from kwire.pipeline.offset_map import (
    MAP_SUFFIX,
    TIMEOUT_SECONDS,
    DeliveryError,
    MapEntry,
    all_entries,
    committed_reader,
    entries,
    high_watermark,
    last_entry,
    map_partition_count,
    map_partition_of,
    messages,
    watermarks,
)

__all__ = ["MAP_SUFFIX", "DeliveryError", "MappedDelivery", "Outgoing", "Target", "deliver_same_offsets"]

TRANSACTION_RECORDS: Final = 20_000
TRANSACTION_BYTES: Final = 16 << 20
PRODUCER: Final = {
    "linger.ms": 20,
    "compression.type": "lz4",
    # The topic has the last word on how large a record may be.
    "message.max.bytes": 256 << 20,
}
"""What a producer has unless the client's settings say otherwise."""


class Outgoing(NamedTuple):
    """A record on its way to a partition."""

    source_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class Target(NamedTuple):
    """A partition of a topic of some cluster, and the job that fills it."""

    client: dict[str, str]
    """What librdkafka needs to reach the cluster: `bootstrap.servers`, and whatever else."""
    topic: str
    partition: int
    job: str
    """Names the group that keeps the job's progress, and its transactions."""
    transaction_records: int = TRANSACTION_RECORDS
    """How many go out together at most."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def consumer(self) -> Consumer:
        """Someone to ask for offsets."""
        return committed_reader(self.client, self.job)

    def owns(self, entry: MapEntry) -> bool:
        """Whether an entry of a map is the job's, about this partition."""
        return (entry.job, entry.partition) == (self.job, self.partition)


def progress(target: Target) -> int | None:
    """The next offset of the source, by what its map says; None if it says nothing. KafkaException."""
    found = read_last_entry(target)
    return None if found is None else found.end


def read_last_entry(target: Target) -> MapEntry | None:
    """The last entry of the map that the job has for this partition. KafkaException, DeliveryError."""
    consumer = target.consumer()
    try:
        count = map_partition_count(consumer, target.topic + MAP_SUFFIX)
        if not count:
            return None
        return last_entry(consumer, map_partition_of(target.topic, target.partition, count), target.owns)
    finally:
        consumer.close()


def end_offset(target: Target) -> int:
    """Where the target ends. KafkaException."""
    consumer = target.consumer()
    try:
        return watermarks(consumer, TopicPartition(target.topic, target.partition))[1]
    finally:
        consumer.close()


class ProducerFatalError(DeliveryError):
    """A producer came to a fatal error, and its next call says which."""


def flush_producer(producer: Producer) -> int:
    """How many records got no answer in time. KafkaException, ProducerEnded."""
    try:
        return producer.flush(TIMEOUT_SECONDS)
    except SystemError as lost:
        # confluent-kafka 2.16 has flush raise a fatal error, and loses it where a delivery callback follows.
        raise ProducerFatalError("the producer cannot go on") from lost


class _RejectedRecord(NamedTuple):
    """A record that was not taken, and why."""

    record: Outgoing
    error: KafkaError

    @property
    def size_bytes(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"")

    def is_likelier_cause_than(self, other: _RejectedRecord) -> bool:
        """Whether this one is rather why a batch was refused, of which all records are told to be."""
        mine, its = self.error.code(), other.error.code()
        if mine != its:
            return its == KafkaError._INVALID_DIFFERENT_RECORD
        if mine == KafkaError.INVALID_TIMESTAMP:
            now_ms = time.time_ns() // 1_000_000
            return abs(self.record.timestamp_ms - now_ms) > abs(other.record.timestamp_ms - now_ms)
        return mine == KafkaError.MSG_SIZE_TOO_LARGE and self.size_bytes > other.size_bytes

    def __str__(self) -> str:
        why = self.error.str()
        match self.error.code():
            case KafkaError.INVALID_TIMESTAMP:
                why += (
                    f", which is {self.record.timestamp_ms} ms (see message.timestamp.after.max.ms and "
                    f"message.timestamp.before.max.ms of the topic)"
                )
            case KafkaError.MSG_SIZE_TOO_LARGE:
                why += f", which is {self.size_bytes} bytes (see max.message.bytes of the topic)"
        return f"offset {self.record.source_offset} of the source: {why}"


class _PendingSends:
    """Records handed to a producer, and what became of them."""

    def __init__(self, producer: Producer, target: Target) -> None:
        self._producer = producer
        self._target = target
        self.delivered: dict[int, int] = {}
        self._rejected: _RejectedRecord | None = None

    def send(self, record: Outgoing) -> None:
        def done(error: KafkaError | None, message: Message) -> None:
            # Called within poll and flush, so by one thread.
            if error is not None:
                refused = _RejectedRecord(record, error)
                if self._rejected is None or refused.is_likelier_cause_than(self._rejected):
                    self._rejected = refused
            else:
                self.delivered[record.source_offset] = int(message.offset() or 0)

        while True:
            try:
                self._producer.produce(
                    self._target.topic,
                    partition=self._target.partition,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    # To librdkafka 0 means now, so the first moment of 1970 becomes the next.
                    timestamp=record.timestamp_ms or 1,
                    on_delivery=done,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                raise DeliveryError(
                    f"{self._target.name} cannot be sent offset {record.source_offset} of the source, which "
                    f"is larger than the client's message.max.bytes"
                ) from None
            else:
                self._producer.poll(0)
                return

    def flush(self) -> dict[int, int]:
        """Offsets of the target by those of the source, when all is delivered. DeliveryError."""
        left = flush_producer(self._producer)
        if self._rejected is not None or left:
            why = str(self._rejected) if self._rejected is not None else f"{left} records got no answer"
            raise DeliveryError(f"{self._target.name} did not take all records: {why}")
        delivered, self.delivered = self.delivered, {}
        return delivered


class MappedDelivery:
    """The only one who delivers to a partition in transactions, from its beginning on; older ones are fenced.

    A context manager. KafkaException, DeliveryError from everything.
    """

    def __init__(self, target: Target, origin: str = "") -> None:
        self.target = target
        self.origin = origin
        self._producer = Producer(
            {
                **PRODUCER,
                **target.client,
                "transactional.id": f"{target.job}-{target.name}",
                "transaction.timeout.ms": 60_000,
            }
        )
        # Fences older ones, and returns when their last transaction has come to its end.
        self._producer.init_transactions(TIMEOUT_SECONDS)
        self.last = self._last_entry()

    def __enter__(self) -> MappedDelivery:
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever is in the queues belongs to a transaction that was given up.
        self._producer.purge()

    @property
    def next_offset(self) -> int | None:
        """Of the source; None where nothing was delivered."""
        return None if self.last is None else self.last.end

    def _last_entry(self) -> MapEntry | None:
        target = self.target
        consumer = target.consumer()
        try:
            count = map_partition_count(consumer, target.topic + MAP_SUFFIX)
            if not count:
                raise DeliveryError(f"there is no topic {target.topic}{MAP_SUFFIX} to keep the offset map in")
            self._map_partition = map_partition_of(target.topic, target.partition, count)
            # Others may have transactions open in the same partition of a map, before our last entry.
            until = high_watermark(target.client, self._map_partition)
            return last_entry(consumer, self._map_partition, target.owns, until=until)
        finally:
            consumer.close()

    def deliver(self, records: Iterable[Outgoing], start: int, end: int | None = None) -> int:
        """Deliver records whose offsets follow `start`, which is where the map goes on; how many they were.

        With `end`, the map tells of all offsets up to that, of gaps behind the last record too.
        """
        count = 0
        for part, is_last in _transactions_with_last(
            records, end is not None, self.target.transaction_records
        ):
            after = part[-1].source_offset + 1
            if is_last and end is not None:
                after = max(after, end)
            self._transaction(part, start, after)
            start = after
            count += len(part)
        if end is not None and (start < end or self.last is None):
            self._transaction([], start, max(start, end))
        return count

    def _transaction(self, part: list[Outgoing], start: int, after: int) -> None:
        producer = self._producer
        producer.begin_transaction()
        try:
            sending = _PendingSends(producer, self.target)
            for record in part:
                sending.send(record)
            last = self._write_map(start, after, sending.flush())
            producer.commit_transaction(TIMEOUT_SECONDS)
        except ProducerFatalError as error:
            producer.abort_transaction(TIMEOUT_SECONDS)
            raise DeliveryError(f"{self.target.name} did not take all records: {error}") from error
        except BaseException:
            # Where that fails too, the next one to have this name aborts it; what was first is to be told.
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(TIMEOUT_SECONDS)
            raise
        self.last = last

    def _write_map(self, start: int, after: int, delivered: dict[int, int]) -> MapEntry:
        failed: list[KafkaError] = []

        def done(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        last = None
        for last in entries(
            self.target.job,
            self.target.partition,
            start,
            after,
            sorted(delivered.items()),
            next_target=-1 if self.last is None else self.last.next_target,
            origin=self.origin,
        ):
            key, value = last.encode()
            self._producer.produce(
                self._map_partition.topic,
                partition=self._map_partition.partition,
                key=key,
                value=value,
                on_delivery=done,
            )
        left = flush_producer(self._producer)
        if failed or left:
            why = failed[0].str() if failed else f"{left} entries got no answer"
            raise DeliveryError(f"{self._map_partition.topic} did not take an entry: {why}")
        assert last is not None
        return last


def deliver_with_map(
    target: Target,
    records_from: Callable[[int], Iterable[Outgoing]],
    start: int,
    *,
    origin: str = "",
    check_continues: Callable[[str], object] = lambda _: None,
) -> tuple[int, int]:
    """Deliver what `records_from(offset)` gives, from the job's progress on, or else from `start`.

    `check_goes_on` is told what the map says of the origin, and raises where this is not more of the same.
    Gives how many records went out now, and the next offset of the source. KafkaException, DeliveryError.
    """
    with MappedDelivery(target, origin) as delivery:
        if delivery.last is not None:
            check_continues(delivery.last.origin)
        begin = start if delivery.next_offset is None else delivery.next_offset
        count = delivery.deliver(records_from(begin), begin)
        return count, begin if delivery.next_offset is None else delivery.next_offset


def _transactions_with_last(
    records: Iterable[Outgoing], find_last: bool, max_records: int
) -> Iterator[tuple[list[Outgoing], bool]]:
    """Parts, and whether it is the last one, which is known only if one looks a part ahead."""
    previous: list[Outgoing] = []
    for part in _split_transactions(records, max_records):
        if not find_last:
            yield part, False
            continue
        if previous:
            yield previous, False
        previous = part
    if previous:
        yield previous, True


def _split_transactions(records: Iterable[Outgoing], max_records: int) -> Iterator[list[Outgoing]]:
    part: list[Outgoing] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if len(part) >= max_records or size >= TRANSACTION_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def deliver_same_offsets(
    target: Target, records_from: Callable[[int], Iterable[Outgoing]], start: int
) -> tuple[int, int]:
    """Deliver what `records_from(offset)` gives, each under its own offset, from the target's end on.

    DeliveryError where the source has a gap, where the target holds something else, or somebody else writes.
    """
    next_offset = end_offset(target)
    if next_offset < start:
        raise DeliveryError(f"{target.name} ends at offset {next_offset}, and the first to come is {start}")
    _check_target_matches(target, records_from, next_offset)
    producer = Producer({**PRODUCER, **target.client, "enable.idempotence": True})
    sending = _PendingSends(producer, target)
    count = 0
    for part in _split_transactions(records_from(next_offset), target.transaction_records):
        for record in part:
            if record.source_offset != next_offset:
                raise DeliveryError(
                    f"{target.name} cannot get the source's offsets: after {next_offset - 1} comes "
                    f"{record.source_offset}"
                )
            sending.send(record)
            next_offset += 1
        for source, offset in sending.flush().items():
            if source != offset:
                raise DeliveryError(
                    f"{target.name} took offset {source} of the source as {offset}: somebody else "
                    f"writes into it"
                )
        count += len(part)
    return count, next_offset


def _check_target_matches(
    target: Target, records_from: Callable[[int], Iterable[Outgoing]], end: int
) -> None:
    """DeliveryError where the last record that is there is not the source's of that offset."""
    expected = next(iter(records_from(end - 1)), None) if end else None
    if expected is None or expected.source_offset != end - 1:
        return  # Nothing is there, or the source begins later.
    consumer = target.consumer()
    try:
        place = TopicPartition(target.topic, target.partition)
        if watermarks(consumer, place)[0] == end:
            return  # All of it was deleted since.
        found = next(messages(consumer, place, end - 1), None)
    finally:
        consumer.close()
    if found is None or not _is_same(found, expected):
        raise DeliveryError(
            f"{target.name} holds something else at offset {end - 1} than the source: somebody else has "
            f"written into it"
        )


def _is_same(found: Message, expected: Outgoing) -> bool:
    kind, timestamp_ms = found.timestamp()
    # A topic with LogAppendTime has times of its own.
    return (found.key(), found.value()) == (expected.key, expected.value) and (
        kind != TIMESTAMP_CREATE_TIME or timestamp_ms == (expected.timestamp_ms or 1)
    )


def offset_map(target: Target) -> Iterator[tuple[int, int, int]]:
    """The map of a partition: first offset of the source, of the target, and how many. KafkaException."""
    consumer = target.consumer()
    try:
        for entry in all_entries(consumer, target.topic + MAP_SUFFIX, target.owns):
            yield from entry.runs
    finally:
        consumer.close()
