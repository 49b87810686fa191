"""A disk in memory, for tests and simulations: the same tree of files, plus what real disks do to them.

It remembers what was synced. `kill` is the death of the process: everything written is still there.
`power_cut` loses what was not synced: contents beyond the last sync, in whole or in part, and names of files
that no directory sync has seen. `fail_after` and `full_after_bytes` make it break or run full in the middle
of things.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kwire.broker.storage.disk import TEMPORARY_SUFFIX, Buffer, FileMissing, StorageError


class _Content:
    """A file's bytes, and how they were when last synced."""

    __slots__ = ("data", "modified_ms", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.modified_ms = 0


class MemoryFile:
    """A handle to a file's content: it stays readable after the name is gone."""

    __slots__ = ("_content", "_disk")

    def __init__(self, disk: MemoryDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def fileno(self) -> int:
        raise OSError("a file in memory has no descriptor")

    def size(self) -> int:
        return len(self._content.data)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        taken = self._disk.take(len(data))
        content = self._content.data
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + taken] = data[:taken]
        self._content.modified_ms = self._disk.now_ms
        if taken < len(data):
            raise StorageError("the disk in memory took only a part")

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.operation()
        return bytes(self._content.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._disk.operation()
        content = self._content.data
        if size < len(content):
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        self._disk.operation()
        self._disk.syncs += 1
        self._content.synced = bytes(self._content.data)


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """See the module. Paths are absolute; parents of a file must exist."""

    def __init__(self) -> None:
        self.now_ms = 0
        """What the disk takes for the time of a write."""
        self.syncs = 0
        """How many files were synced."""
        self.locks: set[str] = set()
        self.full_after_bytes: int | None = None
        """How many more bytes fit; None for as many as there are."""
        self.fail_after: int | None = None
        """How many more operations succeed; None for all."""
        self.torn_bytes = 0
        """How much of a write gets through when it is the first operation to fail."""
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"/", ""}
        self._durable_names: dict[str, _Content] = {}
        self._durable_directories: set[str] = {"/", ""}

    # --- faults

    def operation(self) -> None:
        """Count one operation. StorageError once they are used up."""
        if self.fail_after is not None:
            if self.fail_after <= 0:
                raise StorageError("the disk in memory has failed")
            self.fail_after -= 1

    def take(self, size: int) -> int:
        """How many of `size` bytes can be written."""
        if self.fail_after == 0 and self.torn_bytes:
            taken = min(size, self.torn_bytes)
            self.torn_bytes = 0
            return taken
        self.operation()
        if self.full_after_bytes is None:
            return size
        taken = min(size, self.full_after_bytes)
        self.full_after_bytes -= taken
        return taken

    def kill(self) -> None:
        """The process dies: its locks go, the page cache stays."""
        self.locks.clear()
        self.fail_after = None
        self.full_after_bytes = None
        self.torn_bytes = 0

    def power_cut(self, rng: random.Random) -> None:
        """The machine dies: of what was not synced, an arbitrary part is lost."""
        self.kill()
        for path in list(self._files):
            if self._durable_names.get(path) is not self._files[path] and rng.random() < 0.5:
                del self._files[path]
        for path, content in self._durable_names.items():
            # A removal or a rename that no directory sync has seen may be undone.
            if path not in self._files and rng.random() < 0.5:
                self._files[path] = content
        for content in set(self._files.values()):
            if bytes(content.data) != content.synced:
                data = bytearray(content.data)
                kept = rng.randint(min(len(content.synced), len(data)), len(data))
                common = content.synced[:kept]
                survived = rng.random() < 0.5
                content.data = (
                    data[:kept] if survived else bytearray(common) + bytes(max(0, kept - len(common)))
                )
                content.synced = bytes(content.data)
        self._durable_names = dict(self._files)
        self._durable_directories = set(self._directories)

    def corrupt(self, path: str, position: int) -> None:
        """Flip the bits of one byte."""
        self._content(path).data[position] ^= 0xFF

    def tree(self, directory: str) -> dict[str, bytes]:
        """Every file below a directory, by its relative path."""
        below = directory.rstrip("/") + "/"
        return {
            path.removeprefix(below): bytes(content.data)
            for path, content in sorted(self._files.items())
            if path.startswith(below)
        }

    # --- Disk

    def _content(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise FileMissing(f"there is no file {path}")
        return content

    def _make(self, path: str) -> _Content:
        parent = path.rpartition("/")[0]
        if parent not in self._directories:
            raise FileMissing(f"there is no directory {parent}")
        content = self._files.get(path)
        if content is None:
            content = self._files[path] = _Content()
            content.modified_ms = self.now_ms
        return content

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.operation()
        return MemoryFile(self, self._make(path) if create else self._content(path))

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def size(self, path: str) -> int:
        self.operation()
        return len(self._content(path).data)

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def read(self, path: str) -> bytes:
        self.operation()
        return bytes(self._content(path).data)

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        file = MemoryFile(self, self._make(path))
        file.truncate(0)
        file.write_at(0, [content])
        if sync:
            file.sync()

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        temporary = path + TEMPORARY_SUFFIX
        self.write(temporary, content, sync=sync)
        self.rename(temporary, path)
        if sync:
            self.sync_directory(path.rpartition("/")[0])

    def make_read_only(self, path: str) -> None:
        """There are no modes here."""

    def rename(self, old: str, new: str) -> None:
        self.operation()
        if old in self._directories:
            moved = {path for path in self._directories if path == old or path.startswith(old + "/")}
            self._directories -= moved
            self._directories |= {new + path.removeprefix(old) for path in moved}
            for path in [path for path in self._files if path.startswith(old + "/")]:
                self._files[new + path.removeprefix(old)] = self._files.pop(path)
            # The directory's own entries move with it.
            for path in [path for path in self._durable_names if path.startswith(old + "/")]:
                self._durable_names[new + path.removeprefix(old)] = self._durable_names.pop(path)
            return
        self._files[new] = self._content(old)
        del self._files[old]

    def remove(self, path: str) -> None:
        self.operation()
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        self.operation()
        below = path + "/"
        self._directories = {
            directory
            for directory in self._directories
            if directory != path and not directory.startswith(below)
        }
        for names in (self._files, self._durable_names):
            for name in [name for name in names if name.startswith(below)]:
                del names[name]

    def names(self, path: str) -> list[str]:
        self.operation()
        if path not in self._directories:
            raise FileMissing(f"there is no directory {path}")
        below = path.rstrip("/") + "/"
        paths = [*self._files, *self._directories]
        return sorted(
            {name.removeprefix(below).partition("/")[0] for name in paths if name.startswith(below)} - {""}
        )

    def make_directory(self, path: str) -> None:
        self.operation()
        while path not in self._directories:
            self._directories.add(path)
            path = path.rpartition("/")[0]

    def sync_directory(self, path: str) -> None:
        self.operation()
        below = path.rstrip("/") + "/"
        for names, synced in ((self._durable_names, False), (self._files, True)):
            for name, content in list(names.items()):
                if name.startswith(below) and "/" not in name.removeprefix(below):
                    if synced:
                        self._durable_names[name] = content
                    elif name not in self._files:
                        del self._durable_names[name]

    def lock(self, path: str) -> _Lock | None:
        if path in self.locks:
            return None
        self._make(path)
        self.locks.add(path)
        return _Lock(self, path)

    def volume_bytes(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 39
