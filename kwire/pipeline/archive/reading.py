"""An archive's records, partition by partition, in the order of their offsets."""

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
"""What a file holds of a record, and its path."""
GLOB: Final = re.compile(r"[\\{}\[\]*?]")
GLOB_PATHS: Final = "__globPaths__"
"""Spark's option of its own for paths that it need not look through for patterns."""
_SPARK_FILE: Final = re.compile(r"file:/*(/[^\n]*?\.parquet)")
FILE_COLUMNS: Final = ["offset", "timestamp", "timestampType", "key", "value", "headers"]


class RecordFilter(NamedTuple):
    """Which part of an archive."""

    topics: frozenset[str] | None = None
    """None for all."""
    start_offset: int = 0
    end_offset: int = 1 << 62
    start_ms: int = -(1 << 62)
    end_ms: int = 1 << 62
    """Both ends are behind the last."""

    def has(self, file: DataFile) -> bool:
        """Whether a file may hold such records."""
        return (
            (self.topics is None or file.topic in self.topics)
            and file.last_offset >= self.start_offset
            and file.first_offset < self.end_offset
        )


def load_archive(spark: SparkSession, archive: Archive, wanted: RecordFilter = RecordFilter()) -> DataFrame:  # noqa: B008
    """An archive as a table: the columns of Spark's Kafka source. ArchiveError where it is empty."""
    files = [file for file in archive.files() if wanted.has(file)]
    if not files:
        raise ArchiveError(f"{archive.directory} holds no such records")
    # What stands before a colon in a path that is not absolute is the scheme of a URL to Hadoop.
    root = archive.directory.absolute()
    # Of the path Spark would take a topic called 007 for the number 7.
    reader = spark.read.schema(SPARK_SCHEMA).option("basePath", f"{root}/data").option(GLOB_PATHS, "false")
    with report_missing_files(root):
        found = reader.parquet(*[str(root / file.path) for file in files])
    if GLOB.search(str(root)):
        # Of a path that looks like a pattern Spark does not say that it is gone: it reads the others.
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
    """ArchiveError for what Spark says of a file of these archives that is not there any more."""
    try:
        yield
    except Exception as error:
        # Which exceptions these are is known where Spark is; each names the file.
        archives = [os.path.abspath(directory) for directory in directories]
        for name in _SPARK_FILE.findall(str(error)):
            if any(Path(name).is_relative_to(archive) for archive in archives) and not Path(name).exists():
                raise _missing_file(Path(name)) from None
        raise


def _missing_file(path: Path) -> ArchiveError:
    return ArchiveError(
        f"{path} cannot be read: it is gone, so run again if the archive was compacted meanwhile"
    )


def escape_glob(path: Path) -> str:
    """A path for Spark, which takes some characters for patterns of names unless they are escaped.

    ArchiveError where that does not help.
    """
    found = GLOB.sub(r"\\\g<0>", str(path))
    if ":" in found and found != str(path):
        # Hadoop takes each name of such a path by itself, and what stands before a colon for a scheme.
        raise ArchiveError(
            f"{path} has both a colon and one of \\ {{ }} [ ] * ? in it, which Spark cannot read: "
            f"move the archive to a directory without"
        )
    return found


def by_partition(files: Iterable[DataFile]) -> dict[tuple[str, int], list[DataFile]]:
    """The files of each partition, in the order of their first offsets."""
    found: dict[tuple[str, int], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.topic, file.partition, file.first_offset)):
        found.setdefault((file.topic, file.partition), []).append(file)
    return found


def end_of(files: Sequence[DataFile]) -> int:
    """What follows the last offset; which need not be in the file that begins last, as dates overlap."""
    return max(file.last_offset for file in files) + 1


def is_dense(files: Sequence[DataFile]) -> bool:
    """Whether the files of a partition hold every offset from 0 to their last."""
    return min(file.first_offset for file in files) == 0 and sum(file.records for file in files) == end_of(
        files
    )


def records(
    directory: Path, files: Sequence[DataFile], wanted: RecordFilter, start: int
) -> Iterator[Outgoing]:
    """The records of a partition from an offset on, as they go out to a topic."""
    for row in rows(directory, files, wanted, start):
        yield Outgoing(row.offset, row.timestamp_ms, row.key, row.value, [*row.headers])


class Row(NamedTuple):
    """A record as an archive has it."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 for the producer's time, 1 for the broker's."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows(directory: Path, files: Sequence[DataFile], wanted: RecordFilter, start: int = 0) -> Iterator[Row]:
    """The records of a partition from an offset on, merged from its files; a part of each is in memory.

    Records whose timestamps are out of order are in files of other dates. Only files whose offsets overlap
    are open at the same time.
    """
    # Where there is no such file, Arrow takes a relative path with a colon for a URL.
    directory = directory.absolute()
    start = max(start, wanted.start_offset)
    inside = [file for file in files if file.last_offset >= start and file.first_offset < wanted.end_offset]
    for together in overlapping(inside):
        streams = [_rows_of(directory / file.path, wanted, start) for file in together]
        yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0))


def overlapping(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """The files of a partition in groups, each of which ends before the next one begins."""
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
    """ArchiveError where the file cannot be read."""
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
