"""A disk in memory, with the faults of real disks.

A write is visible at once, and the disk knows what has been synced. `kill` simulates the death of the
process: all completed writes survive. `power_cut` simulates the death of the machine: only synced data is
certain to survive, see `kwire.testing.power_loss`.

Tests can make operations fail (EIO), limit the free space (ENOSPC, after a partial write), let the process
run out of descriptors (EMFILE), kill the process during an operation, and corrupt files. A failed sync may
have made the file durable; otherwise a later sync does. Linux may drop the unsynced pages instead. That is
not modeled, since the broker never continues after a failed sync.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from kwire.broker.storage.disk import TEMPORARY_SUFFIX, FileMissing, ResourceShortage, StorageError
from kwire.testing.power_loss import DirectoryContent, Entry, FileContent
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer


class ProcessDied(BaseException):
    """The process died during an operation. A BaseException, so that no error handler catches it."""


class MemoryFile:
    """An open file. It can be used after a removal or rename, but not after the death of its process."""

    __slots__ = ("_content", "_crash_count", "_disk", "path")

    def __init__(self, disk: MemoryDisk, content: FileContent, path: str) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._crash_count = disk.crash_count

    def __repr__(self) -> str:
        return f"MemoryFile({self.path!r})"

    def fileno(self) -> int:
        """Raise OSError, since a file in memory has no descriptor."""
        raise OSError("a file in memory has no descriptor")

    def size(self) -> int:
        """Return the size in bytes."""
        self._disk.before_read(self.path)
        return self._content.data.size

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after another, from `position` on."""
        self._check_not_stale()
        self._disk.write_content(self._content, self.path, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at a position."""
        self._disk.before_read(self.path)
        return self._content.data.read(position, size)

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        self._check_not_stale()
        if size == self._content.data.size:
            return
        self._disk.before_change(f"truncate {self.path} to {size}")
        self._content.truncate(size)
        self._content.modified_ms = self._disk.now_ms

    def sync(self) -> float:
        """Make the content durable, and return `MemoryDisk.sync_s`."""
        self._check_not_stale()
        self._disk.sync_content(self._content, self.path)
        return self._disk.sync_s

    def _check_not_stale(self) -> None:
        assert self._crash_count == self._disk.crash_count, f"{self.path} was opened before a crash"


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """A file system in memory. Paths are absolute.

    If a fault applies, an operation raises StorageError or ProcessDied.
    """

    is_shared: Final = False

    def __init__(
        self, rng: random.Random | None = None, note: Callable[[str], None] = lambda text: None
    ) -> None:
        """Create an empty disk.

        `rng` decides how much of a failed or interrupted operation is done. Without `rng`, `torn_bytes` bytes
        of a failed write are written. `note` receives a line for each fault.
        """
        self.now_ms = 0
        """The current time in ms, which becomes the modification time of written files."""
        self.crash_count = 0
        """The number of crashes. Files that were opened before the last crash are invalid."""
        self.locks: set[str] = set()
        self.changes = 0
        """The number of operations that changed or synced something."""
        self.syncs = 0
        """The number of syncs of files."""
        self.sync_s = 0.0
        """The time that each sync of a file reports, in seconds."""
        self.dies_after: int | None = None
        """The number of changes before the one during which the process dies. None means never."""
        self.fails_after: int | None = None
        """The number of operations before the first one that fails. None means never."""
        self.remaining_failures: int | None = None
        """The number of operations that fail before the disk works again. None means all."""
        self.torn_bytes = 0
        """The number of bytes that a write still writes if it is the first operation to fail."""
        self.fails_reading = True
        """Whether reads can fail, too."""
        self.free_bytes: int | None = None
        """The free space in bytes. None means unlimited."""
        self.shortage_after: int | None = None
        """The number of operations before the first one that finds no free descriptor. None means never.

        Operations within `reserved` do not count, and find a descriptor."""
        self.broken_directories: dict[str, bool] = {}
        """Failed directories. Writes in them fail; reads fail if the value and `fails_reading` are true."""
        self._rng = rng
        self._note = note
        self._root = DirectoryContent()
        self._faults_suspended = False
        self._reserved_depth = 0

    # --- faults

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Disable faults and counters, for checks by a test."""
        self._faults_suspended, before = True, self._faults_suspended
        try:
            yield
        finally:
            self._faults_suspended = before

    def repair(self) -> None:
        """Remove all faults."""
        self.dies_after = self.fails_after = self.free_bytes = self.shortage_after = None
        self.remaining_failures = None
        self.torn_bytes = 0
        self.broken_directories.clear()

    @property
    def is_faulty(self) -> bool:
        """Whether `dies_after`, `fails_after` or `free_bytes` is set."""
        return (self.dies_after, self.fails_after, self.free_bytes) != (None, None, None)

    def kill(self) -> None:
        """Simulate the death of the process. All writes survive; faults are removed and locks released."""
        self.repair()
        self.locks.clear()
        self.crash_count += 1

    def power_cut(self, rng: random.Random | None = None) -> None:
        """Simulate a power failure. `rng`, or the disk's, decides which unsynced operations survive."""
        self.kill()
        chance = rng or self._rng
        assert chance is not None
        self._lose_power(self._root, "", chance)

    def wipe(self) -> None:
        """Remove all files, as if the disk were replaced by an empty one."""
        self.kill()
        self._root = DirectoryContent()

    def _lose_power(self, directory: DirectoryContent, path: str, rng: random.Random) -> None:
        lost = directory.lose_power(rng)
        if lost:
            self._note(f"{path or '/'} lost the last {lost} changes of its directory entries")
        for name, entry in sorted(directory.entries.items()):
            if isinstance(entry, DirectoryContent):
                self._lose_power(entry, f"{path}/{name}", rng)
            else:
                kind = entry.lose_power(rng)
                if kind:
                    self._note(f"{path}/{name} kept {kind}: {plural(entry.data.size, 'byte')}")

    def corrupt(self, path: str, position: int, bits: int = 0xFF) -> None:
        """Flip the bits of the mask `bits` in one byte, and make the complete file durable."""
        content = self._content(path)
        [byte] = content.data.read(position, 1)
        content.data.put(position, bytes([byte ^ bits]))
        content.sync()

    def before_read(self, path: str) -> None:
        """Count a read. Raises StorageError if the read must fail."""
        if self.fails_reading:
            self._may_fail(f"read {path}", reads=True)

    def before_change(self, what: str) -> None:
        """Count an operation before it is done. `what` describes the operation and names its path.

        Raises StorageError or ProcessDied if the operation must fail.
        """
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
                self._note(f"interrupts the process during: {what}")
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
        """Write to a file. If a fault applies, write a part and raise StorageError or ProcessDied."""
        what = f"write {plural(len(data), 'byte')} at {position} of {path}"
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
        """Sync a file. The content may be durable even after a StorageError or ProcessDied."""
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

    # --- inspection by tests

    def tree(self, path: str) -> dict[str, bytes]:
        """Return the content of every file below a directory, by relative path."""
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
        """Return whether the content of a file is durable."""
        return not self._content(path).pending

    # --- the interface of a disk

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Run a block that finds a descriptor for each file. Entering may raise ResourceShortage."""
        if not self._reserved_depth:
            self._need_descriptor("reserved descriptors")
        self._reserved_depth += 1
        try:
            yield
        finally:
            self._reserved_depth -= 1

    def lent(self) -> AbstractContextManager[None]:
        """Return a block without effect, since other files have descriptors."""
        return nullcontext()

    def give_back_descriptors(self) -> bool:
        """Return False, since the disk has no descriptors."""
        return False

    def _need_descriptor(self, what: str) -> None:
        if self.shortage_after is None or self._reserved_depth or self._faults_suspended:
            return
        if self.shortage_after > 0:
            self.shortage_after -= 1
            return
        self._note(f"has no descriptor for {what}")
        raise ResourceShortage(f"simulated EMFILE: {what}")

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
        """Open a file. Without `create`, raises FileMissing if the file does not exist."""
        self._need_descriptor(path)
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
        """Return whether a file or directory exists."""
        return self._entry(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether a path is a directory."""
        return isinstance(self._entry(path), DirectoryContent)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        self.before_read(path)
        return self._content(path).data.size

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write to a file, in ms."""
        return self._content(path).modified_ms

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        self._need_descriptor(path)
        self.before_read(path)
        return self._content(path).data.all()

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes of a file, from `position` on."""
        return self.read(path)[position : position + size]

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        """Replace the content of a file in place, and create the file if necessary."""
        file = self.open(path, create=True)
        file.truncate(0)
        file.write_at(0, [content])
        if sync:
            file.sync()

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        """Replace a file atomically, by a rename. With `sync`, the new content and name are durable."""
        temporary = path + TEMPORARY_SUFFIX
        self.write(temporary, content, sync=sync)
        self.rename(temporary, path)
        if sync:
            self.sync_directory(path.rpartition("/")[0])

    def make_read_only(self, path: str) -> None:
        """Do nothing, since files in memory have no permissions."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within its directory, and replace the entry `new` if it exists."""
        parent, name = self._parent(old)
        target, new_name = self._parent(new)
        entry = parent.entries.get(name)
        if entry is None:
            raise FileMissing(f"there is no {old}")
        if parent is not target:
            raise StorageError(f"{old} and {new} are in different directories, which is not simulated")
        self.before_change(f"rename {old} to {new_name}")
        parent.change({name: None, new_name: entry})

    def remove(self, path: str) -> None:
        """Remove a directory entry if it exists."""
        try:
            parent, name = self._parent(path)
        except FileMissing:
            return
        if name in parent.entries:
            self.before_change(f"remove {path}")
            parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything below it, if the directory exists."""
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
        """Return the sorted names in a directory. Raises FileMissing."""
        self._need_descriptor(path)
        self.before_read(path)
        entry = self._entry(path)
        if not isinstance(entry, DirectoryContent):
            raise FileMissing(f"there is no directory {path}")
        return sorted(entry.entries)

    def subdirectories(self, path: str) -> list[str]:
        """Return the sorted names of the directories in a directory."""
        return [name for name in self.names(path) if self.is_directory(f"{path}/{name}")]

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        if not path or self._entry(path) is not None:
            return
        self.make_directory(path.rpartition("/")[0])
        self.before_change(f"make {path}")
        parent, name = self._parent(path)
        parent.change({name: DirectoryContent()})

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        entry = self._entry(path)
        if not isinstance(entry, DirectoryContent):
            return
        what = f"sync {path or '/'}"
        if self._count_change(what):
            raise ProcessDied
        self._may_fail(what)
        entry.sync()

    def lock(self, path: str) -> _Lock | None:
        """Lock a file. Returns None if the file is locked already."""
        if path in self.locks:
            return None
        self.open(path, create=True)
        self.locks.add(path)
        return _Lock(self, path)

    def close(self) -> None:
        """Do nothing: the content stays for the next process."""

    def volume_bytes(self, path: str) -> tuple[int, int]:
        """Return the total and the free bytes of the volume."""
        return 1 << 40, 1 << 39 if self.free_bytes is None else self.free_bytes
