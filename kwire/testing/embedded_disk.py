"""The disk of an embedded broker: real files, which need not be synced and can run out of space."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.storage.disk import RealDisk, RealFile, StorageError
from kwire.testing.disk_space import DiskSpace
from kwire.wire.primitives import Buffer

FULL = "No space left on device"


class EmbeddedFile(RealFile):
    """A file on an embedded disk."""

    __slots__ = ("disk",)

    disk: EmbeddedDisk

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after another. Raises StorageError if the disk is full."""
        self.disk.check_space(self.path)
        super().write_at(position, buffers)

    def sync(self) -> float:
        """Sync the file, unless the disk is configured not to sync."""
        return super().sync() if self.disk.syncs else 0.0


class EmbeddedDisk(RealDisk):
    """A real disk. Unless it `syncs`, a power failure of the machine can lose data."""

    _file_class = EmbeddedFile

    def __init__(self, space: DiskSpace, *, syncs: bool) -> None:
        super().__init__()
        self.syncs = syncs
        self._space = space

    def check_space(self, path: str) -> None:
        """Raise StorageError if the disk is full. `path` is the file to write."""
        if self._space.is_full:
            raise StorageError(f"{FULL} ({path})")

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open a file, and create it if `create` is set."""
        file = super().open(path, create=create)
        assert isinstance(file, EmbeddedFile)
        file.disk = self
        return file

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        """Replace the content of a file. Raises StorageError if the disk is full."""
        self.check_space(path)
        super().write(path, content, sync=sync and self.syncs)

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        """Replace a file: atomically if the disk `syncs`, otherwise after removing the old file."""
        if not self.syncs:
            # ext4 writes a file out at once when it is renamed onto another file (auto_da_alloc).
            self.remove(path)
        super().replace(path, content, sync=sync and self.syncs)

    def sync_directory(self, path: str) -> None:
        """Sync the names in a directory, unless the disk is configured not to sync."""
        if self.syncs:
            super().sync_directory(path)
