"""Reading of an archive, partition by partition in offset order."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kwire.pipeline.archive.manifest import Archive, ArchiveError, DataFile
from kwire.pipeline.delivery import Outgoing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_AT_ONCE: Final = 8192
SPARK_SCHEMA: Final = (
    "offset BIGINT, timestamp TIMESTAMP, timestampType INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, date STRING, partition INT"
)
"""The columns in a data file, and those that its path provides."""
GLOB: Final = re.compile(r"[\\{}\[\]*?]")
GLOB_PATHS: Final = "__globPaths__"
"""Spark's internal option that disables glob patterns in paths."""
_SPARK_FILE: Final = re.compile(r"file:/*(/[^\n]*?\.parquet)")
FILE_COLUMNS: Final = ["offset", "timestamp", "timestampType", "key", "value", "headers"]


class RecordFilter(NamedTuple):
    """A selection of an archive's records."""

    topics: frozenset[str] | None = None
    """The topics to read; None for all topics."""
    start_offset: int = 0
    end_offset: int = 1 << 62
    start_ms: int = -(1 << 62)
    end_ms: int = 1 << 62
    """The end of the timestamps in ms, exclusive. `end_offset` is exclusive, too."""

    def has(self, file: DataFile) -> bool:
        """Return whether a file may contain matching records, by its topic and offsets."""
        return (
            (self.topics is None or file.topic in self.topics)
            and file.last_offset >= self.start_offset
            and file.first_offset < self.end_offset
        )


def load_archive(spark: SparkSession, archive: Archive, wanted: RecordFilter = RecordFilter()) -> DataFrame:  # noqa: B008
    """Load the matching records of an archive, with the columns of Spark's Kafka source and the headers.

    Raises ArchiveError if no file can have matching records, or if a file is missing.
    """
    files = [file for file in archive.files() if wanted.has(file)]
    if not files:
        raise ArchiveError(f"{archive.directory} has no matching records")
    # Use absolute paths, because Hadoop treats the part before a colon in a relative path as a URL scheme.
    root = archive.directory.absolute()
    # The schema is explicit, because Spark would infer the number 7 for a topic named 007 from its path.
    reader = spark.read.schema(SPARK_SCHEMA).option("basePath", f"{root}/data").option(GLOB_PATHS, "false")
    with report_missing_files(root):
        found = reader.parquet(*[str(root / file.path) for file in files])
    if GLOB.search(str(root)):
        # Spark silently ignores missing files whose paths look like glob patterns.
        for file in files:
            if not (root / file.path).exists():
                raise _missing_file(root / file.path)
    return found.selectExpr(
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ).where(
        f"offset >= {wanted.start_offset} AND offset < {wanted.end_offset} "
        f"AND unix_millis(timestamp) >= {wanted.start_ms} AND unix_millis(timestamp) < {wanted.end_ms}"
    )


@contextmanager
def report_missing_files(*directories: Path) -> Iterator[None]:
    """Convert Spark's errors about missing files of these archives to ArchiveError."""
    try:
        yield
    except Exception as error:
        # The exception's class depends on where Spark raises it, but its text always names the file.
        archives = [os.path.abspath(directory) for directory in directories]
        for name in _SPARK_FILE.findall(str(error)):
            if any(Path(name).is_relative_to(archive) for archive in archives) and not Path(name).exists():
                raise _missing_file(Path(name)) from None
        raise


def _missing_file(path: Path) -> ArchiveError:
    return ArchiveError(f"{path} does not exist any more: run again if the archive was compacted meanwhile")


def escape_glob(path: Path) -> str:
    """Escape the glob characters of a path for Spark.

    Raises ArchiveError if the path also has a colon, which Spark cannot read after escaping.
    """
    found = GLOB.sub(r"\\\g<0>", str(path))
    if ":" in found and found != str(path):
        # Hadoop parses each component of such a path as a URL, with a scheme before the colon.
        raise ArchiveError(
            f"{path} has both a colon and one of \\ {{ }} [ ] * ? in it, which Spark cannot read: "
            f"move the archive to another directory"
        )
    return found


def by_partition(files: Iterable[DataFile]) -> dict[tuple[str, int], list[DataFile]]:
    """Group files by partition, ordered by first offset."""
    found: dict[tuple[str, int], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.topic, file.partition, file.first_offset)):
        found.setdefault((file.topic, file.partition), []).append(file)
    return found


def end_of(files: Sequence[DataFile]) -> int:
    """Return the offset after the last record. Files may overlap, so any file may have the last record."""
    return max(file.last_offset for file in files) + 1


def is_dense(files: Sequence[DataFile]) -> bool:
    """Return whether the files of a partition have a record for every offset from 0 to the last offset."""
    return min(file.first_offset for file in files) == 0 and sum(file.records for file in files) == end_of(
        files
    )


def records(
    directory: Path, files: Sequence[DataFile], wanted: RecordFilter, start: int
) -> Iterator[Outgoing]:
    """Yield the matching records of a partition from offset `start` on, in the form that delivery needs.

    `files` are the files of the partition in the archive `directory`.
    """
    for row in rows(directory, files, wanted, start):
        yield Outgoing(row.offset, row.timestamp_ms, row.key, row.value, [*row.headers])


class Row(NamedTuple):
    """A record of an archive."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 for CreateTime, 1 for LogAppendTime."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows(directory: Path, files: Sequence[DataFile], wanted: RecordFilter, start: int = 0) -> Iterator[Row]:
    """Yield the matching records of a partition from offset `start` on, in offset order.

    `files` are the files of the partition in the archive `directory`. They can overlap, because a record with
    an out-of-order timestamp can be in the file of another date than its neighbors. Only overlapping files
    are open at the same time, so memory use is bounded. Raises ArchiveError if a file cannot be read.
    """
    # Arrow treats a relative path with a colon as a URL if the file does not exist.
    directory = directory.absolute()
    start = max(start, wanted.start_offset)
    inside = [file for file in files if file.last_offset >= start and file.first_offset < wanted.end_offset]
    for together in overlapping(inside):
        streams = [_rows_of(directory / file.path, wanted, start) for file in together]
        yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0))


def overlapping(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group the files of a partition, so that the offsets of each group end before the next group begins."""
    group: list[DataFile] = []
    last_offset = -1
    for file in sorted(files, key=lambda file: file.first_offset):
        if group and file.first_offset > last_offset:
            yield group
            group = []
        group.append(file)
        last_offset = max(last_offset, file.last_offset)
    if group:
        yield group


def _rows_of(path: Path, wanted: RecordFilter, start: int) -> Iterator[Row]:
    """Yield the rows of a file. Raises ArchiveError if the file cannot be read."""
    try:
        yield from _rows_in(path, wanted, start)
    except FileNotFoundError:
        raise _missing_file(path) from None
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(f"{path} cannot be read: {error}") from None


def _rows_in(path: Path, wanted: RecordFilter, start: int) -> Iterator[Row]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="ms") as file:
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=FILE_COLUMNS):
            columns: dict[str, Any] = {
                name: batch.column(name).to_pylist()
                for name in ("offset", "timestampType", "key", "value", "headers")
            }
            times = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
            for offset, time_ms, kind, key, value, headers in zip(
                columns["offset"],
                times,
                columns["timestampType"],
                columns["key"],
                columns["value"],
                columns["headers"],
                strict=True,
            ):
                if start <= offset < wanted.end_offset and wanted.start_ms <= time_ms < wanted.end_ms:
                    pairs = [(header["key"], header["value"]) for header in headers] if headers else []
                    yield Row(offset, time_ms, kind, key, value, pairs)
