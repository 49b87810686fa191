"""A part of a file that is sent to a peer, or a copy of it."""

from __future__ import annotations

from typing import Final

from kwire.broker.storage.disk import DiskFile, StorageError


class FileRegion:
    """A part of a segment file that a log read returns. The kernel copies it to a socket (sendfile)."""

    __slots__ = ("file", "position", "size_bytes")

    def __init__(self, file: DiskFile, position: int, size_bytes: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def read(self) -> bytes:
        """Return the bytes, for callers that cannot use sendfile."""
        return self.file.read_at(self.position, self.size_bytes)

    def __repr__(self) -> str:
        return f"FileRegion({self.file!r}, {self.position}, {self.size_bytes})"


class CopiedRegion(FileRegion):
    """A region whose bytes were read already. It keeps no file open."""

    __slots__ = ("data",)

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        super().__init__(NO_FILE, position, len(data))

    def read(self) -> bytes:
        return self.data


class _NoFile:
    """The file of a `CopiedRegion`, which needs no file."""

    def fileno(self) -> int:
        raise OSError("the region has no file")

    def size(self) -> int:
        return 0

    def read_at(self, position: int, size: int) -> bytes:
        return b""

    def write_at(self, position: int, buffers: object) -> None:
        raise StorageError("the region has no file")

    def truncate(self, size: int) -> None:
        raise StorageError("the region has no file")

    def sync(self) -> float:
        return 0.0


NO_FILE: Final[DiskFile] = _NoFile()
