"""Access to the files of key stores and trust stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.broker.security.listener_tls import FileStamp


class RealStoreFiles:
    """The files of this machine, as `StoreFiles` specifies."""

    def read(self, path: str) -> bytes:
        from kwire.broker.security.tls_stores import MAX_STORE_BYTES

        with open(path, "rb") as file:
            return file.read(MAX_STORE_BYTES + 1)  # the limit is checked when the store is loaded

    def stamp(self, path: str) -> FileStamp:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
