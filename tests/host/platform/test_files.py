"""Operations on files that differ between Linux and macOS."""

from __future__ import annotations

import errno
import fcntl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.host.platform import files
from kwire.host.platform.files import allocate, anonymous_file, lock_file, sync_data, sync_file
from kwire.host.system_os import os


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT, 0o600)


def test_allocated_file_has_zeros(descriptor: int) -> None:
    allocate(descriptor, 3 << 20)
    found = os.fstat(descriptor)
    assert found.st_size == 3 << 20
    assert found.st_blocks * 512 >= 3 << 20
    assert os.pread(descriptor, 10, (3 << 20) - 10) == bytes(10)
    os.close(descriptor)


def test_lock_belongs_to_the_open_file(descriptor: int, tmp_path: Path) -> None:
    lock_file(descriptor)
    lock_file(descriptor)
    other = os.open(str(tmp_path / "file"), os.O_RDWR)
    with pytest.raises((BlockingIOError, PermissionError)):
        lock_file(other)
    os.close(descriptor)
    lock_file(other)
    os.close(other)


@pytest.mark.parametrize("sync", [sync_data, sync_file])
def test_synced_descriptor_must_be_open(descriptor: int, sync: Callable[[int], None]) -> None:
    os.write(descriptor, b"data")
    sync(descriptor)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync(descriptor)


def test_directory_can_be_synced(tmp_path: Path) -> None:
    descriptor = os.open(str(tmp_path), os.O_RDONLY)
    sync_file(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_file_system_without_a_full_sync_is_synced_as_far_as_possible(
    descriptor: int, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fail_full_sync(monkeypatch, error)
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_file(descriptor)
    assert synced == [descriptor]
    os.close(descriptor)


def test_failed_full_sync_is_an_error(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_full_sync(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="no full sync"):
        sync_file(descriptor)
    os.close(descriptor)


def fail_full_sync(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    system: Any = vars(files)["fcntl"]
    if not hasattr(system, "F_FULLFSYNC"):
        pytest.skip("only macOS has F_FULLFSYNC")

    def fail(fd: int, command: int) -> int:
        assert command == system.F_FULLFSYNC
        raise OSError(error, "no full sync")

    monkeypatch.setattr(system, "fcntl", fail)


def test_anonymous_file_leaves_nothing_behind(tmp_path: Path) -> None:
    def new_directory() -> str:
        (tmp_path / "new").mkdir()
        return str(tmp_path / "new")

    descriptor = anonymous_file("name", new_directory)
    os.write(descriptor, b"content")
    assert os.pread(descriptor, 100, 0) == b"content"
    assert list(tmp_path.iterdir()) == []
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC or sys.platform == "linux"
    os.close(descriptor)
