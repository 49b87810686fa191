# The client's own annotations are partial.
# mypy: disable-error-code="attr-defined,no-untyped-call"
"""Which offsets of a source became which of a target: the records of a topic `<target>.offset-map`.

Each transaction that delivers records writes one entry (more, where the source is full of holes) about a
range of the source's offsets, and each range begins where the one before ended. So the last entry of a
partition says how far one has come, and an offset within a range that no run has is a gap: compacted away,
aborted, or a transaction's marker.

An entry is JSON. Of `runs`, each three numbers are one run: how many offsets of the source are left out, how
many of the target, and how many records follow in both.

    key    mirror/3/120                                  job, partition, first offset of the range
    value  {"source": 120, "end": 140, "target": 90, "runs": [0, 0, 5, 10, 0, 4], "origin": "..."}

Here 120 to 124 became 90 to 94, 125 to 134 were not there, 135 to 138 became 95 to 98, and 139 was not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

MAP_SUFFIX: Final = ".offset-map"
TIMEOUT_SECONDS: Final = 60.0
RESULT_TIMEOUT_SECONDS: Final = TIMEOUT_SECONDS + 10
"""How long to wait for what the client is to say by itself: what it says of a timeout is better than ours."""
PAUSE_SECONDS: Final = 0.1
RETRIABLE_ERRORS: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
)
"""What passes when a partition's leader has taken it over, or the client knows who is the next one."""
RUNS_PER_ENTRY: Final = 10_000
"""Keeps an entry far below the size of a record that any topic takes."""
FIRST_LOOKBACK: Final = 16
"""How many offsets before the end of a map its last entry is looked for first."""


class DeliveryError(Exception):
    """Records cannot be delivered as they should be; the message says which, and why."""


class OffsetRun(NamedTuple):
    """Offsets that became others, one after the other."""

    source: int
    target: int
    records: int


class MapEntry(NamedTuple):
    """What became of a range of the source's offsets."""

    job: str
    partition: int
    source: int
    end: int
    """The next offset of the source: that of the next entry."""
    target: int
    """Where the first record of the range went, or would have gone; -1 if there has been none as yet."""
    runs: tuple[OffsetRun, ...]
    origin: str
    """What the source is; empty where nobody has to know."""

    @property
    def next_target(self) -> int:
        """What follows the last record in the target."""
        return self.runs[-1].target + self.runs[-1].records if self.runs else self.target

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value of the record."""
        numbers: list[int] = []
        source, target = self.source, self.target
        for run in self.runs:
            numbers += (run.source - source, run.target - target, run.records)
            source, target = run.source + run.records, run.target + run.records
        content: dict[str, Any] = {"source": self.source, "end": self.end, "target": self.target}
        if self.origin:
            content["origin"] = self.origin
        content["runs"] = numbers
        key = f"{self.job}/{self.partition}/{self.source}"
        return key.encode(), json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None, where: str) -> MapEntry:
        """DeliveryError where that is no entry of a map."""
        try:
            job, partition, _ = (key or b"").decode().rsplit("/", 2)
            content = json.loads(value or b"")
            source, target, numbers = int(content["source"]), int(content["target"]), content["runs"]
            first, place = source, target
            runs = []
            for skipped, jumped, count in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
                run = OffsetRun(first + skipped, place + jumped, count)
                runs.append(run)
                first, place = run.source + count, run.target + count
            return cls(
                job,
                int(partition),
                source,
                int(content["end"]),
                target,
                tuple(runs),
                content.get("origin", ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DeliveryError(
                f"{where} is no entry of an offset map: does that topic belong to others?"
            ) from None


def entries(
    job: str,
    partition: int,
    start: int,
    end: int,
    delivered: Iterable[tuple[int, int]],
    *,
    next_target: int = -1,
    origin: str = "",
) -> Iterator[MapEntry]:
    """The entries for the source's offsets from `start` to `end`, of pairs of offsets in their order.

    `next_target` is where the target went on before, for ranges in which there is nothing.
    """
    runs: list[list[int]] = []
    for source, target in delivered:
        if runs and (source, target) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([source, target, 1])
    for first in range(0, max(1, len(runs)), RUNS_PER_ENTRY):
        part = tuple(OffsetRun(*run) for run in runs[first : first + RUNS_PER_ENTRY])
        entry_end = runs[first + RUNS_PER_ENTRY][0] if first + RUNS_PER_ENTRY < len(runs) else end
        place = part[0].target if part else next_target
        yield MapEntry(job, partition, start, entry_end, place, part, origin)
        start = entry_end


def committed_reader(client: dict[str, str], group: str) -> Consumer:
    """Someone who reads what is committed, and is told where it ends."""
    return Consumer(
        {
            **client,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # What is asked for is there already, or the end is what is to be learnt.
            "fetch.wait.max.ms": 10,
        }
    )


def map_partition_count(consumer: Consumer, topic: str) -> int:
    """How many partitions a map has; 0 if it is not there. KafkaException."""
    found = consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
    if found.error is not None and found.error.code() not in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
    ):
        raise KafkaException(found.error)
    return len(found.partitions)


def map_partition_of(topic: str, partition: int, count: int) -> TopicPartition:
    """Where the entries of a target's partition are: in the partition of the same number, if there is."""
    return TopicPartition(topic + MAP_SUFFIX, partition % count)


def last_entry(
    consumer: Consumer,
    place: TopicPartition,
    wanted: Callable[[MapEntry], bool] = lambda _: True,
    *,
    until: int | None = None,
) -> MapEntry | None:
    """The last entry in a partition of a map that is wanted. KafkaException, DeliveryError.

    With `until`, everything before that offset has to be committed or aborted first.
    """
    low, end = watermarks(consumer, place)
    end = max(end, until or 0)
    lookback = FIRST_LOOKBACK
    while True:
        start = max(low, end - lookback)
        found = None
        for message in messages(consumer, place, start, until=until):
            entry = decode_entry(message)
            if wanted(entry):
                found = entry
        if found is not None or start <= low:
            return found
        lookback *= 8


def decode_entry(message: Message) -> MapEntry:
    """DeliveryError."""
    where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
    return MapEntry.decode(message.key(), message.value(), where)


def messages(
    consumer: Consumer, place: TopicPartition, start: int, *, until: int | None = None
) -> Iterator[Message]:
    """What is committed in a partition from an offset to its end. KafkaException, DeliveryError.

    With `until`, the end is not taken for it before that offset is reached.
    """
    consumer.assign([TopicPartition(place.topic, place.partition, start)])
    while True:
        message = consumer.poll(TIMEOUT_SECONDS)
        name = f"{place.topic}-{place.partition}"
        if message is None:
            raise DeliveryError(f"{name} cannot be read to its end: a transaction of others is open there")
        error = message.error()
        if error is None:
            yield message
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif until is None or (message.offset() or 0) >= until:
            return


def watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Where a partition begins, and its high watermark. KafkaException.

    A partition that was made just now may be known to the cluster before its leader knows of it; one whose
    leader has died, to the client as his for a moment longer.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in RETRIABLE_ERRORS or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return int(low), int(high)


def high_watermark(client: dict[str, str], place: TopicPartition) -> int:
    """Where a partition ends, open transactions and all. KafkaException."""
    # It says at level 6 that it goes before all was told to it, as it does here each time.
    admin = AdminClient({"log_level": "5", **client})
    [future] = admin.list_offsets(
        {TopicPartition(place.topic, place.partition): OffsetSpec.latest()},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    ).values()
    return int(future.result(TIMEOUT_SECONDS).offset)


def all_entries(consumer: Consumer, topic: str, wanted: Callable[[MapEntry], bool]) -> Iterator[MapEntry]:
    """The entries of a map that are wanted, in the order of each of its partitions."""
    for partition in range(map_partition_count(consumer, topic)):
        for message in messages(consumer, TopicPartition(topic, partition), OFFSET_BEGINNING):
            entry = decode_entry(message)
            if wanted(entry):
                yield entry
