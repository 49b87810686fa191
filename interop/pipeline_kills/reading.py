"""Readers of topics, archives and offset maps that use neither the pipeline's code nor Spark."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

READ_S = 90.0
"""The time limit for reading a topic, in seconds. An open transaction blocks a reader until this limit."""


class Record(NamedTuple):
    """A record, as a consumer receives it."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 for CreateTime, 1 for LogAppendTime."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """The fields of a record that every copy must preserve."""
        return self.timestamp_ms, self.key, self.value, self.headers


Partition = tuple[str, int]
"""A topic name and a partition number."""
Records = dict[Partition, list[Record]]


class Unreadable(Exception):
    """A topic, file or entry cannot be read. The message says which one and why."""


def read_topics(bootstrap: str, topics: Sequence[str]) -> Records:
    """Return the committed records of topics by partition.

    Raises Unreadable if a partition cannot be read to its end within READ_S.
    """
    ends = read_ends(bootstrap, topics)
    consumer = _consumer(bootstrap, "read_committed")
    try:
        return {place: _read_partition(consumer, *place, end) for place, end in ends.items()}
    except KafkaException as error:
        raise Unreadable(f"{', '.join(topics)}: {error}") from None
    finally:
        consumer.close()


def read_ends(bootstrap: str, topics: Sequence[str]) -> dict[Partition, int]:
    """Return the end offset of each partition, which counts markers and open transactions.

    Raises Unreadable if the broker returns an error for a topic.
    """
    consumer = _consumer(bootstrap, "read_uncommitted")
    try:
        found = {}
        for topic in topics:
            about = consumer.list_topics(topic, 30).topics[topic]
            if about.error is not None:
                raise Unreadable(f"{topic}: {about.error.str()}")
            for partition in sorted(about.partitions):
                _, found[topic, partition] = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), 30
                )
        return found
    except KafkaException as error:
        raise Unreadable(f"{', '.join(topics)}: {error}") from None
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )


def _read_partition(consumer: Consumer, topic: str, partition: int, end: int) -> list[Record]:
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Record] = []
    deadline = time.monotonic() + READ_S
    while time.monotonic() < deadline:
        for message in consumer.consume(5_000, 0.1):
            error = message.error()
            if error is None:
                kind, time_ms = message.timestamp()
                headers = tuple(message.headers() or ())
                found.append(
                    Record(message.offset(), time_ms, kind - 1, message.key(), message.value(), headers)
                )
            elif error.code() != KafkaError._PARTITION_EOF:
                raise Unreadable(f"{topic}-{partition}: {error.str()}")
            elif (message.offset() or 0) >= end:
                return found
    raise Unreadable(f"{topic}-{partition} cannot be read to its end, {end}: a transaction is open there")


class Listed(NamedTuple):
    """A file, as a manifest describes it."""

    path: str
    topic: str
    partition: int
    date: str
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int
    sha256: str


class Manifest(NamedTuple):
    """The manifest of one commit to an archive."""

    number: int
    ranges: dict[Partition, tuple[int, int]]
    """The archived offsets by partition. It is empty if the commit only compacted files."""
    files: list[Listed]
    replaced: list[str]


def read_manifests(archive: Path) -> list[Manifest]:
    """Return all manifests in the order of their numbers. Raises Unreadable if one is malformed."""
    found = []
    for path in sorted((archive / "_manifests").glob("*.json")):
        try:
            described = json.loads(path.read_text(encoding="utf-8"))
            ranges = {
                (topic, int(partition)): (start, end)
                for topic, partitions in described["ranges"].items()
                for partition, (start, end) in partitions.items()
                if described["batch_id"] >= 0
            }
            files = [Listed(*(file[name] for name in Listed._fields)) for file in described["files"]]
            found.append(Manifest(int(path.stem), ranges, files, described["replaced"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{path}: {error!r}") from None
    return found


def read_parquet(path: Path) -> list[Record]:
    """Return the records of a Parquet file of an archive. Raises Unreadable if the file is malformed."""
    try:
        # Read a single file, because a data set would add columns for the directory names.
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise Unreadable(f"{path}: {error}") from None
    times = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    rows = zip(
        table.column("offset").to_pylist(),
        times,
        table.column("timestampType").to_pylist(),
        table.column("key").to_pylist(),
        table.column("value").to_pylist(),
        table.column("headers").to_pylist(),
        strict=True,
    )
    return [
        Record(
            offset,
            # Kafka's timestamps are whole milliseconds. Other values stay as they are, so that they differ.
            time_us // 1000 if time_us % 1000 == 0 else time_us,
            kind,
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, time_us, kind, key, value, headers in rows
    ]


class Entry(NamedTuple):
    """An entry of a mirror's offset map: a range of source offsets, with target offsets."""

    source: int
    end: int
    pairs: list[tuple[int, int]]


def read_entries(records: Records, wanted_partition: int, wanted_job: str) -> list[Entry]:
    """Return the entries of a job and partition in an offset map, which maps source to target offsets.

    Raises Unreadable if an entry is malformed.
    """
    found = []
    for place in records.values():
        for record in place:
            try:
                job, partition, _ = (record.key or b"").decode().rsplit("/", 2)
                if (job, int(partition)) != (wanted_job, wanted_partition):
                    continue
                described = json.loads(record.value or b"")
                source, target = described["source"], described["target"]
                pairs: list[tuple[int, int]] = []
                numbers = described["runs"]
                for at in range(0, len(numbers), 3):
                    source, target = source + numbers[at], target + numbers[at + 1]
                    pairs += [(source + step, target + step) for step in range(numbers[at + 2])]
                    source, target = source + numbers[at + 2], target + numbers[at + 2]
                found.append(Entry(described["source"], described["end"], pairs))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise Unreadable(f"entry {record.key!r} of an offset map: {error!r}") from None
    return found
