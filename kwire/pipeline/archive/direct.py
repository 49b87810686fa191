"""A step of an archive of a data directory: tasks read segments and write Parquet themselves.

What is decoded into Arrow columns goes into files as it is, and nothing of it to the JVM and back. The files
are what Spark would have written: the same columns of the same types, by topic, date and partition, each in
the order of its offsets, with no more records than were asked for.
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
from kwire.pipeline.archive.staging import describe
from kwire.pipeline.segments.plan import Range
from kwire.pipeline.segments.read import SCHEMA_WITH_HEADERS, read

ROW_GROUP_BYTES: Final = 32 << 20
MOST_HELD_BYTES: Final = 64 << 20
"""So much a task holds back for row groups, of all dates together."""
PART_BYTES: Final = 4096
"""What a few records of a day cost beside their bytes, as a batch of their own."""
MOST_OPEN_FILES: Final = 256
US_A_DAY: Final = 24 * 60 * 60 * 1_000_000
DONE: Final = "_SUCCESS"
"""What Spark leaves in a directory that is written, and so does this."""


def write_ranges(
    place: str, ranges: Sequence[Range], columns: tuple[str, ...], compression: str, records_per_file: int
) -> list[DataFile]:
    """Write the records of ranges below a staging place, and make them durable; the files. SegmentsError.

    Runs where Spark likes, perhaps more than once: no two runs give a file the same name, and those that
    are not described do not count. Ranges of one partition are neighbours, and ascend.
    """
    schema = pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in columns])
    found = []
    for (topic, partition), of_partition in groupby(ranges, lambda range_: (range_.topic, range_.partition)):
        with Dates(place, topic, partition, schema, compression, records_per_file) as dates:
            for range_ in of_partition:
                for batch in read(range_, columns=columns):
                    dates.add(batch)
        found += [describe(place, path) for path in dates.paths]
    return found


class Dates:
    """Files of one partition, by the dates of records."""

    def __init__(
        self,
        place: str,
        topic: str,
        partition: int,
        schema: pa.Schema,
        compression: str,
        records_per_file: int,
        *,
        most_held_bytes: int = MOST_HELD_BYTES,
        most_open_files: int = MOST_OPEN_FILES,
    ) -> None:
        self.paths: list[str] = []
        """Of all files, below the place; complete when they are closed."""
        self._place = Path(place)
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._compression = compression
        self._records_per_file = records_per_file
        self._most_held_bytes = most_held_bytes
        self._most_open_files = most_open_files
        self._attempt = uuid.uuid4().hex[:8]
        self._held: dict[int, _Held] = {}
        self._open: dict[int, _File] = {}
        """The one that was written last is the last."""

    def __enter__(self) -> Dates:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for day in list(self._held):
                self._flush(day)
        for day in list(self._open):
            self._open.pop(day).writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records, whose offsets follow those that were added before."""
        for day, part in by_day(batch):
            held = self._held.setdefault(day, _Held())
            held.add(part)
            if held.size_bytes >= ROW_GROUP_BYTES:
                self._flush(day)
        while sum(held.size_bytes for held in self._held.values()) > self._most_held_bytes:
            self._flush(max(self._held, key=lambda day: self._held[day].size_bytes))

    def _flush(self, day: int) -> None:
        """Write what is held of a day, as a row group of its file or of several."""
        table = pa.Table.from_batches(self._held.pop(day).batches)
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
            (self._place / path).parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(self._place / path, self._schema, compression=self._compression)
            file = _File(writer)
            self.paths.append(path)
        self._open[day] = file
        return file


class _Held:
    """Records that wait until there are enough for a row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.nbytes + PART_BYTES


class _File:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer = writer
        self.records = 0


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of each day, counted from 1970 in UTC, in the order that they have."""
    if not batch.num_rows:
        return
    micros: Any = batch.column("timestamp").view(pa.int64())
    ends = pc.min_max(micros)
    first, last = ends["min"].as_py() // US_A_DAY, ends["max"].as_py() // US_A_DAY
    if first == last:
        yield first, batch
        return
    days = micros.to_numpy() // US_A_DAY
    order = np.argsort(days, kind="stable")
    found, begins = np.unique(days[order], return_index=True)
    for day, of_day in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
        yield day, batch.take(pa.array(of_day))


def date_of(day: int) -> str:
    """As Spark writes dates; years of more than four digits have a sign."""
    date = str(np.datetime64(day, "D"))
    return f"+{date}" if len(date) > len("2026-01-31") and not date.startswith("-") else date
