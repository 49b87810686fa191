"""Whose a checkpoint is: that of one archive, which has all steps that Spark takes for done.

Spark goes on where its checkpoint says, whatever there is to go on with. With the checkpoint of another
archive, of another job, or of an archive that is gone, that would leave a hole which nobody is told of.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from kwire.pipeline.archive.manifest import Archive, ArchiveError

CLAIM: Final = "kwire-archive.json"
OTHERS: Final = {"kwire-mirror.json": "a mirror", "windows.json": "windows"}
"""What other jobs leave in theirs."""


def job_id(checkpoint: Path) -> str:
    """The id that Spark has given to the stream of a checkpoint. ArchiveError."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{path} holds no id as Spark writes it") from None


def claim_checkpoint(checkpoint: Path, archive: Archive) -> None:
    """Note in a checkpoint which archive it is of. ArchiveError where it is another's, or another job's."""
    for name, job in OTHERS.items():
        if (checkpoint / name).exists():
            raise ArchiveError(f"{checkpoint} is the checkpoint of {job}: choose another one for an archive")
    if (checkpoint / "metadata").exists():
        job = job_id(checkpoint)
        archive.check_owner(job)
        done = _last_completed_step(checkpoint)
        if done is not None:
            check_previous_step(archive, checkpoint, job, done + 1)
        elif not any(commit.job == job for commit in archive.steps()):
            _check_recorded(checkpoint, archive)
    checkpoint.mkdir(parents=True, exist_ok=True)
    unfinished = checkpoint / f".{CLAIM}.{os.getpid()}"
    unfinished.write_text(
        json.dumps({"archive": _relative_archive_path(checkpoint, archive)}), encoding="utf-8"
    )
    os.replace(unfinished, checkpoint / CLAIM)


def check_previous_step(archive: Archive, checkpoint: Path, job: str, batch_id: int) -> None:
    """ArchiveError where the archive lacks what Spark has noted as done before a step."""
    if batch_id and not archive.has_batch(job, batch_id - 1):
        raise ArchiveError(
            f"the checkpoint {checkpoint} goes on after step {batch_id - 1}, which {archive.directory} does "
            f"not have: it is another archive's, or the archive has been removed or is an older copy; choose "
            f"another checkpoint and a new directory"
        )


def _last_completed_step(checkpoint: Path) -> int | None:
    """The last step that Spark has noted as done."""
    names = [path.name for path in (checkpoint / "commits").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=None)


def _check_recorded(checkpoint: Path, archive: Archive) -> None:
    path = checkpoint / CLAIM
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["archive"]
    except FileNotFoundError:
        return  # It was begun before there were notes, and no step of it has come to its end.
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{path} does not name an archive: is the checkpoint another program's?") from None
    if recorded != _relative_archive_path(checkpoint, archive):
        other = os.path.normpath(checkpoint / recorded)
        raise ArchiveError(
            f"{checkpoint} is the checkpoint of the archive {other}: choose another one for "
            f"{archive.directory}"
        )


def _relative_archive_path(checkpoint: Path, archive: Archive) -> str:
    """The archive as seen from its checkpoint: mostly that is within, and both may be moved."""
    return os.path.relpath(archive.directory.resolve(), checkpoint.resolve())
