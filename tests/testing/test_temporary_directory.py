"""The directory of a broker for a time: all of it goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kwire.testing.temporary_directory import TemporaryDirectory


def fill(directory: TemporaryDirectory) -> Path:
    """As brokers do, and a folder in a folder."""
    path = Path(directory.name)
    for number in range(5):
        folder = path / f"t-{number}" / "deeper"
        folder.mkdir(parents=True)
        for name in ("a", "../b", "../../c"):
            (folder / name).write_text("x")
    return path


def test_all_of_it_is_removed_and_nothing_that_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    directory = TemporaryDirectory()
    path = fill(directory)
    (path / "link").symlink_to(tmp_path)
    (path / "t-1" / "link").symlink_to(tmp_path)
    directory.remove()
    assert not path.exists()
    assert (tmp_path / "kept").exists()
    directory.remove()


def test_it_is_removed_where_no_thread_can_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    directory = TemporaryDirectory()
    path = fill(directory)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    directory.remove()
    assert not path.exists()


def test_what_is_made_again_in_its_place_stays() -> None:
    directory = TemporaryDirectory()
    path = Path(directory.name)
    directory.remove()
    path.mkdir()
    del directory
    assert path.exists()
    path.rmdir()


def test_a_process_that_was_forked_leaves_it() -> None:
    directory = TemporaryDirectory()
    path = fill(directory)
    child = os.fork()
    if not child:
        directory.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert (path / "t-4" / "deeper" / "a").exists()
    directory.remove()


def test_it_ends_with_the_process_that_made_it() -> None:
    program = (
        "from tests.testing.test_temporary_directory import TemporaryDirectory, fill\n"
        "kept = TemporaryDirectory()\n"
        "print(fill(kept))"
    )
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout.startswith("/")
    assert not Path(ran.stdout.strip()).exists()
