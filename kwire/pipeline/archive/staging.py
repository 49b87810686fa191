"""Staging of a micro-batch's files.

Spark writes the files to a staging directory. Then the job moves them into the archive and commits them.
"""

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

from kwire.host.platform.files import sync_file
from kwire.pipeline.archive.manifest import DATA, ArchiveError, DataFile, sync_directory
from kwire.wire.plural import plural

STAGING: Final = "_staging"
LOCK: Final = "_writing.lock"
SKIPPED: Final = "_skipped"
"""The subdirectory of the staging directory in which tasks record skipped offsets."""
_PATH: Final = re.compile(r"^topic=(?P<topic>[^/]+)/date=(?P<date>[^/]+)/partition=(?P<partition>\d+)/[^/]+$")
_HASH_BYTES: Final = 1 << 20


def clear_staging_path(archive: Path, name: str) -> Path:
    """Return the path of a new staging directory, which the caller creates. Deletes an existing directory.

    `name` is the name of the directory, usually the id of a micro-batch.
    """
    staging_dir = archive / STAGING / name
    shutil.rmtree(staging_dir, ignore_errors=True)
    staging_dir.parent.mkdir(parents=True, exist_ok=True)
    return staging_dir


def attempt_directory(archive: Path, name: str) -> Path:
    """Return the path of a staging directory for an attempt at the micro-batch `name`. The caller creates it.

    Deletes the directories of earlier attempts. Each attempt has its own directory, because tasks may still
    write for a while after their driver was killed.
    """
    for left in (archive / STAGING).glob(f"{name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    return clear_staging_path(archive, f"{name}.{uuid.uuid4().hex[:8]}")


@contextmanager
def exclusive_writer(archive: Path) -> Iterator[None]:
    """Lock an archive during the block, for adding micro-batches.

    Raises ArchiveError if another process has the lock.

    Without the lock, two drivers of the same stream would both execute the same micro-batch.
    """
    busy = ArchiveError(f"another job is writing to {archive}: wait until it ends")
    with file_lock(archive / LOCK, busy):
        yield


@contextmanager
def file_lock(path: Path, busy: ArchiveError) -> Iterator[None]:
    """Lock a file during the block. Raises `busy` if another process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # The operating system releases the lock when the process ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
    finally:
        os.close(descriptor)


def staged_files(staging_dir: Path) -> list[str]:
    """List the Parquet files in a staging directory, as paths relative to the directory."""
    return sorted(str(path.relative_to(staging_dir)) for path in staging_dir.rglob("*.parquet"))


def describe_file(staging_dir: str, path: str) -> DataFile:
    """Describe a staged file, and make the file durable. Runs on executors.

    `path` is relative to the staging directory. Raises ArchiveError if the path or the file is invalid.
    """
    match = _PATH.match(path)
    if match is None:
        raise ArchiveError(f"{staging_dir}/{path} is not a valid path of an archive's file")
    full = Path(staging_dir, path)
    digest = hashlib.sha256()
    with full.open("rb") as file:
        sync_file(file.fileno())
        while data := file.read(_HASH_BYTES):
            digest.update(data)
        size_bytes = file.tell()
    first, last, records = _offsets(full)
    return DataFile(
        path, match["topic"], int(match["partition"]), match["date"], first, last, records, size_bytes,
        digest.hexdigest(),
    )  # fmt: skip


def _offsets(path: Path) -> tuple[int, int, int]:
    """Read the first offset, the last offset and the number of records from a file's footer.

    Raises ArchiveError if the footer has no statistics.
    """
    metadata = pq.read_metadata(path)
    column = next(
        number for number in range(metadata.num_columns) if metadata.schema.column(number).path == "offset"
    )
    groups = [
        metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)
    ]
    if not groups or any(group is None or not group.has_min_max for group in groups):
        raise ArchiveError(f"the footer of {path} has no statistics of offsets")
    return min(group.min for group in groups), max(group.max for group in groups), metadata.num_rows


def move(archive: Path, staging_dir: Path, name: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Move staged files into the archive, and return them with their new paths.

    The new file names contain `name`, the id of the micro-batch or compaction. If an earlier call with this
    id was interrupted, this call first deletes the files that the earlier call moved. Deletes the staging
    directory.
    """
    moved = []
    by_directory: dict[str, list[DataFile]] = {}
    for file in files:
        by_directory.setdefault(str(Path(file.path).parent), []).append(file)
    for leftover in (archive / DATA).glob(f"*/*/*/part-{name}-*.parquet"):
        leftover.unlink()
    for directory, inside in sorted(by_directory.items()):
        target = archive / DATA / directory
        target.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(inside):
            file_name = f"part-{name}-{number:05d}.parquet"
            (staging_dir / file.path).rename(target / file_name)
            moved.append(file._replace(path=f"{DATA}/{directory}/{file_name}"))
        for parent in (target, target.parent, target.parent.parent, archive / DATA):
            sync_directory(parent)
    shutil.rmtree(staging_dir, ignore_errors=True)
    return moved


def check_file(archive: Path, file: DataFile) -> str:
    """Describe how a file differs from its entry in the manifest. The result is empty if they agree."""
    full = archive / file.path
    if not full.is_file():
        return f"{full} is missing"
    if full.stat().st_size != file.size_bytes:
        return f"{full} has {plural(full.stat().st_size, 'byte')}, not {file.size_bytes} as in its manifest"
    with full.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
            return f"{full} has a different SHA-256 than its manifest says"
    return ""
