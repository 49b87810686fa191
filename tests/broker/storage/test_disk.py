"""Open files of the real disk: a path always refers to its current file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.broker.storage.disk import FileMissing, RealDisk


@pytest.fixture
def root(tmp_path: Path) -> str:
    for name in ("a-0", "a-0/deep", "a-01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").write_bytes(name.encode())
    return str(tmp_path)


def test_open_file_is_reused_until_its_path_changes(root: str) -> None:
    disk = RealDisk()
    old = disk.open(f"{root}/a-0/log")
    assert disk.open(f"{root}/a-0/log") is old
    disk.write(f"{root}/a-0/next", b"new", sync=False)
    disk.open(f"{root}/a-0/next")
    disk.rename(f"{root}/a-0/next", f"{root}/a-0/log")
    assert disk.open(f"{root}/a-0/log").read_at(0, 9) == b"new"
    assert old.read_at(0, 9) == b"a-0"  # for its current holder
    with pytest.raises(FileMissing):
        disk.open(f"{root}/a-0/next")


@pytest.mark.parametrize("most", [1, 2, 3, 512])
def test_rename_of_a_directory_closes_only_the_files_below_it(root: str, most: int) -> None:
    disk = RealDisk(max_open_files=most)
    for name in ("a-0/log", "a-0/deep/log", "a-01/log"):
        disk.open(f"{root}/{name}")
    kept = disk.open(f"{root}/a-01/log")
    disk.rename(f"{root}/a-0", f"{root}/b-0")
    assert disk.open(f"{root}/a-01/log") is kept
    for name in ("a-0/log", "a-0/deep/log"):
        with pytest.raises(FileMissing):
            disk.open(f"{root}/{name}")
    assert disk.open(f"{root}/b-0/deep/log").read_at(0, 9) == b"a-0/deep"
    disk.remove_tree(f"{root}/b-0")
    with pytest.raises(FileMissing):
        disk.open(f"{root}/b-0/deep/log")
    assert disk.open(f"{root}/a-01/log") is kept or most == 1


def test_least_recently_used_file_is_closed(root: str) -> None:
    disk = RealDisk(max_open_files=2)
    first, second = (disk.open(f"{root}/{name}/log") for name in ("a-0", "a-01"))
    assert disk.open(f"{root}/a-0/log") is first
    disk.open(f"{root}/a-0/deep/log")
    assert disk.open(f"{root}/a-0/log") is first
    assert disk.open(f"{root}/a-01/log") is not second
