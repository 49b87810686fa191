"""The two indexes of a segment: offset to position, and timestamp to offset. Files as Kafka writes them.

An index is an array of fixed-size big-endian entries, each with its offset relative to the segment's base:
8 bytes (offset, position) or 12 (timestamp, offset). The files of an active segment that is written to are
preallocated with zeros, and cut to their entries when the segment rolls or closes. A crash leaves the active
ones in doubt; they are rebuilt from the log then, so nothing here is ever synced for the active segment.

Entries are gathered in memory and written a block at a time. That keeps index writes out of most appends, and
the gathered tail is what nearly every lookup ends in. Lookups further back read the file by bisection, a
block in the last step, which is kept for a while: whoever reads on needs it again. No descriptor and no
mapping is held in between.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from struct import Struct

from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.batch import NO_TIMESTAMP

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")

MAX_RELATIVE_OFFSET = (1 << 31) - 1
_BLOCK_ENTRIES = 128
"""How many entries the last step of a bisection reads at once, at most."""
_TAIL_ENTRIES = 64
"""How many entries are gathered before they are written."""


class CorruptIndex(StorageError):
    """The file cannot be an index of its segment. It has to be rebuilt from the log."""


class InvalidOffset(StorageError):
    """An entry that does not lie beyond the last one: the log's offsets are out of order."""


class _Index:
    """What both kinds share: counted entries, the first part in the file, the tail in memory."""

    __slots__ = (
        "_block",
        "_block_begins",
        "_disk",
        "_entry",
        "_is_trimmed",
        "_last",
        "_loaded",
        "_on_disk",
        "_tail",
        "base_offset",
        "max_entries",
        "needs_sync",
        "path",
    )

    def __init__(self, disk: Disk, path: str, base_offset: int, entry: Struct) -> None:
        self._disk = disk
        self._entry = entry
        self.path = path
        self.base_offset = base_offset
        self.max_entries = 0
        """How many entries the preallocated file takes; 0 for an index that is not written to."""
        self.needs_sync = False
        """Whether the file was changed since it was found or synced."""
        self._loaded = False
        self._is_trimmed = True
        """Whether the file holds its entries and nothing behind them."""
        self._on_disk = 0
        self._block = b""
        """The entries of the file in which the last lookup ended, from number `_block_begins` on."""
        self._block_begins = 0
        self._tail: list[tuple[int, int]] = []
        self._last: tuple[int, int] | None = None

    # --- opening and closing

    def create(self, max_bytes: int) -> None:
        """Start empty, in a preallocated file."""
        self._loaded = True
        self._on_disk = 0
        self._block = b""
        self._tail = []
        self._last = None
        self.max_entries = max_bytes // self._entry.size
        self._is_trimmed = not self.max_entries
        self.needs_sync = True
        self._disk.open(self.path, create=True).truncate(self.max_entries * self._entry.size)

    def open_for_appends(self, max_bytes: int) -> None:
        """Let the file grow to this size. It gets it when entries are first written: most logs are quiet."""
        self.load()
        self.max_entries = max_bytes // self._entry.size

    def load(self) -> None:
        """Learn how many entries there are, once. CorruptIndex; FileMissing."""
        if self._loaded:
            return
        size = self._disk.size(self.path)
        if size % self._entry.size:
            raise CorruptIndex(f"{self.path} holds {size} bytes, no multiple of {self._entry.size}")
        self._on_disk = size // self._entry.size
        self._block = b""
        self._is_trimmed = True
        self._tail = []
        self._last = None
        if self._on_disk:
            last = self._last = self._read_entry(self._on_disk - 1)
            # Keys grow strictly; a preallocated file that was never cut ends in zeros instead.
            if min(last) < 0 or (self._on_disk > 1 and last[0] <= self._read_entry(0)[0]):
                raise CorruptIndex(f"{self.path} ends in the entry {last}")
        self._loaded = True

    def mark_empty(self) -> None:
        """Its segment is, so that no entry of the file could be right, and none is looked for."""
        self._loaded = True

    def finish(self) -> None:
        """Write the gathered tail and cut the file to its entries: the segment is no longer active."""
        self.load()
        self.max_entries = 0
        self.write_tail()
        if not self._is_trimmed:
            self._disk.open(self.path).truncate(self._on_disk * self._entry.size)
            self._is_trimmed = True
            self.needs_sync = True

    def forget(self) -> None:
        """Drop what is known of the file."""
        self._loaded = False
        self._block = b""
        self._tail = []

    def forget_lookup(self) -> None:
        """Drop what is kept of the last lookup."""
        self._block = b""

    def write_tail(self) -> None:
        """Put the gathered entries into the file."""
        if not self._tail:
            return
        pack = self._entry.pack
        block = b"".join([pack(key, value) for key, value in self._tail])
        file = self._disk.open(self.path)
        self.needs_sync = True
        if self._is_trimmed and self.max_entries:
            self._is_trimmed = False
            file.truncate(max(self.max_entries, self._on_disk) * self._entry.size)
        file.write_at(self._on_disk * self._entry.size, [block])
        self._on_disk += len(self._tail)
        self._tail = []

    def sync(self) -> None:
        """Make the file durable. May run in a worker thread."""
        self._disk.open(self.path).sync()

    # --- entries

    @property
    def entries(self) -> int:
        self.load()
        return self._on_disk + len(self._tail)

    def _append(self, key: int, value: int) -> None:
        self._last = (key, value)
        self._tail.append(self._last)
        if len(self._tail) >= _TAIL_ENTRIES:
            self.write_tail()

    def entry(self, number: int) -> tuple[int, int]:
        """The entry as it is stored: its offset is relative."""
        self.load()
        if number >= self._on_disk:
            return self._tail[number - self._on_disk]
        return self._read_entry(number)

    def _read_entry(self, number: int) -> tuple[int, int]:
        size = self._entry.size
        at = (number - self._block_begins) * size
        if 0 <= at < len(self._block):
            key, value = self._entry.unpack_from(self._block, at)
        else:
            key, value = self._entry.unpack(self._read(number, 1))
        return key, value

    def _read(self, number: int, count: int) -> bytes:
        size = self._entry.size
        data = self._disk.open(self.path).read_at(number * size, count * size)
        if len(data) < count * size:
            raise CorruptIndex(f"{self.path} is shorter than its {self._on_disk} entries")
        return data

    def _floor(self, target: int, column: int = 0) -> int:
        """The number of the last entry whose column is at most the target; -1 if there is none."""
        self.load()
        tail = self._tail
        if tail and tail[0][column] <= target:
            return self._on_disk + bisect_right(tail, target, key=itemgetter(column)) - 1
        if not self._on_disk:
            return -1
        if not self._is_in_block(target, column):
            self._read_block(target, column)
        block, unpack_from, size = self._block, self._entry.unpack_from, self._entry.size
        numbers = range(len(block) // size)
        at = bisect_right(numbers, target, key=lambda number: unpack_from(block, number * size)[column])
        return self._block_begins + at - 1

    def _is_in_block(self, target: int, column: int) -> bool:
        """Whether the block has the last entry of the file whose column is at most the target, if one is."""
        block, first = self._block, self._block_begins
        if not block or (first and self._entry.unpack_from(block)[column] > target):
            return False
        end = first + len(block) // self._entry.size
        return end == self._on_disk or self._read_entry(end - 1)[column] > target

    def _read_block(self, target: int, column: int) -> None:
        first, end = 0, self._on_disk
        while end - first > _BLOCK_ENTRIES:
            middle = (first + end) // 2
            if self._read_entry(middle)[column] <= target:
                first = middle
            else:
                end = middle
        self._block, self._block_begins = self._read(first, end - first), first

    def _truncate_to_entries(self, count: int) -> None:
        """Drop every entry from number `count` on."""
        self._block = b""
        if count <= self._on_disk:
            self._is_trimmed = self._is_trimmed and count == self._on_disk
            self._on_disk = count
            self._tail = []
        else:
            del self._tail[count - self._on_disk :]
        self._last = self.entry(count - 1) if count else None


class OffsetIndex(_Index):
    """`.index`: for some of the segment's appends, their last offset and where they begin."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path, base_offset, OFFSET_ENTRY)

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset when there is none."""
        self.load()
        return self.base_offset + self._last[0] if self._last else self.base_offset

    @property
    def last_position(self) -> int:
        """The position in the last entry; -1 when there is none."""
        return self._last[1] if self._last else -1

    @property
    def is_full(self) -> bool:
        return self._on_disk + len(self._tail) >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        """Note that the append that ends in `offset` begins at `position`. InvalidOffset."""
        relative = offset - self.base_offset
        if self._last is not None and relative <= self._last[0]:
            raise InvalidOffset(f"{self.path}: offset {offset} after {self.last_offset}")
        self._append(relative, position)

    def lookup(self, offset: int) -> int:
        """A position from where a scan meets the first batch that holds `offset` or comes after it."""
        number = self._floor(offset - self.base_offset)
        return 0 if number < 0 else self.entry(number)[1]

    def offset_at(self, position: int) -> int | None:
        """The first offset of the index that lies at `position` or behind it; None where there is none.

        The very first entry is passed over when it lies there exactly, as by Apache Kafka's bisection.
        """
        number = self._floor(position - 1, 1) + 1
        if not number and self.entries and self.entry(0)[1] == position:
            number = 1
        return self.base_offset + self.entry(number)[0] if number < self.entries else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries for `offset` and beyond."""
        relative = offset - self.base_offset
        number = self._floor(relative)
        self._truncate_to_entries(number if number >= 0 and self.entry(number)[0] == relative else number + 1)


class TimeIndex(_Index):
    """`.timeindex`: a timestamp and the offset up to which no record is younger. Both only grow."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path, base_offset, TIME_ENTRY)

    @property
    def last_entry(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; -1 and the base offset when there is none."""
        self.load()
        if self._last is None:
            return NO_TIMESTAMP, self.base_offset
        return self._last[0], self.base_offset + self._last[1]

    @property
    def is_full(self) -> bool:
        # One place is kept for the entry that a roll adds.
        return self._on_disk + len(self._tail) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry when the timestamp is greater than the last one's. InvalidOffset."""
        relative = offset - self.base_offset
        last = self._last
        if last is None:
            if timestamp <= NO_TIMESTAMP:
                return
        elif timestamp <= last[0]:
            return
        elif relative < last[1]:
            raise InvalidOffset(f"{self.path}: offset {offset} after {self.last_entry[1]}")
        self._append(timestamp, relative)

    def lookup(self, timestamp: int) -> int:
        """An offset up to which no record is younger than `timestamp`."""
        number = self._floor(timestamp)
        return self.base_offset if number < 0 else self.base_offset + self.entry(number)[1]

    def truncate_to(self, offset: int) -> None:
        """Drop the entries for `offset` and beyond."""
        relative = offset - self.base_offset
        number = self._floor(relative, column=1)
        self._truncate_to_entries(number if number >= 0 and self.entry(number)[1] == relative else number + 1)
