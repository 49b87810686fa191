"""Ownership of checkpoints: a checkpoint belongs to the archive that has all of its completed micro-batches.

Spark continues from its checkpoint, whatever the archive contains. If the checkpoint belongs to another
archive, to another job, or to a deleted archive, the job would silently leave a gap in this archive.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from kwire.pipeline.archive.manifest import Archive, ArchiveError

CLAIM: Final = "kwire-archive.json"
OTHERS: Final = {"kwire-mirror.json": "a mirror", "windows.json": "windows"}
"""The files by which other jobs mark their checkpoints, with the names of those jobs."""


def stream_id(checkpoint: Path) -> str:
    """Return the stream id that Spark has recorded in a checkpoint.

    Raises ArchiveError if the file `metadata` is malformed.
    """
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{path} does not contain the id of a Spark stream") from None


def claim_checkpoint(checkpoint: Path, archive: Archive) -> None:
    """Record in a checkpoint that it belongs to this archive.

    Raises ArchiveError if the checkpoint belongs to another archive or job, or if another stream has written
    to the archive.
    """
    for name, job in OTHERS.items():
        if (checkpoint / name).exists():
            raise ArchiveError(f"{checkpoint} is the checkpoint of {job}: choose another one for an archive")
    if (checkpoint / "metadata").exists():
        job = stream_id(checkpoint)
        archive.check_owner(job)
        done = _last_completed_batch(checkpoint)
        if done is not None:
            check_previous_batch(archive, checkpoint, job, done + 1)
        elif not any(commit.job == job for commit in archive.commits_without_files()):
            _check_recorded(checkpoint, archive)
    checkpoint.mkdir(parents=True, exist_ok=True)
    unfinished = checkpoint / f".{CLAIM}.{os.getpid()}"
    unfinished.write_text(
        json.dumps({"archive": _relative_archive_path(checkpoint, archive)}), encoding="utf-8"
    )
    os.replace(unfinished, checkpoint / CLAIM)


def check_previous_batch(archive: Archive, checkpoint: Path, job: str, batch_id: int) -> None:
    """Raise ArchiveError if the archive does not have the micro-batch before `batch_id`.

    Spark has completed that micro-batch. `job` is the id of the stream.
    """
    if batch_id and not archive.has_batch(job, batch_id - 1):
        raise ArchiveError(
            f"the checkpoint {checkpoint} continues after micro-batch {batch_id - 1}, but "
            f"{archive.directory} does not have it: the checkpoint belongs to another archive, or this "
            f"archive was deleted or is an older copy; choose another checkpoint and a new directory"
        )


def _last_completed_batch(checkpoint: Path) -> int | None:
    """Return the number of the last completed micro-batch in the checkpoint, or None if there is none."""
    names = [path.name for path in (checkpoint / "commits").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=None)


def _check_recorded(checkpoint: Path, archive: Archive) -> None:
    path = checkpoint / CLAIM
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["archive"]
    except FileNotFoundError:
        return  # The checkpoint is from a version without this file, and no micro-batch has completed.
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(
            f"{path} does not name an archive: is this the checkpoint of another program?"
        ) from None
    if recorded != _relative_archive_path(checkpoint, archive):
        other = os.path.normpath(checkpoint / recorded)
        raise ArchiveError(
            f"{checkpoint} is the checkpoint of the archive {other}: choose another one for "
            f"{archive.directory}"
        )


def _relative_archive_path(checkpoint: Path, archive: Archive) -> str:
    """Return the archive's path relative to the checkpoint, so that both can be moved together."""
    return os.path.relpath(archive.directory.resolve(), checkpoint.resolve())
