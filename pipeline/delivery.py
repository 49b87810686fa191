"""Putting records into partitions of a topic so that each is there once, whatever is killed when.

Two ways, by whether the target's offsets are to be the source's:

*With a map.* Records go out in transactions. Each also commits, for a group that is the job's own, how far
the source was read (the committed offset of the target's partition is the next offset of the source's), and
writes into the topic `<topic>.offset-map` which offsets of the source became which of the target. What was
not committed was never there, so a job goes on where the last transaction ended.

*With the same offsets*, where the source has no gaps: then there is no room for the markers of transactions,
and no need for them either, since the target's end says how far one has come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

TRANSACTION_RECORDS: Final = 20_000
TRANSACTION_BYTES: Final = 16 << 20
TIMEOUT_SECONDS: Final = 60.0
MAP_SUFFIX: Final = ".offset-map"


class DeliveryError(Exception):
    """Records cannot be delivered as they should be; the message says which, and why."""


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

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def consumer(self) -> Consumer:
        """Someone to ask for offsets."""
        return Consumer(
            {
                **self.client,
                "group.id": self.job,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )


def progress(target: Target) -> int | None:
    """The next offset of the source, by what was committed; None if nothing ever was. KafkaException."""
    consumer = target.consumer()
    try:
        [found] = consumer.committed([TopicPartition(target.topic, target.partition)], TIMEOUT_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else int(found.offset)
    finally:
        consumer.close()


def end_offset(target: Target) -> int:
    """Where the target ends. KafkaException."""
    consumer = target.consumer()
    try:
        _, high = consumer.get_watermark_offsets(
            TopicPartition(target.topic, target.partition), TIMEOUT_SECONDS
        )
        return int(high)
    finally:
        consumer.close()


class _Runs:
    """Which offsets became which, neighbours as one."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        """First offset of the source, of the target, and how many."""

    def add(self, source: int, target: int) -> None:
        if self.runs:
            last = self.runs[-1]
            if (source, target) == (last[0] + last[2], last[1] + last[2]):
                last[2] += 1
                return
        self.runs.append([source, target, 1])


class _Sending:
    """Records handed to a producer, and what became of them."""

    def __init__(self, producer: Producer, target: Target) -> None:
        self._producer = producer
        self._target = target
        self.delivered: dict[int, int] = {}
        self.failed: KafkaError | None = None

    def send(self, record: Outgoing) -> None:
        def done(error: KafkaError | None, message: Message) -> None:
            # Called within poll and flush, so by one thread.
            if error is not None:
                self.failed = self.failed or error
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
                    timestamp=record.timestamp_ms,
                    on_delivery=done,
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def wait(self) -> dict[int, int]:
        """Offsets of the target by those of the source, when all is delivered. DeliveryError."""
        left = self._producer.flush(TIMEOUT_SECONDS)
        if self.failed is not None or left:
            why = self.failed.str() if self.failed is not None else f"{left} records got no answer"
            raise DeliveryError(f"{self._target.name} did not take all records: {why}")
        delivered, self.delivered = self.delivered, {}
        return delivered


def deliver_with_map(
    target: Target, records_from: Callable[[int], Iterable[Outgoing]], start: int
) -> tuple[int, int]:
    """Deliver what `records_from(offset)` gives, from the job's progress on, or else from `start`.

    Gives how many records went out now, and the next offset of the source. KafkaException, DeliveryError.
    """
    producer = Producer(
        {
            **target.client,
            "transactional.id": f"{target.job}-{target.name}",
            "transaction.timeout.ms": 60_000,
            "linger.ms": 20,
            "compression.type": "lz4",
        }
    )
    producer.init_transactions(TIMEOUT_SECONDS)  # and whoever else had this name is fenced
    next_offset = progress(target)
    next_offset = start if next_offset is None else next_offset
    group = target.consumer()
    count = 0
    try:
        for part in _parts(records_from(next_offset)):
            producer.begin_transaction()
            try:
                sending = _Sending(producer, target)
                for record in part:
                    sending.send(record)
                _write_map(producer, target, sending.wait())
                next_offset = part[-1].source_offset + 1
                producer.send_offsets_to_transaction(
                    [TopicPartition(target.topic, target.partition, next_offset)],
                    group.consumer_group_metadata(),
                    TIMEOUT_SECONDS,
                )
                producer.commit_transaction(TIMEOUT_SECONDS)
            except BaseException:
                producer.abort_transaction(TIMEOUT_SECONDS)
                raise
            count += len(part)
    finally:
        group.close()
    return count, next_offset


def _parts(records: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    part: list[Outgoing] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if len(part) >= TRANSACTION_RECORDS or size >= TRANSACTION_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _write_map(producer: Producer, target: Target, delivered: dict[int, int]) -> None:
    runs = _Runs()
    for source, offset in sorted(delivered.items()):
        runs.add(source, offset)
    for first, offset, count in runs.runs:
        told = {"source": first, "target": offset, "count": count}
        producer.produce(
            target.topic + MAP_SUFFIX,
            key=f"{target.job}/{target.partition}/{first}".encode(),
            value=json.dumps(told).encode(),
        )
        producer.poll(0)


def deliver_in_place(
    target: Target, records_from: Callable[[int], Iterable[Outgoing]], start: int
) -> tuple[int, int]:
    """Deliver what `records_from(offset)` gives, each under its own offset, from the target's end on.

    DeliveryError where the source has a gap, where the target holds something else, or somebody else writes.
    """
    next_offset = end_offset(target)
    if next_offset < start:
        raise DeliveryError(f"{target.name} ends at offset {next_offset}, and the first to come is {start}")
    producer = Producer(
        {**target.client, "enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4"}
    )
    sending = _Sending(producer, target)
    count = 0
    for part in _parts(records_from(next_offset)):
        for record in part:
            if record.source_offset != next_offset:
                raise DeliveryError(
                    f"{target.name} cannot get the source's offsets: after {next_offset - 1} comes "
                    f"{record.source_offset}"
                )
            sending.send(record)
            next_offset += 1
        for source, offset in sending.wait().items():
            if source != offset:
                raise DeliveryError(
                    f"{target.name} took offset {source} of the source as {offset}: somebody else "
                    f"writes into it"
                )
        count += len(part)
    return count, next_offset


def offset_map(target: Target) -> Iterator[tuple[int, int, int]]:
    """The map of a partition: first offset of the source, of the target, and how many. KafkaException."""
    consumer = target.consumer()
    topic = target.topic + MAP_SUFFIX
    try:
        about = consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
        for partition in about.partitions:
            yield from _map_in(consumer, target, topic, partition)
    finally:
        consumer.close()


def _map_in(consumer: Any, target: Target, topic: str, partition: int) -> Iterator[tuple[int, int, int]]:
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    prefix = f"{target.job}/{target.partition}/".encode()
    while True:
        message = consumer.poll(TIMEOUT_SECONDS)
        if message is None:
            raise DeliveryError(f"{topic}-{partition} cannot be read to its end")
        if message.error() is not None:
            if message.error().code() == KafkaError._PARTITION_EOF:
                return
            raise KafkaException(message.error())
        if message.key().startswith(prefix):
            told = json.loads(message.value())
            yield told["source"], told["target"], told["count"]
