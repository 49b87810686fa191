"""A model of what a file system keeps after a power failure.

Files and directories have a volatile state, which readers see, and a durable state on the medium. A power
failure preserves the durable state, and a random choice of the operations since the last sync:

- File content: the writes since the last sync survive completely, or not at all, or up to an operation with
  a torn last write, or as any combination of sectors. The file may have the size that all writes would have
  given it, with zeros in the lost sectors.
- Truncation: a truncation survives only with all operations before it. Later writes usually survive only
  with the truncation, since the journal orders them. But a sector that was written in place may survive
  although the truncation before it is lost. Then the rest of this sector is zeros, and later sectors have
  their content from before the truncation.
- Names in a directory: a prefix of the changes since the last sync survives. A rename within a directory is
  atomic, and so is each creation and removal.

Directories are independent of each other and of the content of their files. A sync of a file does not make
its name durable, and a sync of a directory does not make file content durable. ext4 guarantees more: it keeps
the order over all directories. POSIX guarantees no order at all; no log could survive that, including
Kafka's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SECTOR_BYTES = 64
"""Small, since simulated batches are small: a real sector has 512 or 4096 bytes."""


class SparseBytes:
    """The bytes of a file. Zeros at the end use no memory, for the sake of preallocated indexes."""

    __slots__ = ("_head", "size")

    def __init__(self, like: SparseBytes | None = None) -> None:
        self._head: bytearray = bytearray() if like is None else bytearray(like._head)
        self.size: int = 0 if like is None else like.size

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at a position."""
        found = bytes(self._head[position : position + size])
        return found + bytes(max(0, min(position + size, self.size) - position - len(found)))

    def all(self) -> bytes:
        """Return all bytes."""
        return self.read(0, self.size)

    def put(self, position: int, data: bytes) -> None:
        """Overwrite or extend the bytes at a position."""
        if position > len(self._head):
            self._head.extend(bytes(position - len(self._head)))
        self._head[position : position + len(data)] = data
        self.size = max(self.size, len(self._head))

    def resize(self, size: int) -> None:
        """Truncate or extend to `size` bytes. New bytes are zeros."""
        del self._head[size:]
        self.size = size


class FileContent:
    """The volatile and the durable content of a file."""

    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self, now_ms: int) -> None:
        self.data = SparseBytes()
        self.durable = SparseBytes()
        self.pending: list[tuple[int, bytes | None]] = []
        """Operations since the last sync: (position, bytes) for a write, (size, None) for a truncation."""
        self.modified_ms = now_ms

    def write(self, position: int, data: bytes) -> None:
        """Write to the volatile content."""
        self.pending.append((position, data))
        self.data.put(position, data)

    def truncate(self, size: int) -> None:
        """Truncate the volatile content."""
        self.pending.append((size, None))
        self.data.resize(size)

    def sync(self) -> None:
        """Make the volatile content durable."""
        self.durable = SparseBytes(self.data)
        self.pending = []

    def lose_power(self, rng: random.Random) -> str:
        """Lose a random choice of the unsynced operations. Return a description of the surviving ones.

        The description is empty if all operations were synced.
        """
        if not self.pending:
            self.data = SparseBytes(self.durable)
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
            # Only writes after the last surviving truncation are scattered.
            done = max((number + 1 for number, (_, data) in enumerate(kept) if data is None), default=0)
            after = self.pending[done:]
            until = next((number for number, (_, data) in enumerate(after) if data is None), len(after))
            kept, scattered = self.pending[:done], after[:until]
            if until < len(after) and rng.random() < 0.5:
                lost_truncation = True
                scattered = [operation for operation in after if operation[1] is not None]
        result = SparseBytes(self.durable)
        for position, data in kept:
            if data is None:
                result.resize(position)
            else:
                result.put(position, data)
        if kind == "some" and len(kept) < len(self.pending):
            position, data = self.pending[len(kept)]
            if data:
                result.put(position, data[: rng.randrange(len(data))])
        elif kind == "sectors":
            self._scatter(result, scattered, rng, zeroing=lost_truncation)
        self.data = result
        self.sync()
        return f"{kind}{', a truncation lost before writes' if lost_truncation else ''}"

    @staticmethod
    def _scatter(
        result: SparseBytes, writes: Sequence[tuple[int, bytes | None]], rng: random.Random, *, zeroing: bool
    ) -> None:
        longest = max((position + len(data) for position, data in writes if data is not None), default=0)
        if rng.random() < 0.5 and longest > result.size:
            result.resize(longest)
        likelihood = rng.choice((0.2, 0.5, 0.9))
        for position, data in writes:
            assert data is not None
            at = 0
            while at < len(data):
                size = min(SECTOR_BYTES - (position + at) % SECTOR_BYTES, len(data) - at)
                if rng.random() < likelihood:
                    result.put(position + at, data[at : at + size])
                    end = position + at + size
                    rest = min(-end % SECTOR_BYTES, result.size - end)
                    if zeroing and rest > 0:
                        result.put(end, bytes(rest))
                at += size


class DirectoryContent:
    """The volatile and the durable names in a directory."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.journal: list[dict[str, Entry | None]] = []
        """Changes since the last sync: names with their entries, or with None if they were removed."""

    def change(self, names: dict[str, Entry | None]) -> None:
        """Add, replace or (with the entry None) remove several names atomically."""
        self.journal.append(names)
        _change(self.entries, names)

    def sync(self) -> None:
        """Make the names durable."""
        self.durable = dict(self.entries)
        self.journal = []

    def lose_power(self, rng: random.Random) -> int:
        """Lose a random number of the last unsynced changes, and return this number."""
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


Entry = FileContent | DirectoryContent


def _change(entries: dict[str, Entry], names: dict[str, Entry | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
