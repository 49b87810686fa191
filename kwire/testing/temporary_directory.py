"""Data directories of brokers, which are real also while a test fakes the file system.

`tempfile.TemporaryDirectory` is unsuitable. A forked child has a copy of the object, and removes the
directory of its parent when it exits. And a test may replace the functions that `tempfile` uses.
"""

from __future__ import annotations

import os as replaceable_os
import weakref
from contextlib import suppress
from itertools import count
from threading import Thread

from kwire.host.system_os import make_directories, os


class TemporaryDirectory:
    """A temporary directory that is removed at the end of the process that created it.

    It is removed fast, even with many files.
    """

    def __init__(self) -> None:
        self.name = new_directory()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _remove_owned, self.name, self._owner)
        """Called at the end of the process, or when this object is garbage collected."""

    def remove(self) -> None:
        """Remove the directory with two threads, and ignore errors.

        A broker leaves hundreds of files, whose removal takes longer than the shutdown of the broker.
        """
        if self._finalizer.alive and os.getpid() == self._owner:
            below = _entries(self.name)
            helper = Thread(target=_remove, args=(below[::2],), daemon=True)
            with suppress(RuntimeError):  # no thread can start while the interpreter exits
                helper.start()
                _remove(below[1::2])
                helper.join()
        self._finalizer()


def new_numbered_directory(parent: str, prefix: str) -> str:
    """Create a directory with the first unused number after its prefix, and return its path."""
    make_directories(parent)
    for number in count():
        path = f"{parent}/{prefix}{number}"
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            return path
    raise AssertionError


def remove_directory(path: str) -> None:
    """Remove a directory with its content, and ignore errors."""
    _remove(_entries(path))
    with suppress(OSError):
        os.rmdir(path)


def new_directory() -> str:
    """Create a directory in TMPDIR or another directory for temporary files. Raises OSError."""
    environment = replaceable_os.environ
    parents = [environment[name] for name in ("TMPDIR", "TEMP", "TMP") if environment.get(name)]
    for parent in (*parents, "/tmp", "/var/tmp", "/usr/tmp"):
        path = f"{parent.rstrip('/')}/kwire-{os.urandom(6).hex()}"
        if path[0] != "/":
            path = f"{os.getcwd()}/{path}"
        with suppress(OSError):
            os.mkdir(path, 0o700)
            return path
    raise FileNotFoundError("no directory for temporary files can be written: set TMPDIR")


def _entries(path: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(path) as entries:
        return list(entries)
    return []


def _remove(entries: list[os.DirEntry[str]]) -> None:
    for entry in entries:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                remove_directory(entry.path)
            else:
                os.unlink(entry.path)


def _remove_owned(path: str, owner: int) -> None:
    if os.getpid() == owner:
        remove_directory(path)
