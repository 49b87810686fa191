"""Ownership of checkpoints: none that would leave a gap in the archive is accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kwire.pipeline.archive.checkpoint_claim import CLAIM, check_previous_batch, claim_checkpoint
from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit

JOB = "stream-1"


def checkpoint_of(path: Path, *, planned: int = 0, done: int = 0) -> Path:
    """Write the checkpoint of Spark after a number of steps."""
    for kind, count in (("offsets", planned), ("commits", done)):
        (path / kind).mkdir(parents=True)
        for number in range(count):
            (path / kind / str(number)).touch()
            (path / kind / f".{number}.crc").touch()
    (path / "metadata").write_text(json.dumps({"id": JOB}))
    return path


def archive_of(path: Path, steps: int, job: str = JOB) -> Archive:
    archive = Archive(path)
    for number in range(steps):
        archive.add(Commit(-1, job, number, {"t": {0: (number * 10, number * 10 + 10)}}, []))
    return archive


def test_a_new_archive_claims_a_new_checkpoint(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a")
    checkpoint = archive.directory / "_checkpoint"
    claim_checkpoint(checkpoint, archive)
    claim_checkpoint(checkpoint, archive)
    assert json.loads((checkpoint / CLAIM).read_text()) == {"archive": ".."}
    assert [path.name for path in checkpoint.iterdir()] == [CLAIM]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_checkpoint_without_a_claim_continues(tmp_path: Path, ahead: int) -> None:
    """The archive may have a step that Spark has not recorded as completed."""
    checkpoint = checkpoint_of(tmp_path / "c", planned=2 + ahead, done=2)
    claim_checkpoint(checkpoint, archive_of(tmp_path / "a", 2 + ahead))
    assert (checkpoint / CLAIM).exists()


def test_the_checkpoint_of_another_archive_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", planned=3, done=2)
    claim_checkpoint(checkpoint, archive_of(tmp_path / "a", 2))
    with pytest.raises(ArchiveError) as caught:
        claim_checkpoint(checkpoint, Archive(tmp_path / "b"))
    assert str(caught.value) == (
        f"the checkpoint {checkpoint} continues after micro-batch 1, but {tmp_path}/b does not have it: the "
        f"checkpoint belongs to another archive, or this archive was deleted or is an older copy; choose "
        f"another checkpoint and a new directory"
    )
    claim_checkpoint(checkpoint, Archive(tmp_path / "a"))


def test_the_checkpoint_of_another_empty_archive_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", planned=1)
    claim_checkpoint(checkpoint, Archive(tmp_path / "a"))
    with pytest.raises(ArchiveError, match=f"is the checkpoint of the archive {tmp_path}/a: choose another"):
        claim_checkpoint(checkpoint, Archive(tmp_path / "b"))
    claim_checkpoint(checkpoint, Archive(tmp_path / "a"))


def test_a_deleted_archive_or_an_older_copy_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a", 2)
    checkpoint = checkpoint_of(tmp_path / "c", planned=2, done=2)
    claim_checkpoint(checkpoint, archive)
    (archive.directory / "_manifests" / f"{1:020d}.json").unlink()
    with pytest.raises(ArchiveError, match="continues after micro-batch 1, but"):
        claim_checkpoint(checkpoint, Archive(archive.directory))
    shutil.rmtree(archive.directory)
    with pytest.raises(ArchiveError, match="continues after micro-batch 1, but"):
        claim_checkpoint(checkpoint, Archive(archive.directory))


def test_an_archive_may_be_moved(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a", 1)
    checkpoint = checkpoint_of(archive.directory / "_checkpoint", planned=1, done=1)
    claim_checkpoint(checkpoint, archive)
    shutil.move(archive.directory, tmp_path / "b")
    claim_checkpoint(tmp_path / "b" / "_checkpoint", Archive(tmp_path / "b"))
    shutil.move(tmp_path / "b" / "_checkpoint", tmp_path / "c")
    claim_checkpoint(tmp_path / "c", Archive(tmp_path / "b"))


@pytest.mark.parametrize(("note", "job"), [("kwire-mirror.json", "a mirror"), ("windows.json", "windows")])
def test_the_checkpoint_of_another_job_is_refused(tmp_path: Path, note: str, job: str) -> None:
    checkpoint = checkpoint_of(tmp_path / "c")
    (checkpoint / note).write_text("{}")
    with pytest.raises(ArchiveError, match=f"is the checkpoint of {job}: choose another one"):
        claim_checkpoint(checkpoint, Archive(tmp_path / "a"))


def test_the_archive_of_another_stream_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", planned=1, done=1)
    with pytest.raises(ArchiveError, match="was written by stream other"):
        claim_checkpoint(checkpoint, archive_of(tmp_path / "a", 1, "other"))


def test_a_step_without_its_predecessor_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a", 2)
    check_previous_batch(archive, tmp_path, JOB, 0)
    check_previous_batch(archive, tmp_path, JOB, 2)
    with pytest.raises(ArchiveError, match="continues after micro-batch 2, but"):
        check_previous_batch(archive, tmp_path, JOB, 3)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_malformed_claim_is_named(tmp_path: Path, text: str) -> None:
    checkpoint = checkpoint_of(tmp_path / "c")
    (checkpoint / CLAIM).write_text(text)
    with pytest.raises(ArchiveError, match="does not name an archive"):
        claim_checkpoint(checkpoint, Archive(tmp_path / "a"))


def test_a_checkpoint_that_is_not_sparks_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "c")
    (checkpoint / "metadata").write_text("")
    with pytest.raises(ArchiveError, match="does not contain the id of a Spark stream"):
        claim_checkpoint(checkpoint, Archive(tmp_path / "a"))
