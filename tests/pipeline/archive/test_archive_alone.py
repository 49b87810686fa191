"""Concurrent attempts at a step of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.archive.staging import STAGING, attempt_directory, exclusive_writer, staged_files


def test_files_of_an_earlier_attempt_are_ignored(tmp_path: Path) -> None:
    killed = attempt_directory(tmp_path, "job-0000000001")
    killed.mkdir()
    (killed / "one.parquet").touch()
    other = attempt_directory(tmp_path, "job-0000000002")
    other.mkdir()
    again = attempt_directory(tmp_path, "job-0000000001")
    again.mkdir()
    assert sorted((tmp_path / STAGING).iterdir()) == sorted([again, other])
    killed.mkdir()
    (killed / "two.parquet").touch()
    assert staged_files(again) == []


def test_a_concurrent_writer_is_refused(tmp_path: Path) -> None:
    with exclusive_writer(tmp_path):
        with pytest.raises(ArchiveError, match="another job is writing"), exclusive_writer(tmp_path):
            pass
        with pytest.raises(ArchiveError, match="another job is writing"), exclusive_writer(tmp_path):
            pass
    with exclusive_writer(tmp_path):
        pass
