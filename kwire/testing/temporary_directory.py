"""A temporary directory that is removed at the end of the process that created it.

`tempfile.TemporaryDirectory` is unsuitable: a forked child has a copy of the object, and removes the
directory of its parent when it exits.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from contextlib import suppress


class TemporaryDirectory:
    """A temporary directory that is removed fast, even with many files."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="kwire-")
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _remove_owned, self.name, self._owner)
        """Called at the end of the process, or when this object is garbage collected."""

    def remove(self) -> None:
        """Remove the directory with two threads, and ignore errors.

        A broker leaves hundreds of files, whose removal takes longer than the shutdown of the broker.
        """
        if self._finalizer.alive and os.getpid() == self._owner:
            below = _entries(self.name)
            helper = threading.Thread(target=_remove, args=(below[::2],), daemon=True)
            with suppress(RuntimeError):  # no thread can start while the interpreter exits
                helper.start()
                _remove(below[1::2])
                helper.join()
        self._finalizer()


def _entries(path: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(path) as entries:
        return list(entries)
    return []


def _remove(entries: list[os.DirEntry[str]]) -> None:
    for entry in entries:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                _remove_directory(entry.path)
            else:
                os.unlink(entry.path)


def _remove_directory(path: str) -> None:
    _remove(_entries(path))
    with suppress(OSError):
        os.rmdir(path)


def _remove_owned(path: str, owner: int) -> None:
    if os.getpid() == owner:
        _remove_directory(path)
