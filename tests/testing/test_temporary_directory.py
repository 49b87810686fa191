"""The temporary directory of a broker and its removal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kwire.testing.temporary_directory import TemporaryDirectory


def fill(directory: TemporaryDirectory) -> Path:
    """Create files and nested directories, as a broker does."""
    path = Path(directory.name)
    for number in range(5):
        folder = path / f"t-{number}" / "deeper"
        folder.mkdir(parents=True)
        for name in ("a", "../b", "../../c"):
            (folder / name).write_text("x")
    return path


def test_remove_deletes_the_tree_but_no_link_targets(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    directory = TemporaryDirectory()
    path = fill(directory)
    (path / "link").symlink_to(tmp_path)
    (path / "t-1" / "link").symlink_to(tmp_path)
    directory.remove()
    assert not path.exists()
    assert (tmp_path / "kept").exists()
    directory.remove()


def test_remove_works_when_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    directory = TemporaryDirectory()
    path = fill(directory)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    directory.remove()
    assert not path.exists()


def test_directory_created_again_at_the_same_path_stays() -> None:
    directory = TemporaryDirectory()
    path = Path(directory.name)
    directory.remove()
    path.mkdir()
    del directory
    assert path.exists()
    path.rmdir()


def test_forked_child_does_not_remove_it() -> None:
    directory = TemporaryDirectory()
    path = fill(directory)
    child = os.fork()
    if not child:
        directory.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert (path / "t-4" / "deeper" / "a").exists()
    directory.remove()


def test_directory_is_removed_when_its_process_exits() -> None:
    program = (
        "from tests.testing.test_temporary_directory import TemporaryDirectory, fill\n"
        "kept = TemporaryDirectory()\n"
        "print(fill(kept))"
    )
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout.startswith("/")
    assert not Path(ran.stdout.strip()).exists()
