"""How a step's files get into an archive: written aside by Spark, described, moved, and then listed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from kwire.pipeline.archive.manifest import DATA, ArchiveError, DataFile, sync_directory

STAGING: Final = "_staging"
LOCK: Final = "_writing.lock"
SKIPPED: Final = "_skipped"
"""Below it, where tasks write down what they have left out."""
_PATH: Final = re.compile(r"^topic=(?P<topic>[^/]+)/date=(?P<date>[^/]+)/partition=(?P<partition>\d+)/[^/]+$")
_HASH_BYTES: Final = 1 << 20


def empty_directory(archive: Path, step: str) -> Path:
    """An empty place for a step's files; what an earlier attempt has left there is gone."""
    staging_dir = archive / STAGING / step
    shutil.rmtree(staging_dir, ignore_errors=True)
    staging_dir.parent.mkdir(parents=True, exist_ok=True)
    return staging_dir


def attempt_directory(archive: Path, step: str) -> Path:
    """An empty place for an attempt at a step; what earlier ones have left is gone.

    No other attempt has the same place: the tasks of a driver that was killed may go on for a while, and what
    they still write must not get among the files of the attempt that follows.
    """
    for left in (archive / STAGING).glob(f"{step}.*"):
        shutil.rmtree(left, ignore_errors=True)
    return empty_directory(archive, f"{step}.{uuid.uuid4().hex[:8]}")


@contextmanager
def exclusive_writer(archive: Path) -> Iterator[None]:
    """Nobody else adds to the archive meanwhile. ArchiveError where somebody does.

    Two drivers of the same stream, started twice by mistake, would both take a step for not done.
    """
    busy = ArchiveError(f"another job writes into {archive} at this moment: let it end")
    with file_lock(archive / LOCK, busy):
        yield


@contextmanager
def file_lock(path: Path, busy: ArchiveError) -> Iterator[None]:
    """Hold the lock that is this file, or raise `busy`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # Ends with the process, however that ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
    finally:
        os.close(descriptor)


def staged_files(staging_dir: Path) -> list[str]:
    """The Parquet files there, below it."""
    return sorted(str(path.relative_to(staging_dir)) for path in staging_dir.rglob("*.parquet"))


def describe_file(staging_dir: str, path: str) -> DataFile:
    """What is in a staged file, which this makes durable. Runs where Spark likes."""
    match = _PATH.match(path)
    if match is None:
        raise ArchiveError(f"{staging_dir}/{path} is not where a file of an archive belongs")
    full = Path(staging_dir, path)
    digest = hashlib.sha256()
    with full.open("rb") as file:
        os.fsync(file.fileno())
        while data := file.read(_HASH_BYTES):
            digest.update(data)
        size_bytes = file.tell()
    first, last, records = _offsets(full)
    return DataFile(
        path, match["topic"], int(match["partition"]), match["date"], first, last, records, size_bytes,
        digest.hexdigest(),
    )  # fmt: skip


def _offsets(path: Path) -> tuple[int, int, int]:
    """The first and the last offset in a file, and how many records there are, by its footer."""
    metadata = pq.read_metadata(path)
    column = metadata.schema.to_arrow_schema().names.index("offset")
    column = next(
        number for number in range(metadata.num_columns) if metadata.schema.column(number).path == "offset"
    )
    groups = [
        metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)
    ]
    if not groups or any(group is None or not group.has_min_max for group in groups):
        raise ArchiveError(f"{path} says nothing of its offsets")
    return min(group.min for group in groups), max(group.max for group in groups), metadata.num_rows


def move(archive: Path, staging_dir: Path, step: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Put described files where they belong, under names that are the step's own; the files as they are now.

    May be done again after it was interrupted: what an earlier attempt has left under such names is removed.
    """
    moved = []
    by_directory: dict[str, list[DataFile]] = {}
    for file in files:
        by_directory.setdefault(str(Path(file.path).parent), []).append(file)
    for leftover in (archive / DATA).glob(f"*/*/*/part-{step}-*.parquet"):
        leftover.unlink()
    for directory, inside in sorted(by_directory.items()):
        target = archive / DATA / directory
        target.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(inside):
            name = f"part-{step}-{number:05d}.parquet"
            (staging_dir / file.path).rename(target / name)
            moved.append(file._replace(path=f"{DATA}/{directory}/{name}"))
        for parent in (target, target.parent, target.parent.parent, archive / DATA):
            sync_directory(parent)
    shutil.rmtree(staging_dir, ignore_errors=True)
    return moved


def check_file(archive: Path, file: DataFile) -> str:
    """What is wrong with a file of an archive; nothing if it is as its manifest says."""
    full = archive / file.path
    if not full.is_file():
        return f"{full} is missing"
    if full.stat().st_size != file.size_bytes:
        return f"{full} has {full.stat().st_size} bytes, not {file.size_bytes}"
    with full.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
            return f"{full} has another content than its manifest says"
    return ""
