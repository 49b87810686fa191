"""What a medium has of files and names, and what a loss of power leaves of them, as chance decides.

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
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SECTOR_BYTES = 64
"""As small beside the simulated batches as a sector of 512 or 4096 bytes is beside real ones."""


class SparseBytes:
    """What a file consists of. Zeros at its end take no room: indexes are made as long as they may become."""

    __slots__ = ("_head", "size")

    def __init__(self, like: SparseBytes | None = None) -> None:
        self._head: bytearray = bytearray() if like is None else bytearray(like._head)
        self.size: int = 0 if like is None else like.size

    def read(self, position: int, size: int) -> bytes:
        """As much as there is of that."""
        found = bytes(self._head[position : position + size])
        return found + bytes(max(0, min(position + size, self.size) - position - len(found)))

    def all(self) -> bytes:
        return self.read(0, self.size)

    def put(self, position: int, data: bytes) -> None:
        """Write over what is there, or behind it."""
        if position > len(self._head):
            self._head.extend(bytes(position - len(self._head)))
        self._head[position : position + len(data)] = data
        self.size = max(self.size, len(self._head))

    def resize(self, size: int) -> None:
        del self._head[size:]
        self.size = size


class FileContent:
    """A file's bytes as readers see them, and what the medium has of them."""

    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self, now_ms: int) -> None:
        self.data = SparseBytes()
        self.durable = SparseBytes()
        self.pending: list[tuple[int, bytes | None]] = []
        """Since the last sync: (position, bytes written), or (size, None) for a truncation."""
        self.modified_ms = now_ms

    def write(self, position: int, data: bytes) -> None:
        self.pending.append((position, data))
        self.data.put(position, data)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        self.data.resize(size)

    def sync(self) -> None:
        self.durable = SparseBytes(self.data)
        self.pending = []

    def lose_power(self, rng: random.Random) -> str:
        """Become what the medium has; how that came about."""
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
            # Whatever was written since the last truncation that survives.
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
    """Names, and what of them the medium has."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.journal: list[dict[str, Entry | None]] = []
        """Since the last sync, in order: names and what they stand for, None for gone."""

    def change(self, names: dict[str, Entry | None]) -> None:
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


Entry = FileContent | DirectoryContent


def _change(entries: dict[str, Entry], names: dict[str, Entry | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
