"""The disk of an embedded broker: files as always, which nobody needs to sync, and which may run full."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.storage.disk import RealDisk, RealFile, StorageError
from kwire.testing.disk_space import DiskSpace
from kwire.wire.primitives import Buffer

FULL = "No space left on device"


class EmbeddedFile(RealFile):
    """A file on such a disk."""

    __slots__ = ("disk",)

    disk: EmbeddedDisk

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.disk.check_space(self.path)
        super().write_at(position, buffers)

    def sync(self) -> None:
        if self.disk.syncs:
            super().sync()


class EmbeddedDisk(RealDisk):
    """A disk that a loss of power may take, unless it `syncs`."""

    _file_class = EmbeddedFile

    def __init__(self, space: DiskSpace, *, syncs: bool) -> None:
        super().__init__()
        self.syncs = syncs
        self._space = space

    def check_space(self, path: str) -> None:
        """Somebody writes. StorageError where there is no room."""
        if self._space.is_full:
            raise StorageError(f"{FULL} ({path})")

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        assert isinstance(file, EmbeddedFile)
        file.disk = self
        return file

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        self.check_space(path)
        super().write(path, content, sync=sync and self.syncs)

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        if not self.syncs:
            # A rename onto a file has ext4 write the new one out at once.
            self.remove(path)
        super().replace(path, content, sync=sync and self.syncs)

    def sync_directory(self, path: str) -> None:
        if self.syncs:
            super().sync_directory(path)
