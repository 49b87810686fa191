"""A disk in memory that does to files whatever a real one may.

What is written is there at once, and what was synced is remembered. `kill` is the death of the process:
everything written is still there, and a write that it interrupts may be there in part. `power_cut` is the
death of the machine: `kwire.testing.power_loss` tells what that leaves.

Faults on demand: operations fail (EIO), space runs out (ENOSPC) with a part of a write done, the process dies
in the middle of an operation, and synced content is corrupted. A failed sync may have synced, and leaves what
it has not to a later sync: that Linux forgets such pages is not modelled, since nobody above can do anything
about it but not go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kwire.broker.storage.disk import TEMPORARY_SUFFIX, FileMissing, StorageError
from kwire.testing.power_loss import DirectoryContent, Entry, FileContent
from kwire.wire.primitives import Buffer


class ProcessDied(BaseException):
    """The process is gone in the middle of an operation. No handler of errors may see this."""


class MemoryFile:
    """A handle. It outlives its name, but not its process."""

    __slots__ = ("_content", "_crash_count", "_disk", "path")

    def __init__(self, disk: MemoryDisk, content: FileContent, path: str) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._crash_count = disk.crash_count

    def __repr__(self) -> str:
        return f"MemoryFile({self.path!r})"

    def fileno(self) -> int:
        raise OSError("a file in memory has no descriptor")

    def size(self) -> int:
        self._disk.before_read(self.path)
        return self._content.data.size

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._check_not_stale()
        self._disk.write_content(self._content, self.path, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.before_read(self.path)
        return self._content.data.read(position, size)

    def truncate(self, size: int) -> None:
        self._check_not_stale()
        if size == self._content.data.size:
            return
        self._disk.before_change(f"truncate {self.path} to {size}")
        self._content.truncate(size)
        self._content.modified_ms = self._disk.now_ms

    def sync(self) -> None:
        self._check_not_stale()
        self._disk.sync_content(self._content, self.path)

    def _check_not_stale(self) -> None:
        assert self._crash_count == self._disk.crash_count, (
            f"{self.path} is written through a handle from before a crash"
        )


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """See the module. Paths are absolute."""

    is_shared: Final = False

    def __init__(
        self, rng: random.Random | None = None, note: Callable[[str], None] = lambda text: None
    ) -> None:
        """`rng` decides what an operation leaves that fails, or that the process dies in; without it nothing
        but `torn_bytes`. `note` is told of what the disk does beyond its duty."""
        self.now_ms = 0
        """What the disk takes for the time of a write."""
        self.crash_count = 0
        """Counts crashes: no handle survives one."""
        self.locks: set[str] = set()
        self.changes = 0
        """How many operations changed or synced something."""
        self.syncs = 0
        """How many files were synced."""
        self.dies_after: int | None = None
        """How many more changes there are before the process dies in one."""
        self.fails_after: int | None = None
        """How many more operations succeed before they fail."""
        self.remaining_failures: int | None = None
        """How many fail then, before the disk works again; None for all."""
        self.torn_bytes = 0
        """How much of a write gets through when it is the first operation to fail."""
        self.fails_reading = True
        """Whether reading fails too, or only writing."""
        self.free_bytes: int | None = None
        """How many bytes more fit; None for as many as there are."""
        self.broken_directories: dict[str, bool] = {}
        """Directories in which nothing can be changed any more; and whether nothing can be read, either."""
        self._rng = rng
        self._note = note
        self._root = DirectoryContent()
        self._faults_suspended = False

    # --- faults

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """No faults, and nothing counts: for whoever only looks."""
        self._faults_suspended, before = True, self._faults_suspended
        try:
            yield
        finally:
            self._faults_suspended = before

    def repair(self) -> None:
        """No faults from here on."""
        self.dies_after = self.fails_after = self.free_bytes = None
        self.remaining_failures = None
        self.torn_bytes = 0
        self.broken_directories.clear()

    @property
    def is_faulty(self) -> bool:
        """Whether an operation may fail, or the process die in it."""
        return (self.dies_after, self.fails_after, self.free_bytes) != (None, None, None)

    def kill(self) -> None:
        """The process dies, or has died: what was written is still there."""
        self.repair()
        self.locks.clear()
        self.crash_count += 1

    def power_cut(self, rng: random.Random | None = None) -> None:
        """The machine dies, and chance decides what is still there."""
        self.kill()
        chance = rng or self._rng
        assert chance is not None
        self._lose_power(self._root, "", chance)

    def wipe(self) -> None:
        """Lose everything: an empty disk of the same size."""
        self.kill()
        self._root = DirectoryContent()

    def _lose_power(self, directory: DirectoryContent, path: str, rng: random.Random) -> None:
        lost = directory.lose_power(rng)
        if lost:
            self._note(f"{path or '/'} lost the last {lost} changes of its names")
        for name, entry in sorted(directory.entries.items()):
            if isinstance(entry, DirectoryContent):
                self._lose_power(entry, f"{path}/{name}", rng)
            else:
                kind = entry.lose_power(rng)
                if kind:
                    self._note(f"{path}/{name} kept {kind}: {entry.data.size} bytes")

    def corrupt(self, path: str, position: int, bits: int = 0xFF) -> None:
        """Turn bits of one byte over, on the medium and so for every reader."""
        content = self._content(path)
        [byte] = content.data.read(position, 1)
        content.data.put(position, bytes([byte ^ bits]))
        content.sync()

    def before_read(self, path: str) -> None:
        """Count a read. StorageError when it fails."""
        if self.fails_reading:
            self._may_fail(f"read {path}", reads=True)

    def before_change(self, what: str) -> None:
        """Count an operation that is about to be done. StorageError when it fails; ProcessDied."""
        if self._count_change(what):
            raise ProcessDied
        self._may_fail(what)

    def _count_change(self, what: str) -> bool:
        if self._faults_suspended:
            return False
        self.changes += 1
        if self.dies_after is None:
            return False
        self.dies_after -= 1
        if self.dies_after < 0:
            if self.dies_after == -1:
                self._note(f"dies in: {what}")
            return True
        return False

    def _may_fail(self, what: str, *, reads: bool = False) -> None:
        if self._faults_suspended:
            return
        for directory, is_unreadable in self.broken_directories.items():
            if f" {directory}/" in f"{what}/" and (is_unreadable or not reads):
                raise StorageError(f"simulated EIO: {what}")
        if self.fails_after is None:
            return
        if self.fails_after > 0:
            self.fails_after -= 1
            return
        if self.remaining_failures is not None:
            self.remaining_failures -= 1
            if self.remaining_failures <= 0:
                self.fails_after = self.remaining_failures = None
        self._note(f"fails to {what}")
        raise StorageError(f"simulated EIO: {what}")

    def write_content(self, content: FileContent, path: str, position: int, data: bytes) -> None:
        what = f"write {len(data)} bytes at {position} of {path}"
        rng = self._rng
        content.modified_ms = self.now_ms
        if self._count_change(what):
            if self.dies_after == -1 and data:
                content.write(position, data[: rng.randrange(len(data) + 1) if rng else 0])
            raise ProcessDied
        try:
            self._may_fail(what)
        except StorageError:
            if rng is None:
                content.write(position, data[: self.torn_bytes])
                self.torn_bytes = 0
            elif data and rng.random() < 0.5:
                content.write(position, data[: rng.randrange(len(data))])
            raise
        if self.free_bytes is not None and not self._faults_suspended:
            needed = max(0, position + len(data) - content.data.size)
            if needed > self.free_bytes:
                self._note(f"has no space to {what}")
                fitting = len(data) - needed + self.free_bytes
                self.free_bytes = 0
                if fitting > 0:
                    content.write(position, data[:fitting])
                raise StorageError(f"simulated ENOSPC: {what}")
            self.free_bytes -= needed
        content.write(position, data)

    def sync_content(self, content: FileContent, path: str) -> None:
        what = f"sync {path}"
        if self._count_change(what):
            if self._may_have_synced():
                content.sync()
            raise ProcessDied
        try:
            self._may_fail(what)
        except StorageError:
            if self._may_have_synced():
                content.sync()
            raise
        content.sync()
        self.syncs += 1

    def _may_have_synced(self) -> bool:
        return self._rng is not None and self._rng.random() < 0.5

    # --- looking at it from outside

    def tree(self, path: str) -> dict[str, bytes]:
        """Every file below a directory, by its relative path."""
        found: dict[str, bytes] = {}
        directory = self._entry(path)
        for name, entry in (
            sorted(directory.entries.items()) if isinstance(directory, DirectoryContent) else ()
        ):
            if isinstance(entry, DirectoryContent):
                found.update({f"{name}/{below}": data for below, data in self.tree(f"{path}/{name}").items()})
            else:
                found[name] = entry.data.all()
        return found

    def is_synced(self, path: str) -> bool:
        """Whether the medium has a file's content as readers see it."""
        return not self._content(path).pending

    # --- Disk

    def _entry(self, path: str) -> Entry | None:
        entry: Entry | None = self._root
        for name in path.split("/"):
            if name:
                entry = entry.entries.get(name) if isinstance(entry, DirectoryContent) else None
        return entry

    def _content(self, path: str) -> FileContent:
        entry = self._entry(path)
        if not isinstance(entry, FileContent):
            raise FileMissing(f"there is no file {path}")
        return entry

    def _parent(self, path: str) -> tuple[DirectoryContent, str]:
        parent, _, name = path.rpartition("/")
        entry = self._entry(parent)
        if not isinstance(entry, DirectoryContent):
            raise FileMissing(f"there is no directory {parent}")
        return entry, name

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.before_read(path)
        entry = self._entry(path)
        if not isinstance(entry, FileContent):
            if not create or entry is not None:
                raise FileMissing(f"there is no file {path}")
            parent, name = self._parent(path)
            self.before_change(f"create {path}")
            entry = FileContent(self.now_ms)
            parent.change({name: entry})
        return MemoryFile(self, entry, path)

    def exists(self, path: str) -> bool:
        return self._entry(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._entry(path), DirectoryContent)

    def size(self, path: str) -> int:
        self.before_read(path)
        return self._content(path).data.size

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def read(self, path: str) -> bytes:
        self.before_read(path)
        return self._content(path).data.all()

    def read_part(self, path: str, position: int, size: int) -> bytes:
        return self.read(path)[position : position + size]

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        file = self.open(path, create=True)
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
        parent, name = self._parent(old)
        target, new_name = self._parent(new)
        entry = parent.entries.get(name)
        if entry is None:
            raise FileMissing(f"there is no {old}")
        if parent is not target:
            raise StorageError(f"{old} and {new} lie in different directories, which is not simulated")
        self.before_change(f"rename {old} to {new_name}")
        parent.change({name: None, new_name: entry})

    def remove(self, path: str) -> None:
        try:
            parent, name = self._parent(path)
        except FileMissing:
            return
        if name in parent.entries:
            self.before_change(f"remove {path}")
            parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        entry = self._entry(path)
        if not isinstance(entry, DirectoryContent):
            return
        for name, below in list(entry.entries.items()):
            if isinstance(below, DirectoryContent):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.remove(path)

    def names(self, path: str) -> list[str]:
        self.before_read(path)
        entry = self._entry(path)
        if not isinstance(entry, DirectoryContent):
            raise FileMissing(f"there is no directory {path}")
        return sorted(entry.entries)

    def subdirectories(self, path: str) -> list[str]:
        return [name for name in self.names(path) if self.is_directory(f"{path}/{name}")]

    def make_directory(self, path: str) -> None:
        if not path or self._entry(path) is not None:
            return
        self.make_directory(path.rpartition("/")[0])
        self.before_change(f"make {path}")
        parent, name = self._parent(path)
        parent.change({name: DirectoryContent()})

    def sync_directory(self, path: str) -> None:
        entry = self._entry(path)
        if not isinstance(entry, DirectoryContent):
            return
        what = f"sync {path or '/'}"
        if self._count_change(what):
            raise ProcessDied
        self._may_fail(what)
        entry.sync()

    def lock(self, path: str) -> _Lock | None:
        if path in self.locks:
            return None
        self.open(path, create=True)
        self.locks.add(path)
        return _Lock(self, path)

    def close(self) -> None:
        """What was written is there for the next life."""

    def volume_bytes(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 39 if self.free_bytes is None else self.free_bytes
