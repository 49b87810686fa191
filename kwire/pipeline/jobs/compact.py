"""The job `compact`: merge small files of an archive.

[compact]
directory = "/srv/archive"
below = "32 MiB"               # merge files smaller than this with their neighbors
target = "128 MiB"             # the maximum size of a merged file
compression = "zstd"

A stream writes at least one file per micro-batch, date and partition. The job merges consecutive files of the
same topic, date and partition. A commit atomically replaces the small files with the merged file. Then the
job deletes the small files. If the job is killed before the commit, the next run deletes the merged file. If
it is killed after the commit, the next run deletes the small files.

The job verifies the checksum of each file before it merges the file, so that corruption is not copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kwire.pipeline.archive import staging
from kwire.pipeline.archive.direct import ROW_GROUP_BYTES
from kwire.pipeline.archive.manifest import DATA, Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.reading import overlapping
from kwire.pipeline.archive.staging import check_file, clear_staging_path, describe_file, move
from kwire.pipeline.config import CLEAN, ConfigError, JobConfig
from kwire.wire.plural import plural

BELOW: Final = "32 MiB"
TARGET: Final = "128 MiB"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
LOCK: Final = "_compacting.lock"
MERGED: Final = "merged"
"""A part of the name of every merged file. Other files do not have it in their names."""
GROUPS_PER_COMMIT: Final = 64
ROWS_AT_ONCE: Final = 1 << 14
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class CompactConfig(NamedTuple):
    """The settings in the table [compact] of a job's file, or the same settings of the job `archive`."""

    directory: Path
    below_bytes: int
    target_bytes: int
    compression: str

    @classmethod
    def of(cls, config: JobConfig) -> CompactConfig:
        """Read the table [compact]. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("compact")
        found = cls(
            table.path("directory"),
            size_bytes("compact.below", table.text("below", BELOW)),
            size_bytes("compact.target", table.text("target", TARGET)),
            table.text("compression", "zstd", one_of=COMPRESSIONS),
        )
        table.check_unknown_keys()
        return found


def size_bytes(key: str, text: str) -> int:
    """Parse a size like `32 MiB`. Raises ConfigError with the name `key` if the size is malformed."""
    match = re.fullmatch(r"(\d+) ?([KMG]iB|B)?", text.strip())
    if match is None:
        raise ConfigError(f"{key} must be a size like '32 MiB', not {text!r}")
    return int(match[1]) * _UNITS[match[2] or ""]


class Compacted(NamedTuple):
    """The numbers of files before and after a compaction."""

    before: int
    """The number of files that were merged."""
    after: int
    """The number of new files with the merged content."""


def compact(config: CompactConfig) -> Compacted:
    """Merge the small files of an archive, and delete the replaced files.

    Raises ArchiveError, or CompactionRunning if another process is compacting the archive.
    """
    archive = Archive(config.directory)
    before = after = 0
    with compaction_lock(config.directory):
        sweep(archive)
        groups = [
            same_schema
            for group in plan(archive.files(), config)
            for same_schema in _same_schema(archive.directory, group)
            if len(same_schema) > 1
        ]
        for at in range(0, len(groups), GROUPS_PER_COMMIT):
            part = groups[at : at + GROUPS_PER_COMMIT]
            _commit(archive, part, config)
            before, after = before + sum(map(len, part)), after + len(part)
        sweep(archive)
    return Compacted(before, after)


class CompactionRunning(ArchiveError):
    """Another process is compacting the archive."""


@contextmanager
def compaction_lock(directory: Path) -> Iterator[None]:
    """Lock an archive for compaction during the block.

    Raises ArchiveError if the archive does not exist, or CompactionRunning if another process has the lock.
    """
    if not directory.is_dir():
        raise ArchiveError(f"archive {directory} does not exist")
    with staging.file_lock(
        directory / LOCK, CompactionRunning(f"{directory} is being compacted by another job")
    ):
        yield


def plan(files: Iterable[DataFile], config: CompactConfig) -> list[list[DataFile]]:
    """Return the groups of small files to merge. The files of a group are neighbors in one directory.

    A group has at least two files, and at most `target_bytes`.
    """
    by_directory: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.path.rpartition("/")[0], file.first_offset)):
        by_directory.setdefault(file.path.rpartition("/")[0], []).append(file)
    found: list[list[DataFile]] = []
    for inside in by_directory.values():
        group: list[DataFile] = []
        for file in inside:
            is_small = file.size_bytes < config.below_bytes
            group_bytes = sum(one.size_bytes for one in group)
            if group and not (is_small and group_bytes + file.size_bytes <= config.target_bytes):
                found.append(group)
                group = []
            if is_small:
                group.append(file)
        found.append(group)
    return [group for group in found if len(group) > 1]


def _commit(archive: Archive, groups: Sequence[Sequence[DataFile]], config: CompactConfig) -> None:
    # The commit usually gets this number. If another commit comes first, the names are still unique.
    name = f"{MERGED}-{sum(1 for _ in archive.commits()):010d}"
    staging_dir = clear_staging_path(archive.directory, name)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        described = list(
            pool.map(
                lambda numbered: _merge(archive.directory, staging_dir, numbered[0], numbered[1], config),
                enumerate(groups),
            )
        )
    moved = move(archive.directory, staging_dir, name, described)
    replaced = [file.path for group in groups for file in group]
    archive.add(Commit(-1, "", -1, {}, moved, replaced))


def _merge(
    archive: Path, staging_dir: Path, number: int, files: Sequence[DataFile], config: CompactConfig
) -> DataFile:
    """Merge files that have the same columns, and describe the merged file. Raises ArchiveError."""
    for file in files:
        wrong = check_file(archive, file)
        if wrong:
            raise ArchiveError(wrong)
    directory = Path(files[0].path).relative_to(DATA).parent
    (staging_dir / directory).mkdir(parents=True, exist_ok=True)
    path = str(directory / f"{number}.parquet")
    _write(archive, staging_dir / path, files, config)
    made = describe_file(str(staging_dir), path)
    expected = (
        min(file.first_offset for file in files),
        max(file.last_offset for file in files),
        sum(file.records for file in files),
    )
    if (made.first_offset, made.last_offset, made.records) != expected:
        found = plural(made.records, "record")
        raise ArchiveError(f"{staging_dir / path} has {found} instead of {expected[2]}")
    return made


def _same_schema(archive: Path, group: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Split a group into groups of files with the same columns.

    Columns differ if the schema of the decoded values has changed.

    Raises ArchiveError.
    """
    same_schema: list[DataFile] = []
    known: Any = None
    for file in group:
        try:
            schema = pq.read_metadata(archive / file.path).schema
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"{archive / file.path} cannot be read: {error}") from None
        if same_schema and not schema.equals(known):
            yield same_schema
            same_schema = []
        same_schema.append(file)
        known = schema
    yield same_schema


def _write(archive: Path, target: Path, files: Sequence[DataFile], config: CompactConfig) -> None:
    with _opened(archive, files[0]) as first:
        columns, schema = first.metadata.schema, first.schema_arrow
    # Keep Spark's timestamp type, so that all files of a table have the same type.
    int96 = any(columns.column(number).physical_type == "INT96" for number in range(len(columns)))
    with pq.ParquetWriter(
        target, schema, compression=config.compression, use_deprecated_int96_timestamps=int96
    ) as writer:
        buffered: list[pa.Table] = []
        for table in _in_order(archive, files):
            buffered.append(table)
            if sum(one.nbytes for one in buffered) >= ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(buffered))
                buffered = []
        if buffered:
            writer.write_table(pa.concat_tables(buffered))


def _in_order(archive: Path, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """Yield the rows of files in offset order. Files with overlapping offsets are loaded completely."""
    for together in overlapping(files):
        if len(together) == 1:
            with _opened(archive, together[0]) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])
        else:
            tables = []
            for one in together:
                with _opened(archive, one) as file:
                    tables.append(file.read())
            yield pa.concat_tables(tables).sort_by("offset")


def _opened(archive: Path, file: DataFile) -> pq.ParquetFile:
    # By default pyarrow converts INT96 to nanoseconds, which cannot represent times after the year 2262.
    return pq.ParquetFile(archive / file.path, coerce_int96_timestamp_unit="us")


def sweep(archive: Archive) -> int:
    """Delete files that a compaction has replaced or has not committed, and return the number of files."""
    listed = {file.path for file in archive.files()}
    old = {path for commit in archive.commits() for path in commit.replaced}
    unfinished = {
        str(path.relative_to(archive.directory))
        for path in (archive.directory / DATA).glob(f"*/*/*/part-{MERGED}-*.parquet")
    }
    removed = 0
    for path in sorted((old | unfinished) - listed):
        if (archive.directory / path).exists():
            (archive.directory / path).unlink()
            removed += 1
    return removed


def command(config: JobConfig, master: str | None) -> int:
    """Run the job without Spark, whatever `master` is."""
    done = compact(CompactConfig.of(config))
    print(f"{plural(done.before, 'file')} became {done.after}" if done.before else "no small files to merge")
    return CLEAN
