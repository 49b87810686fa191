"""The job `compact`: the small files of an archive, merged.

[compact]
directory = "/srv/archive"
below = "32 MiB"               # files smaller than this are merged with their neighbours
target = "128 MiB"             # up to this size
compression = "zstd"

A stream leaves a file for each step, date and partition. Files of one topic, date and partition that follow
one another become one; a commit replaces them in the manifest, all at once, and only then they are removed.
Killed before it, the merged files count for nothing and go with the next run; killed after it, the old ones
do.

Each file is held against the checksum of its manifest before it is read: what is damaged is not passed on.
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
from kwire.pipeline.archive.staging import check_file, describe_file, empty_directory, move
from kwire.pipeline.config import CLEAN, ConfigError, JobConfig

BELOW: Final = "32 MiB"
TARGET: Final = "128 MiB"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
LOCK: Final = "_compacting.lock"
MERGED: Final = "merged"
"""What is in the name of every file that this has written, and of no other."""
GROUPS_PER_COMMIT: Final = 64
ROWS_AT_ONCE: Final = 1 << 14
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class CompactConfig(NamedTuple):
    """The table [compact]."""

    directory: Path
    below_bytes: int
    target_bytes: int
    compression: str

    @classmethod
    def of(cls, config: JobConfig) -> CompactConfig:
        """ConfigError."""
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
    """A size like `32 MiB`. ConfigError."""
    match = re.fullmatch(r"(\d+) ?([KMG]iB|B)?", text.strip())
    if match is None:
        raise ConfigError(f"{key} is a size like '32 MiB', not {text!r}")
    return int(match[1]) * _UNITS[match[2] or ""]


class Compacted(NamedTuple):
    """What a run has done."""

    before: int
    """Files that were merged."""
    after: int
    """And into how many."""


def compact(config: CompactConfig) -> Compacted:
    """Merge what is small. ArchiveError."""
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
    """Somebody else compacts the archive now."""


@contextmanager
def compaction_lock(directory: Path) -> Iterator[None]:
    """Nobody else compacts the archive meanwhile. ArchiveError, Busy."""
    if not directory.is_dir():
        raise ArchiveError(f"there is no archive {directory}")
    with staging.file_lock(
        directory / LOCK, CompactionRunning(f"{directory} is being compacted by another job")
    ):
        yield


def plan(files: Iterable[DataFile], config: CompactConfig) -> list[list[DataFile]]:
    """Which files become one: neighbours by their offsets in the same directory, all of them small."""
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
    # The number of the commit, unless another one comes first: no file of a commit has this name.
    step = f"{MERGED}-{sum(1 for _ in archive.commits()):010d}"
    staging_dir = empty_directory(archive.directory, step)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        described = list(
            pool.map(
                lambda numbered: _merge(archive.directory, staging_dir, numbered[0], numbered[1], config),
                enumerate(groups),
            )
        )
    moved = move(archive.directory, staging_dir, step, described)
    replaced = [file.path for group in groups for file in group]
    archive.add(Commit(-1, "", -1, {}, moved, replaced))


def _merge(
    archive: Path, staging_dir: Path, number: int, files: Sequence[DataFile], config: CompactConfig
) -> DataFile:
    """Merge files of the same columns; what came of it, described as it lies in the place. ArchiveError."""
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
        raise ArchiveError(f"{staging_dir / path} holds {made.records} records, and {expected[2]} are merged")
    return made


def _same_schema(archive: Path, group: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Files next to one another with the same columns: those of values may change with their schema.

    ArchiveError.
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
    # As Spark writes timestamps, unless told otherwise: a table's files stay alike.
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
    """The rows of files in the order of their offsets. Of files that overlap all is in memory at once."""
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
    # Nanoseconds, which pyarrow would make of INT96, end in the year 2262, and Kafka's timestamps do not.
    return pq.ParquetFile(archive / file.path, coerce_int96_timestamp_unit="us")


def sweep(archive: Archive) -> int:
    """Remove what no commit lists any more, or never did, of the files that compaction is about; how many."""
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
    """The job, for the command line: its exit status. It does without Spark."""
    done = compact(CompactConfig.of(config))
    print(f"{done.before} files became {done.after}" if done.before else "no two files are small neighbours")
    return CLEAN
