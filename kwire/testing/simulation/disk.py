"""A disk that does to files whatever a real one may, as one random generator decides.

What survives a loss of power, in this model:

- The content of a file is what its last sync saw. Writes since then survive all, not at all, up to some
  operation whose bytes may be torn, or sector by sector in any combination, on a file that may be as long as
  they made it: then zeros stand where nothing arrived. A truncation survives only with those before it. What
  is written after a truncation normally survives only with it, since the journal orders them; but a sector
  written in place may arrive although the truncation before it was lost. What follows in that sector is
  zeros then, and what follows that is what was there before the truncation.
- The names in a directory are what its last sync saw, and a prefix of what was done to them since, in order.
  Directories are independent of each other, and of the content of the files in them: syncing a file does not
  make its name durable, nor the other way round. ext4 keeps all directories in one order and promises more;
  POSIX promises no order at all, which no log, Kafka's included, can bear.
- A rename within a directory is atomic, as is each creation and removal.

A kill leaves everything that was written. A write that the kill interrupts may be there in part.

Faults on demand: reads, writes and syncs fail (EIO), space runs out (ENOSPC) with a part of a write done, and
bits of synced content flip. A failed sync may have synced, and leaves what it has not to a later sync: that
Linux forgets such pages is not modelled, since nobody above can do anything about it but not go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kwire.broker.storage.disk import TEMPORARY_SUFFIX, Buffer, FileMissing, StorageError

SECTOR_BYTES = 64
"""As small beside the simulated batches as a sector of 512 or 4096 bytes is beside real ones."""


class Died(BaseException):
    """The process is gone in the middle of an operation. No handler of errors may see this."""


class Content:
    """A file's bytes as readers see them, and what the medium has of them."""

    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, bytes | None]] = []
        """Since the last sync: (position, bytes written), or (size, None) for a truncation."""
        self.modified_ms = now_ms

    def write(self, position: int, data: bytes) -> None:
        self.pending.append((position, data))
        _put(self.data, position, data)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        _resize(self.data, size)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending = []

    def lose_power(self, rng: random.Random) -> str:
        """Become what the medium has; how that came about."""
        if not self.pending:
            self.data = bytearray(self.durable)
            return ""
        kind = rng.choice(("nothing", "everything", "some", "sectors", "sectors"))
        if kind == "everything":
            kept = self.pending
        elif kind == "nothing":
            kept = []
        else:
            kept = self.pending[: rng.randint(0, len(self.pending))]
        lost_truncation = False
        if kind == "sectors":
            # Whatever was written since the last truncation that survives.
            done = max((number + 1 for number, (_, data) in enumerate(kept) if data is None), default=0)
            after = self.pending[done:]
            until = next((number for number, (_, data) in enumerate(after) if data is None), len(after))
            kept, scattered = self.pending[:done], after[:until]
            if until < len(after) and rng.random() < 0.5:
                lost_truncation = True
                scattered = [operation for operation in after if operation[1] is not None]
        result = bytearray(self.durable)
        for position, data in kept:
            if data is None:
                _resize(result, position)
            else:
                _put(result, position, data)
        if kind == "some" and len(kept) < len(self.pending):
            position, data = self.pending[len(kept)]
            if data:
                _put(result, position, data[: rng.randrange(len(data))])
        elif kind == "sectors":
            self._scatter(result, scattered, rng, zeroing=lost_truncation)
        self.data = result
        self.sync()
        return f"{kind}{', a truncation lost before writes' if lost_truncation else ''}"

    @staticmethod
    def _scatter(
        result: bytearray, writes: Sequence[tuple[int, bytes | None]], rng: random.Random, *, zeroing: bool
    ) -> None:
        longest = max((position + len(data) for position, data in writes if data is not None), default=0)
        if rng.random() < 0.5 and longest > len(result):
            _resize(result, longest)
        likelihood = rng.choice((0.2, 0.5, 0.9))
        for position, data in writes:
            assert data is not None
            at = 0
            while at < len(data):
                size = min(SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(data) - at)
                if rng.random() < likelihood:
                    _put(result, position + at, data[at : at + size])
                    end = position + at + size
                    rest = min(-end % SECTOR_BYTES, len(result) - end)
                    if zeroing and rest > 0:
                        result[end : end + rest] = bytes(rest)
                at += size


def _put(target: bytearray, position: int, data: bytes) -> None:
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def _resize(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


class Directory:
    """Names, and what of them the medium has."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.journal: list[dict[str, Node | None]] = []
        """Since the last sync, in order: names and what they stand for, None for gone."""

    def change(self, names: dict[str, Node | None]) -> None:
        """All of these at once."""
        self.journal.append(names)
        _change(self.entries, names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal = []

    def lose_power(self, rng: random.Random) -> int:
        """Become what the medium has; how many operations that lost."""
        if not self.journal:
            return 0
        kept = rng.choice((0, len(self.journal), rng.randint(0, len(self.journal))))
        lost = len(self.journal) - kept
        entries = dict(self.durable)
        for names in self.journal[:kept]:
            _change(entries, names)
        self.entries = entries
        self.sync()
        return lost


Node = Content | Directory


def _change(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class SimulatedFile:
    """A handle. It outlives its name, but not its process."""

    __slots__ = ("_content", "_disk", "_life", "path")

    def __init__(self, disk: SimulatedDisk, content: Content, path: str) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._life = disk.life

    def __repr__(self) -> str:
        return f"SimulatedFile({self.path!r})"

    def fileno(self) -> int:
        raise OSError("a simulated file has no descriptor")

    def size(self) -> int:
        self._disk.reading(self.path)
        return len(self._content.data)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._same_life()
        self._disk.put(self._content, self.path, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.reading(self.path)
        return bytes(self._content.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._same_life()
        if size == len(self._content.data):
            return
        self._disk.changing(f"truncate {self.path} to {size}")
        self._content.truncate(size)
        self._content.modified_ms = self._disk.now_ms

    def sync(self) -> None:
        self._same_life()
        self._disk.make_durable(self._content, self.path)

    def _same_life(self) -> None:
        assert self._life == self._disk.life, f"{self.path} is written through a handle from before a crash"


class _Lock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimulatedDisk:
    """See the module. Paths are absolute."""

    def __init__(self, rng: random.Random, note: Callable[[str], None] = lambda text: None) -> None:
        """`note` is told of what the disk does beyond its duty."""
        self.now_ms = 0
        """What the disk takes for the time of a write."""
        self.life = 0
        """Counts crashes: no handle survives one."""
        self.locks: set[str] = set()
        self.changes = 0
        """How many operations changed or synced something."""
        self.dies_after: int | None = None
        """How many more changes there are before the process dies in one."""
        self.fails_after: int | None = None
        """How many more operations succeed before they fail."""
        self.failures = 0
        """How many fail then, before the disk works again."""
        self.fails_reading = False
        """Whether reading fails too, or only writing."""
        self.free_bytes: int | None = None
        """How many bytes more fit; None for as many as there are."""
        self._rng = rng
        self._note = note
        self._root = Directory()
        self._undisturbed = False

    # --- faults

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """No faults, and nothing counts: for whoever only looks."""
        self._undisturbed, before = True, self._undisturbed
        try:
            yield
        finally:
            self._undisturbed = before

    def repair(self) -> None:
        """No faults from here on."""
        self.dies_after = self.fails_after = self.free_bytes = None
        self.failures = 0

    @property
    def is_faulty(self) -> bool:
        """Whether an operation may fail, or the process die in it."""
        return (self.dies_after, self.fails_after, self.free_bytes) != (None, None, None)

    def kill(self) -> None:
        """The process dies, or has died: what was written is still there."""
        self.repair()
        self.locks.clear()
        self.life += 1

    def power_cut(self) -> None:
        """The machine dies: see the module for what is still there."""
        self.kill()
        self._lose_power(self._root, "")

    def _lose_power(self, directory: Directory, path: str) -> None:
        rng = self._rng
        lost = directory.lose_power(rng)
        if lost:
            self._note(f"{path or '/'} lost the last {lost} changes of its names")
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, Directory):
                self._lose_power(node, f"{path}/{name}")
            else:
                kind = node.lose_power(rng)
                if kind:
                    self._note(f"{path}/{name} kept {kind}: {len(node.data)} bytes")

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit over, on the medium and so for every reader."""
        content = self._content(path)
        content.data[bit // 8] ^= 1 << bit % 8
        content.sync()

    def reading(self, path: str) -> None:
        """Count a read. StorageError when it fails."""
        if self.fails_reading:
            self._may_fail(f"read {path}")

    def changing(self, what: str) -> None:
        """Count an operation that is about to be done. StorageError when it fails; Died."""
        if self._dies(what):
            raise Died
        self._may_fail(what)

    def _dies(self, what: str) -> bool:
        if self._undisturbed:
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

    def _may_fail(self, what: str) -> None:
        if self.fails_after is None or self._undisturbed:
            return
        if self.fails_after > 0:
            self.fails_after -= 1
            return
        self.failures -= 1
        if self.failures <= 0:
            self.fails_after = None
        self._note(f"fails to {what}")
        raise StorageError(f"simulated EIO: {what}")

    def put(self, content: Content, path: str, position: int, data: bytes) -> None:
        what = f"write {len(data)} bytes at {position} of {path}"
        rng = self._rng
        content.modified_ms = self.now_ms
        if self._dies(what):
            if self.dies_after == -1 and data:
                content.write(position, data[: rng.randrange(len(data) + 1)])
            raise Died
        try:
            self._may_fail(what)
        except StorageError:
            if data and rng.random() < 0.5:
                content.write(position, data[: rng.randrange(len(data))])
            raise
        if self.free_bytes is not None and not self._undisturbed:
            needed = max(0, position + len(data) - len(content.data))
            if needed > self.free_bytes:
                self._note(f"has no space to {what}")
                fitting = len(data) - needed + self.free_bytes
                self.free_bytes = 0
                if fitting > 0:
                    content.write(position, data[:fitting])
                raise StorageError(f"simulated ENOSPC: {what}")
            self.free_bytes -= needed
        content.write(position, data)

    def make_durable(self, content: Content, path: str) -> None:
        what = f"sync {path}"
        if self._dies(what):
            if self._rng.random() < 0.5:
                content.sync()
            raise Died
        try:
            self._may_fail(what)
        except StorageError:
            if self._rng.random() < 0.5:
                content.sync()
            raise
        content.sync()

    # --- looking at it from outside

    def tree(self, path: str) -> dict[str, bytes]:
        """Every file below a directory, by its relative path."""
        found: dict[str, bytes] = {}
        directory = self._node(path)
        assert isinstance(directory, Directory)
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, Directory):
                found.update({f"{name}/{below}": data for below, data in self.tree(f"{path}/{name}").items()})
            else:
                found[name] = bytes(node.data)
        return found

    def is_synced(self, path: str) -> bool:
        """Whether the medium has a file's content as readers see it."""
        return not self._content(path).pending

    # --- Disk

    def _node(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in path.split("/"):
            if name:
                node = node.entries.get(name) if isinstance(node, Directory) else None
        return node

    def _content(self, path: str) -> Content:
        node = self._node(path)
        if not isinstance(node, Content):
            raise FileMissing(f"there is no file {path}")
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        node = self._node(parent)
        if not isinstance(node, Directory):
            raise FileMissing(f"there is no directory {parent}")
        return node, name

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.reading(path)
        node = self._node(path)
        if not isinstance(node, Content):
            if not create or node is not None:
                raise FileMissing(f"there is no file {path}")
            parent, name = self._parent(path)
            self.changing(f"create {path}")
            node = Content(self.now_ms)
            parent.change({name: node})
        return SimulatedFile(self, node, path)

    def exists(self, path: str) -> bool:
        return self._node(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._node(path), Directory)

    def size(self, path: str) -> int:
        self.reading(path)
        return len(self._content(path).data)

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def read(self, path: str) -> bytes:
        self.reading(path)
        return bytes(self._content(path).data)

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
        node = parent.entries.get(name)
        if node is None:
            raise FileMissing(f"there is no {old}")
        if parent is not target:
            raise StorageError(f"{old} and {new} lie in different directories, which is not simulated")
        self.changing(f"rename {old} to {new_name}")
        parent.change({name: None, new_name: node})

    def remove(self, path: str) -> None:
        try:
            parent, name = self._parent(path)
        except FileMissing:
            return
        if name in parent.entries:
            self.changing(f"remove {path}")
            parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        node = self._node(path)
        if not isinstance(node, Directory):
            return
        for name, below in list(node.entries.items()):
            if isinstance(below, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.remove(path)

    def names(self, path: str) -> list[str]:
        self.reading(path)
        node = self._node(path)
        if not isinstance(node, Directory):
            raise FileMissing(f"there is no directory {path}")
        return sorted(node.entries)

    def make_directory(self, path: str) -> None:
        if not path or self._node(path) is not None:
            return
        self.make_directory(path.rpartition("/")[0])
        self.changing(f"make {path}")
        parent, name = self._parent(path)
        parent.change({name: Directory()})

    def sync_directory(self, path: str) -> None:
        node = self._node(path)
        if not isinstance(node, Directory):
            return
        what = f"sync {path or '/'}"
        if self._dies(what):
            raise Died
        self._may_fail(what)
        node.sync()

    def lock(self, path: str) -> _Lock | None:
        if path in self.locks:
            return None
        self.open(path, create=True)
        self.locks.add(path)
        return _Lock(self, path)

    def volume_bytes(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 39 if self.free_bytes is None else self.free_bytes
