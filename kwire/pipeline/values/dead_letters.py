"""Dead letters: undecodable records in a separate topic, unchanged, with headers that describe the error.

The job delivers the dead letters of a micro-batch after it has written the files and before it commits them.
Each source partition has its own transactions and offset map (`pipeline/delivery.py`). A repeated micro-batch
continues after the records that were delivered, so each record is in the topic once. A dead letter has the
time of its delivery as the timestamp, because retention would delete records with old timestamps at once. A
header has the original timestamp.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kwire.pipeline.archive.manifest import ArchiveError, DataFile
from kwire.pipeline.archive.reading import by_partition
from kwire.pipeline.delivery import MappedDelivery, Outgoing, Target
from kwire.pipeline.offset_map import MAP_SUFFIX, TIMEOUT_SECONDS
from kwire.pipeline.topics import create
from kwire.pipeline.values.decoder import DATA_ERROR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = ["offset", "timestamp", "key", "value", "headers", DATA_ERROR]
SETTINGS: Final = {"retention.ms": "-1", "max.message.bytes": str(256 << 20)}
PARTITIONS: Final = 4
PREFIX: Final = "kwire."


class DeadLetters(NamedTuple):
    """The dead-letter topic of a job."""

    client: Mapping[str, str]
    topic: str
    partitions: int
    job: str

    @classmethod
    def of(cls, client: Mapping[str, str], topic: str, job: str) -> DeadLetters:
        """Create the topic and its offset map if they do not exist. `job` owns the entries of the map.

        Raises KafkaException.
        """
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(dict(client))
        known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        if topic not in known:
            create(admin, {topic: PARTITIONS}, SETTINGS)
        if topic + MAP_SUFFIX not in known:
            create(admin, {topic + MAP_SUFFIX: 1}, {"cleanup.policy": "compact"})
        count = len(admin.list_topics(topic, TIMEOUT_SECONDS).topics[topic].partitions) or PARTITIONS
        return cls(dict(client), topic, count, job)

    def target(self, topic: str, partition: int) -> Target:
        """Return the delivery target for the dead letters of a source partition."""
        name = f"{self.job}.{topic}.{partition}"
        return Target(dict(self.client), self.topic, partition % self.partitions, name)


def check_output_topic(topic: str, files: Iterable[DataFile]) -> None:
    """Raise ArchiveError if the job would read its dead letters as input."""
    if any(file.topic == topic for file in files):
        raise ArchiveError(f"values.dead_letter {topic} is also a topic of the input: choose another topic")


def deliver(spark: SparkSession, letters: DeadLetters, staging_dir: Path, files: Sequence[DataFile]) -> int:
    """Deliver the undecodable records of staged files, and return how many records this call delivered.

    Raises ArchiveError, KafkaException or DeliveryError.
    """
    check_output_topic(letters.topic, files)
    tasks = list(by_partition(files).values())
    if not tasks:
        return 0
    count: int = (
        spark.sparkContext.parallelize(tasks, len(tasks))
        .map(partial(deliver_partition, letters, staging_dir))
        .sum()
    )
    return count


def deliver_partition(letters: DeadLetters, staging_dir: Path, files: Sequence[DataFile]) -> int:
    """Deliver the undecodable records in the files of one partition, and return how many this call delivered.

    Sends no requests if there are no such records. Raises KafkaException or DeliveryError.
    """
    if next(undecodable(staging_dir, files, 0), None) is None:
        return 0
    start = min(file.first_offset for file in files)
    with MappedDelivery(letters.target(files[0].topic, files[0].partition)) as delivery:
        begin = start if delivery.next_offset is None else delivery.next_offset
        return delivery.deliver(undecodable(staging_dir, files, begin), begin)


def undecodable(staging_dir: Path, files: Sequence[DataFile], start: int) -> Iterator[Outgoing]:
    """Yield the undecodable records of a partition from offset `start` on, in offset order."""
    streams = [_of_file(staging_dir / file.path, file, start) for file in files]
    return heapq.merge(*streams, key=attrgetter("source_offset"))


def _of_file(path: Path, file: DataFile, start: int) -> Iterator[Outgoing]:
    # Read INT96, which older files have, as milliseconds. The default, nanoseconds, ends in the year 2262.
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="ms") as opened:
        position = next(
            number
            for number in range(opened.metadata.num_columns)
            if opened.metadata.schema.column(number).path == DATA_ERROR
        )
        for group in range(opened.num_row_groups):
            about = opened.metadata.row_group(group)
            statistics = about.column(position).statistics
            if statistics is not None and statistics.null_count == about.num_rows:
                continue
            for rows in opened.iter_batches(1024, row_groups=[group], columns=COLUMNS):
                yield from _of_rows(rows, file, start)


def _of_rows(rows: pa.RecordBatch, file: DataFile, start: int) -> Iterator[Outgoing]:
    rows = rows.filter(
        pc.and_(pc.is_valid(rows.column(DATA_ERROR)), pc.greater_equal(rows.column("offset"), start))
    )
    now_ms = time.time_ns() // 1_000_000
    times = rows.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    for row, timestamp_ms in zip(rows.to_pylist(), times, strict=True):
        why = {
            "error": row[DATA_ERROR],
            "topic": file.topic,
            "partition": file.partition,
            "offset": row["offset"],
            "timestamp": timestamp_ms,
        }
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        headers += [(PREFIX + key, str(value).encode()) for key, value in why.items()]
        yield Outgoing(row["offset"], now_ms, row["key"], row["value"], headers)
