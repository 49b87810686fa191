"""Access to the files of key stores and trust stores."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.broker.security.listener_tls import FileStamp


class RealStoreFiles:
    """The files of this machine, as `StoreFiles` specifies."""

    def read(self, path: str) -> bytes:
        from kwire.broker.security.tls_stores import MAX_STORE_BYTES

        # A request may name the path. A FIFO or a terminal would block the event loop.
        with open(path, "rb", opener=_open_without_blocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return file.read(MAX_STORE_BYTES + 1)  # the limit is checked when the store is loaded

    def stamp(self, path: str) -> FileStamp:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
