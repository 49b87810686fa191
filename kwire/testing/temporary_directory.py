"""A directory for a time, which ends with the process that made it.

Not so `tempfile.TemporaryDirectory`: a child that is forked has a copy, and when it exits removes what its
parent works with.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from contextlib import suppress


class TemporaryDirectory:
    """See the module."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="kwire-")
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _remove_owned, self.name, self._owner)
        """Called by itself at the end of the process, or with the last that knows of this."""

    def remove(self) -> None:
        """Remove it now, as far as that can be done.

        By two threads, and with no more calls than there are files: a broker leaves hundreds, and whoever
        stops it waits for this most of all.
        """
        if self._finalizer.alive and os.getpid() == self._owner:
            below = _entries(self.name)
            helper = threading.Thread(target=_remove, args=(below[::2],), daemon=True)
            with suppress(RuntimeError):  # As at the end of a process: no thread can be begun.
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
