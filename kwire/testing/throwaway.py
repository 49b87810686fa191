"""A disk for data that nobody needs after the test: files as always, but nothing waits for a sync."""

from __future__ import annotations

from kwire.broker.storage.disk import RealDisk, RealFile


class ThrowawayFile(RealFile):
    """A file that a loss of power may take."""

    __slots__ = ()

    def sync(self) -> None:
        """Nothing: the data will be removed."""


class ThrowawayDisk(RealDisk):
    """A disk that a loss of power may take."""

    _file_class = ThrowawayFile

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        super().write(path, content, sync=False)

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        # A rename onto a file has ext4 write the new one out at once.
        self.remove(path)
        super().replace(path, content, sync=False)

    def sync_directory(self, path: str) -> None:
        """Nothing: the names will be removed."""
