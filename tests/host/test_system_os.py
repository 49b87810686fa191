"""The system calls that libraries for tests do not replace."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from pyfakefs.fake_filesystem_unittest import Patcher

from kwire.host import system_os
from kwire.host.system_os import exists, is_directory, make_directories, remove_tree


def test_paths_that_do_not_exist_or_are_invalid(tmp_path: Path) -> None:
    for path in (str(tmp_path / "missing"), str(tmp_path / "missing" / "too"), "a\0b", ""):
        assert not exists(path)
        assert not is_directory(path)
    (tmp_path / "file").touch()
    assert exists(str(tmp_path / "file"))
    assert not is_directory(str(tmp_path / "file"))
    assert is_directory(str(tmp_path))


def test_make_directories_creates_missing_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_directories(f"{tmp_path}/a/b//c/")
    make_directories(f"{tmp_path}/a/b")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    monkeypatch.chdir(tmp_path)
    make_directories("d/e")
    assert (tmp_path / "d" / "e").is_dir()


def test_make_directories_fails_at_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directories(f"{tmp_path}/file")
    with pytest.raises(NotADirectoryError):
        make_directories(f"{tmp_path}/file/below")
    with pytest.raises(FileNotFoundError):
        make_directories("/proc/nowhere/below")


def test_remove_tree_removes_links_but_not_their_targets(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    tree = tmp_path / "tree"
    make_directories(f"{tree}/a/b")
    (tree / "a" / "file").touch()
    (tree / "a" / "b" / "link").symlink_to(tmp_path / "kept")
    remove_tree(str(tree))
    assert not tree.exists()
    assert (tmp_path / "kept" / "file").exists()


def test_remove_tree_fails_at_a_link_or_a_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError):
        remove_tree(f"{tmp_path}/link")
    with pytest.raises(FileNotFoundError):
        remove_tree(f"{tmp_path}/missing")
    assert (tmp_path / "kept").exists()


def test_system_calls_are_not_replaced(tmp_path: Path) -> None:
    with mock.patch("os.stat", side_effect=OSError), Patcher():
        assert not os.path.exists(tmp_path)
        assert is_directory(str(tmp_path))
        assert system_os.os.listdir(str(tmp_path)) == []
