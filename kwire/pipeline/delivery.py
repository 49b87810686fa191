"""Delivery of records to a topic's partitions. Each record arrives exactly once, even if a process crashes.

There are two modes, depending on whether the target must have the same offsets as the source:

*With an offset map.* Records are sent in transactions. Each transaction also writes an entry to the topic
`<topic>.offset-map`, which maps source offsets to target offsets (pipeline/offset_map.py). An aborted
transaction leaves no entry. So a job continues where its map ends, and needs no other state.

*With the same offsets*, if the source has no gaps. An idempotent producer writes the records, because
transaction markers would take offsets of their own. A job continues at the target's end offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
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
from kwire.wire.plural import plural

__all__ = ["MAP_SUFFIX", "DeliveryError", "MappedDelivery", "Outgoing", "Target", "deliver_same_offsets"]

TRANSACTION_RECORDS: Final = 20_000
TRANSACTION_BYTES: Final = 16 << 20
PRODUCER: Final = {
    "linger.ms": 20,
    "compression.type": "lz4",
    # Do not limit the size in the producer: the topic's max.message.bytes applies.
    "message.max.bytes": 256 << 20,
}
"""Defaults of the producer's configuration."""


class Outgoing(NamedTuple):
    """A record to deliver to a partition."""

    source_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class Target(NamedTuple):
    """A partition to write to, the client settings for its cluster, and the job that writes."""

    client: dict[str, str]
    """librdkafka's configuration for the target cluster, including `bootstrap.servers`."""
    topic: str
    partition: int
    job: str
    """The job's name, which is part of its transactional ids and marks its entries in offset maps."""
    transaction_records: int = TRANSACTION_RECORDS
    """The maximum number of records in a transaction."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def consumer(self) -> Consumer:
        """Return a new read_committed consumer for the target cluster. The caller must close it."""
        return committed_reader(self.client, self.job)

    def owns(self, entry: MapEntry) -> bool:
        """Return whether a map entry belongs to this job and this partition."""
        return (entry.job, entry.partition) == (self.job, self.partition)


def progress(target: Target) -> int | None:
    """Return the next source offset of the job for this partition, from the offset map.

    Returns None if the map has no entry of the job for the partition. Raises KafkaException or DeliveryError.
    """
    found = read_last_entry(target)
    return None if found is None else found.end


def read_last_entry(target: Target) -> MapEntry | None:
    """Return the job's last map entry for this partition, or None if there is no entry.

    Raises KafkaException or DeliveryError.
    """
    with closing(target.consumer()) as consumer:
        count = map_partition_count(consumer, target.topic + MAP_SUFFIX)
        if not count:
            return None
        return last_entry(consumer, map_partition_of(target.topic, target.partition, count), target.owns)


def end_offset(target: Target) -> int:
    """Return the high watermark of the target partition. Raises KafkaException."""
    with closing(target.consumer()) as consumer:
        return watermarks(consumer, TopicPartition(target.topic, target.partition))[1]


class ProducerFatalError(DeliveryError):
    """A producer had a fatal error. The next call of the producer reports the cause."""


def flush_producer(producer: Producer) -> int:
    """Flush the producer, and return how many records were not delivered before the timeout.

    Raises KafkaException or ProducerFatalError.
    """
    try:
        return producer.flush(TIMEOUT_SECONDS)
    except SystemError as lost:
        # In confluent-kafka 2.16, flush raises SystemError for a fatal error if a delivery callback ran.
        raise ProducerFatalError("the producer had a fatal error") from lost


class _RejectedRecord(NamedTuple):
    """A record that was not delivered, and the error that the producer reported for it."""

    record: Outgoing
    error: KafkaError

    @property
    def size_bytes(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"")

    def is_likelier_cause_than(self, other: _RejectedRecord) -> bool:
        """Return whether this record is a likelier reason than `other` for the rejection of their batch.

        The broker rejects complete batches, so every record of the batch has an error.
        """
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
                why += f", which is {self._timestamp()}"
            case KafkaError.INVALID_RECORD:
                # The broker returns this error for each record if it rejects several records of a batch.
                why += f", whose timestamp is {self._timestamp()}"
                if self.record.key is None:
                    why += ", and it has no key, which a compacted topic requires"
            case KafkaError.MSG_SIZE_TOO_LARGE:
                why += f", which is {plural(self.size_bytes, 'byte')} (see max.message.bytes of the topic)"
        return f"offset {self.record.source_offset} of the source: {why}"

    def _timestamp(self) -> str:
        is_ahead = self.record.timestamp_ms > time.time_ns() // 1_000_000
        limit = f"message.timestamp.{'after' if is_ahead else 'before'}.max.ms"
        return f"{self.record.timestamp_ms} ms (raise {limit} of the topic)"


class _PendingSends:
    """Records that were passed to a producer, and the results of their delivery."""

    def __init__(self, producer: Producer, target: Target) -> None:
        self._producer = producer
        self._target = target
        self.delivered: dict[int, int] = {}
        self._rejected: _RejectedRecord | None = None

    def send(self, record: Outgoing) -> None:
        def done(error: KafkaError | None, message: Message) -> None:
            # The producer calls this function from poll and flush, in the same thread.
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
                    # Send timestamp 1 for 0, because librdkafka replaces 0 with the current time.
                    timestamp=record.timestamp_ms or 1,
                    on_delivery=done,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._STATE:
                    # A rejected record has ended the transaction. Its error says why.
                    self.flush()
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                raise DeliveryError(
                    f"cannot send offset {record.source_offset} of the source to {self._target.name}: the "
                    f"record is larger than the client's message.max.bytes"
                ) from None
            else:
                self._producer.poll(0)
                return

    def flush(self) -> dict[int, int]:
        """Wait until all sent records are delivered, and return the target offset for each source offset.

        Raises DeliveryError if a record was rejected or timed out.
        """
        left = flush_producer(self._producer)
        if self._rejected is not None or left:
            why = str(self._rejected) if self._rejected is not None else f"{plural(left, 'record')} timed out"
            raise DeliveryError(f"not all records were delivered to {self._target.name}: {why}")
        delivered, self.delivered = self.delivered, {}
        return delivered


class MappedDelivery:
    """Transactional delivery to a partition, with an offset map.

    Use it as a context manager. A new instance fences older instances for the same target. `origin` is the
    text that its map entries get as their origin. Every method may raise KafkaException or DeliveryError.
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
        # This call fences older producers, and returns after their last transaction has ended.
        self._producer.init_transactions(TIMEOUT_SECONDS)
        self.last = self._last_entry()

    def __enter__(self) -> MappedDelivery:
        return self

    def __exit__(self, *_: object) -> None:
        # Discard queued records, because they belong to an aborted transaction.
        self._producer.purge()

    @property
    def next_offset(self) -> int | None:
        """The next source offset; None if the map has no entry of this job for the partition."""
        return None if self.last is None else self.last.end

    def _last_entry(self) -> MapEntry | None:
        target = self.target
        with closing(target.consumer()) as consumer:
            count = map_partition_count(consumer, target.topic + MAP_SUFFIX)
            if not count:
                raise DeliveryError(f"topic {target.topic}{MAP_SUFFIX} for the offset map does not exist")
            self._map_partition = map_partition_of(target.topic, target.partition, count)
            # Wait for open transactions of other jobs in this map partition, because they may precede the
            # last entry of this job.
            until = high_watermark(target.client, self._map_partition)
            return last_entry(consumer, self._map_partition, target.owns, until=until)

    def deliver(self, records: Iterable[Outgoing], start: int, end: int | None = None) -> int:
        """Deliver all records and return their number. They must begin at source offset `start` or later.

        `start` must be `next_offset`, unless that is None. If `end` is given, the map then covers all source
        offsets before `end`, even if there is a gap after the last record.
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
            raise DeliveryError(f"not all records were delivered to {self.target.name}: {error}") from error
        except BaseException:
            # Raise the first error, even if the abort fails, too. In that case the next producer with this
            # transactional id aborts the transaction.
            with suppress(KafkaException):
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
            why = failed[0].str() if failed else f"{plural(left, 'entry')} timed out"
            raise DeliveryError(f"the offset map {self._map_partition.topic} was not written: {why}")
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
    """Deliver the records of `records_from(offset)`. The offset is the end of the job's map, or else `start`.

    `check_continues` gets the origin in the map's last entry, and raises an error if that entry belongs to a
    delivery of other records. Returns the number of records that this call delivered, and the next source
    offset. Raises KafkaException or DeliveryError.
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
    """Yield the records of each transaction, and whether the transaction is the last one.

    Without `find_last`, the flag is always False. With `find_last`, this reads one transaction ahead.
    """
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
    """Deliver the records of `records_from(offset)` with the source's offsets, from the target's end on.

    Returns the number of records that this call delivered, and the next offset. Raises DeliveryError if the
    target ends before `start`, if the target's last record differs from the source's record at that offset,
    if the source has a gap, if a record is rejected, or if another program writes to the target. Raises
    KafkaException.
    """
    next_offset = end_offset(target)
    if next_offset < start:
        raise DeliveryError(
            f"{target.name} ends at offset {next_offset}, before the first offset {start} of the source"
        )
    _check_target_matches(target, records_from, next_offset)
    producer = Producer({**PRODUCER, **target.client, "enable.idempotence": True})
    sending = _PendingSends(producer, target)
    count = 0
    for part in _split_transactions(records_from(next_offset), target.transaction_records):
        for record in part:
            if record.source_offset != next_offset:
                raise DeliveryError(
                    f"{target.name} cannot have the source's offsets: the source has no offset between "
                    f'{next_offset - 1} and {record.source_offset}; set offsets to "map"'
                )
            sending.send(record)
            next_offset += 1
        for source, offset in sending.flush().items():
            if source != offset:
                raise DeliveryError(
                    f"offset {source} of the source became {offset} in {target.name}: another program "
                    f"writes to it"
                )
        count += len(part)
    return count, next_offset


def _check_target_matches(
    target: Target, records_from: Callable[[int], Iterable[Outgoing]], end: int
) -> None:
    """Raise DeliveryError if the target's last record differs from the source's record at that offset.

    `end` is the target's end offset.
    """
    expected = next(iter(records_from(end - 1)), None) if end else None
    if expected is None or expected.source_offset != end - 1:
        return  # The target is empty, or the source begins after the target's end.
    with closing(target.consumer()) as consumer:
        partition = TopicPartition(target.topic, target.partition)
        if watermarks(consumer, partition)[0] == end:
            return  # All records have been deleted.
        found = next(messages(consumer, partition, end - 1), None)
    if found is None or not _is_same(found, expected):
        raise DeliveryError(
            f"{target.name} differs from the source at offset {end - 1}: another program has written to it"
        )


def _is_same(found: Message, expected: Outgoing) -> bool:
    kind, timestamp_ms = found.timestamp()
    # A topic with LogAppendTime has replaced the timestamps, so do not compare them.
    return (found.key(), found.value()) == (expected.key, expected.value) and (
        kind != TIMESTAMP_CREATE_TIME or timestamp_ms == (expected.timestamp_ms or 1)
    )


def offset_map(target: Target) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of consecutive offsets in the job's map for this partition, in order.

    A run is (first source offset, first target offset, number of records). Raises KafkaException or
    DeliveryError.
    """
    with closing(target.consumer()) as consumer:
        for entry in all_entries(consumer, target.topic + MAP_SUFFIX, target.owns):
            yield from entry.runs
