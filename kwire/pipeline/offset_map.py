# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,no-untyped-call"
"""The offset map of a target topic, which maps source offsets to target offsets.

The map is a topic, `<target>.offset-map`. MirrorMaker's offset syncs serve the same purpose. Each transaction
that delivers records also writes one entry for a range of source offsets (more entries if the source has many
gaps). Each range begins where the previous range ends, so the last entry of a partition is the job's
progress.

The records of a range form runs of consecutive offsets. An offset of the range that is in no run is a gap: a
compacted or aborted record, or a transaction marker.

An entry is JSON. Each run takes three numbers in `runs`: the number of source offsets skipped before the run,
the number of target offsets skipped before the run, and the number of records in the run.

    key    mirror/3/120                                  job, partition, first offset of the range
    value  {"source": 120, "end": 140, "target": 90, "runs": [0, 0, 5, 10, 0, 4], "origin": "..."}

Here source offsets 120 to 124 became target offsets 90 to 94, and 135 to 138 became 95 to 98. Source offsets
125 to 134 and 139 are gaps.
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
"""The time to wait for the result of a request. The request's own timeout is shorter, and its error names the
cause."""
PAUSE_SECONDS: Final = 0.1
RETRIABLE_ERRORS: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
)
"""Errors that disappear when the client has found a new leader and the leader serves the partition."""
RUNS_PER_ENTRY: Final = 10_000
"""The maximum number of runs in an entry, so that an entry is far smaller than max.message.bytes."""
FIRST_LOOKBACK: Final = 16
"""The number of offsets before a map partition's end that the search for a job's last entry first reads."""


class DeliveryError(Exception):
    """Records cannot be delivered as requested. The message has the reason."""


class OffsetRun(NamedTuple):
    """Consecutive source offsets that became consecutive target offsets."""

    source: int
    target: int
    records: int


class MapEntry(NamedTuple):
    """An entry of the map: the target offsets of a range of source offsets."""

    job: str
    partition: int
    source: int
    end: int
    """The source offset after the range, at which the next entry's range begins."""
    target: int
    """The target offset of the first record. Without records: the target's next offset, or -1 if unknown."""
    runs: tuple[OffsetRun, ...]
    origin: str
    """The text of the source topic's Origin or Selection; empty if the job does not check the source."""

    @property
    def next_target(self) -> int:
        """The target offset after the last record of the range."""
        return self.runs[-1].target + self.runs[-1].records if self.runs else self.target

    def encode(self) -> tuple[bytes, bytes]:
        """Return the key and the value of the entry's record."""
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
        """Decode an entry's record. Raises DeliveryError if the record is not an entry of an offset map.

        `where` names the record in the error.
        """
        try:
            job, partition, _ = (key or b"").decode().rsplit("/", 2)
            content = json.loads(value or b"")
            source, target, numbers = int(content["source"]), int(content["target"]), content["runs"]
            next_source, next_target = source, target
            runs = []
            for skipped, jumped, count in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
                run = OffsetRun(next_source + skipped, next_target + jumped, count)
                runs.append(run)
                next_source, next_target = run.source + count, run.target + count
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
                f"{where} is not an entry of an offset map: does another program write to this topic?"
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
    """Yield new entries that cover the source offsets from `start` to before `end`.

    `delivered` has the source and target offset of each record, in ascending order. `next_target` is the
    target's next offset, or -1 if it is unknown; the entry of a range without records has this offset.
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
        first_target = part[0].target if part else next_target
        yield MapEntry(job, partition, start, entry_end, first_target, part, origin)
        start = entry_end


def committed_reader(client: dict[str, str], group: str) -> Consumer:
    """Return a read_committed consumer that reports when it has reached the end of a partition."""
    return Consumer(
        {
            **client,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # Do not wait for new records, because the reader stops at the end.
            "fetch.wait.max.ms": 10,
        }
    )


def map_partition_count(consumer: Consumer, topic: str) -> int:
    """Return the number of partitions of a map's topic, or 0 if the topic does not exist.

    Raises KafkaException.
    """
    found = consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
    if found.error is not None and found.error.code() not in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
    ):
        raise KafkaException(found.error)
    return len(found.partitions)


def map_partition_of(topic: str, partition: int, count: int) -> TopicPartition:
    """Return the map partition with the entries of a target partition.

    Its number is `partition` modulo `count`, the number of partitions of the map.
    """
    return TopicPartition(topic + MAP_SUFFIX, partition % count)


def last_entry(
    consumer: Consumer,
    map_partition: TopicPartition,
    wanted: Callable[[MapEntry], bool] = lambda _: True,
    *,
    until: int | None = None,
) -> MapEntry | None:
    """Return the last entry in a map partition for which `wanted` returns true, or None.

    If `until` is given, the function first waits until every transaction before that offset has ended. Raises
    KafkaException, or DeliveryError if the wait times out or a record is not an entry.
    """
    low, end = watermarks(consumer, map_partition)
    end = max(end, until or 0)
    lookback = FIRST_LOOKBACK
    while True:
        start = max(low, end - lookback)
        found = None
        for message in messages(consumer, map_partition, start, until=until):
            entry = decode_entry(message)
            if wanted(entry):
                found = entry
        if found is not None or start <= low:
            return found
        lookback *= 8


def decode_entry(message: Message) -> MapEntry:
    """Decode an entry. Raises DeliveryError if the message is not an entry; the error has its offset."""
    where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
    return MapEntry.decode(message.key(), message.value(), where)


def messages(
    consumer: Consumer, partition: TopicPartition, start: int, *, until: int | None = None
) -> Iterator[Message]:
    """Yield the committed records of a partition from offset `start` to the last stable offset.

    If `until` is given, the function waits until the last stable offset is at least `until`. Raises
    KafkaException, or DeliveryError if nothing arrives in TIMEOUT_SECONDS.
    """
    consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
    while True:
        message = consumer.poll(TIMEOUT_SECONDS)
        name = f"{partition.topic}-{partition.partition}"
        if message is None:
            raise DeliveryError(f"{name} cannot be read to its end: another program's transaction is open")
        error = message.error()
        if error is None:
            yield message
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif until is None or (message.offset() or 0) >= until:
            return


def watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return a partition's log start offset and high watermark. Raises KafkaException.

    Retries for up to TIMEOUT_SECONDS while the leader of a new partition does not serve the partition yet,
    and while the client still sends requests to a failed leader.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in RETRIABLE_ERRORS or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return int(low), int(high)


def high_watermark(client: dict[str, str], partition: TopicPartition) -> int:
    """Return a partition's high watermark, which does not depend on open transactions.

    Raises KafkaException.
    """
    # Lower the log level, because at level 6 the client logs each termination.
    admin = AdminClient({"log_level": "5", **client})
    [future] = admin.list_offsets(
        {TopicPartition(partition.topic, partition.partition): OffsetSpec.latest()},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    ).values()
    return int(future.result(TIMEOUT_SECONDS).offset)


def all_entries(consumer: Consumer, topic: str, wanted: Callable[[MapEntry], bool]) -> Iterator[MapEntry]:
    """Yield the entries of a map's topic for which `wanted` returns true, partition by partition in order.

    Raises KafkaException or DeliveryError.
    """
    for partition in range(map_partition_count(consumer, topic)):
        for message in messages(consumer, TopicPartition(topic, partition), OFFSET_BEGINNING):
            entry = decode_entry(message)
            if wanted(entry):
                yield entry
