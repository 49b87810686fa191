"""Archiving of a data directory without the JVM: tasks read segments and write Parquet files with Arrow.

The files have the same columns, types and directories (topic, date, partition) as files that Spark writes.
Each file is in offset order and has at most `records_per_file` records.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kwire.pipeline.archive.manifest import DataFile
from kwire.pipeline.archive.staging import describe_file
from kwire.pipeline.segments.plan import Range
from kwire.pipeline.segments.read import SCHEMA_WITH_HEADERS, read

ROW_GROUP_BYTES: Final = 32 << 20
MAX_BUFFERED_BYTES: Final = 64 << 20
"""The maximum size of the records that a task buffers, in total for all dates."""
BATCH_OVERHEAD_BYTES: Final = 4096
"""The approximate memory overhead of a buffered Arrow batch."""
MAX_OPEN_FILES: Final = 256
US_PER_DAY: Final = 24 * 60 * 60 * 1_000_000
DONE: Final = "_SUCCESS"
"""The name of the empty file that marks a complete directory. Spark uses the same name."""


def write_ranges(
    staging_dir: str,
    ranges: Sequence[Range],
    columns: tuple[str, ...],
    compression: str,
    records_per_file: int,
) -> list[DataFile]:
    """Write the records of ranges to durable files in a staging directory. Raises SegmentsError.

    Spark calls this function on executors, possibly several times for the same ranges. File names are unique
    to a call, and only the returned files become part of the archive. The ranges of a partition must be
    adjacent and in ascending order.
    """
    schema = pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in columns])
    found = []
    for (topic, partition), of_partition in groupby(ranges, lambda range_: (range_.topic, range_.partition)):
        with DateFiles(staging_dir, topic, partition, schema, compression, records_per_file) as dates:
            for range_ in of_partition:
                for batch in read(range_, columns=columns):
                    dates.add(batch)
        found += [describe_file(staging_dir, path) for path in dates.paths]
    return found


class DateFiles:
    """A writer for one partition, with separate files for each date of its records."""

    def __init__(
        self,
        staging_dir: str,
        topic: str,
        partition: int,
        schema: pa.Schema,
        compression: str,
        records_per_file: int,
        *,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> None:
        self.paths: list[str] = []
        """Paths of the new files, relative to the staging directory. They are complete after `__exit__`."""
        self._staging_dir = Path(staging_dir)
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._compression = compression
        self._records_per_file = records_per_file
        self._most_held_bytes = max_buffered_bytes
        self._most_open_files = max_open_files
        self._attempt = uuid.uuid4().hex[:8]
        self._buffers: dict[int, _Buffer] = {}
        self._open: dict[int, _File] = {}
        """Open files, in the order of their last write."""

    def __enter__(self) -> DateFiles:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for day in list(self._buffers):
                self._flush(day)
        for day in list(self._open):
            self._open.pop(day).writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records. Their offsets must follow those of earlier records."""
        for day, part in split_by_day(batch):
            buffer = self._buffers.setdefault(day, _Buffer())
            buffer.add(part)
            if buffer.size_bytes >= ROW_GROUP_BYTES:
                self._flush(day)
        while sum(buffer.size_bytes for buffer in self._buffers.values()) > self._most_held_bytes:
            self._flush(max(self._buffers, key=lambda day: self._buffers[day].size_bytes))

    def _flush(self, day: int) -> None:
        """Write the buffered records of a day as row groups of one or more files."""
        table = pa.Table.from_batches(self._buffers.pop(day).batches)
        at = 0
        while at < table.num_rows:
            file = self._file(day)
            count = min(table.num_rows - at, self._records_per_file - file.records)
            file.writer.write_table(table.slice(at, count), row_group_size=count)
            file.records += count
            at += count
            if file.records == self._records_per_file:
                self._open.pop(day).writer.close()

    def _file(self, day: int) -> _File:
        file = self._open.pop(day, None)
        if file is None:
            while len(self._open) >= self._most_open_files:
                self._open.pop(next(iter(self._open))).writer.close()
            path = (
                f"topic={self._topic}/date={date_of(day)}/partition={self._partition}/"
                f"part-{self._attempt}-{len(self.paths):05d}.parquet"
            )
            (self._staging_dir / path).parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(self._staging_dir / path, self._schema, compression=self._compression)
            file = _File(writer)
            self.paths.append(path)
        self._open[day] = file
        return file


class _Buffer:
    """Records of one date that are buffered until they fill a row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.nbytes + BATCH_OVERHEAD_BYTES


class _File:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer = writer
        self.records = 0


def split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each UTC date, as days since 1970-01-01, with the records of that date in their order."""
    if not batch.num_rows:
        return
    micros: Any = batch.column("timestamp").view(pa.int64())
    ends = pc.min_max(micros)
    first, last = ends["min"].as_py() // US_PER_DAY, ends["max"].as_py() // US_PER_DAY
    if first == last:
        yield first, batch
        return
    days = micros.to_numpy() // US_PER_DAY
    order = np.argsort(days, kind="stable")
    found, begins = np.unique(days[order], return_index=True)
    for day, of_day in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
        yield day, batch.take(pa.array(of_day))


def date_of(day: int) -> str:
    """Format a date as Spark does, with a sign for years of more than four digits.

    `day` is in days since 1970-01-01.
    """
    date = str(np.datetime64(day, "D"))
    return f"+{date}" if len(date) > len("2026-01-31") and not date.startswith("-") else date
