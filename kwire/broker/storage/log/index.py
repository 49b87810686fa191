"""The offset index and the time index of a segment, in Kafka's file formats.

An index is an array of big-endian entries of 8 bytes (relative offset, position) or 12 bytes (timestamp,
relative offset). The index files of an active segment are preallocated with zeros, and truncated to their
entries when the segment rolls or the log is closed. Log recovery rebuilds the indexes of the active segment
after a crash, so they are not synced while the segment is active.

New entries are collected in memory and written in blocks, so that most appends do not write to an index.
Nearly every lookup finds its entry in memory. Other lookups bisect the file. The last step of the bisection
reads a block, which is cached because a sequential reader needs it again. Between lookups the index has no
open descriptor and no memory mapping.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from operator import itemgetter
from struct import Struct

from kwire.broker.storage.disk import Disk, ResourceShortage, StorageError
from kwire.wire.batch import NO_TIMESTAMP
from kwire.wire.plural import plural

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")

MAX_RELATIVE_OFFSET = (1 << 31) - 1
_BLOCK_ENTRIES = 128
"""The maximum number of entries that the last step of a bisection reads."""
_TAIL_ENTRIES = 64
"""The number of entries that are collected before they are written."""


class CorruptIndex(StorageError):
    """An index file with invalid content. The index has to be rebuilt from the log."""


class InvalidOffset(StorageError):
    """An index entry whose offset does not follow the last entry: the log's offsets are out of order."""


class _Index:
    """The common part of both indexes: entries in the file, followed by entries in memory."""

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
        """The capacity of the preallocated file; 0 for the index of an inactive segment."""
        self.needs_sync = False
        """Whether the file was changed since the index was loaded. A sync does not reset it."""
        self._loaded = False
        self._is_trimmed = True
        """Whether the file ends with its last entry."""
        self._on_disk = 0
        self._block = b""
        """The block that the last lookup read. Its first entry has the number `_block_begins`."""
        self._block_begins = 0
        self._tail: list[tuple[int, int]] = []
        self._last: tuple[int, int] | None = None

    # --- opening and closing the file

    def create(self, max_bytes: int) -> None:
        """Make the index empty, and preallocate its file with `max_bytes`. Create a missing file."""
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
        """Allow the file to grow to `max_bytes`.

        The first write preallocates it, because most logs are idle.
        """
        self.load()
        self.max_entries = max_bytes // self._entry.size

    def load(self) -> None:
        """Count the entries in the file, unless already done. Raises CorruptIndex or FileMissing."""
        if self._loaded:
            return
        size = self._disk.size(self.path)
        if size % self._entry.size:
            raise CorruptIndex(
                f"{self.path} has {plural(size, 'byte')}, not a multiple of {self._entry.size}"
            )
        self._on_disk = size // self._entry.size
        self._block = b""
        self._is_trimmed = True
        self._tail = []
        self._last = None
        if self._on_disk:
            last = self._last = self._read_entry(self._on_disk - 1)
            # Keys grow strictly. A preallocated file that was not truncated ends with zeros.
            if min(last) < 0 or (self._on_disk > 1 and last[0] <= self._read_entry(0)[0]):
                raise CorruptIndex(f"{self.path} has the invalid last entry {last}")
        self._loaded = True

    def mark_empty(self) -> None:
        """Treat the index as empty without reading the file, because its segment is empty."""
        self._loaded = True

    def finish(self) -> None:
        """Write the entries in memory and truncate the file to its entries, for an inactive segment."""
        self.load()
        self.max_entries = 0
        self.write_tail()
        if not self._is_trimmed:
            self._disk.open(self.path).truncate(self._on_disk * self._entry.size)
            self._is_trimmed = True
            self.needs_sync = True

    def forget_lookup(self) -> None:
        """Discard the cached block."""
        self._block = b""

    def write_tail(self) -> None:
        """Write the entries in memory to the file."""
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

    # --- reading and adding entries

    @property
    def entries(self) -> int:
        self.load()
        return self._on_disk + len(self._tail)

    def _append(self, key: int, value: int) -> None:
        self._last = (key, value)
        self._tail.append(self._last)
        if len(self._tail) >= _TAIL_ENTRIES:
            # After a shortage, the entries stay in memory until the next append.
            with suppress(ResourceShortage):
                self.write_tail()

    def entry(self, number: int) -> tuple[int, int]:
        """Return the entry with this number as stored, with a relative offset."""
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
            raise CorruptIndex(f"{self.path} is shorter than its {plural(self._on_disk, 'entry')}")
        return data

    def _floor(self, target: int, column: int = 0) -> int:
        """Return the number of the last entry whose field `column` is at most `target`, or -1 if none is."""
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
        """Return whether the cached block contains the entry that `_floor` looks for in the file."""
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
        """Remove all entries after the first `count` entries."""
        self._block = b""
        if count <= self._on_disk:
            self._is_trimmed = self._is_trimmed and count == self._on_disk
            self._on_disk = count
            self._tail = []
        else:
            del self._tail[count - self._on_disk :]
        self._last = self.entry(count - 1) if count else None


class OffsetIndex(_Index):
    """The `.index` file. For some of the appends, it has the last offset and the start position."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path, base_offset, OFFSET_ENTRY)

    @property
    def last_offset(self) -> int:
        """The offset of the last entry, or the base offset if there is no entry."""
        self.load()
        return self.base_offset + self._last[0] if self._last else self.base_offset

    @property
    def last_position(self) -> int:
        """The position of the last entry, or -1 if there is no entry."""
        return self._last[1] if self._last else -1

    @property
    def is_full(self) -> bool:
        return self._on_disk + len(self._tail) >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the append that ends at `offset` starts at `position`. Raises InvalidOffset."""
        relative = offset - self.base_offset
        if self._last is not None and relative <= self._last[0]:
            raise InvalidOffset(f"{self.path}: offset {offset} after {self.last_offset}")
        self._append(relative, position)

    def lookup(self, offset: int) -> int:
        """Return a position from which a scan reaches the first batch that contains or follows `offset`."""
        number = self._floor(offset - self.base_offset)
        return 0 if number < 0 else self.entry(number)[1]

    def offset_at(self, position: int) -> int | None:
        """Return the offset of the first entry at or after `position`, or None if there is no such entry.

        As in Kafka's bisection, the first entry of the index is skipped if its position is `position`.
        """
        number = self._floor(position - 1, 1) + 1
        if not number and self.entries and self.entry(0)[1] == position:
            number = 1
        return self.base_offset + self.entry(number)[0] if number < self.entries else None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and after `offset`."""
        relative = offset - self.base_offset
        number = self._floor(relative)
        self._truncate_to_entries(number if number >= 0 and self.entry(number)[0] == relative else number + 1)


class TimeIndex(_Index):
    """The `.timeindex` file. No record up to the offset of an entry has a later timestamp than the entry."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path, base_offset, TIME_ENTRY)

    @property
    def last_entry(self) -> tuple[int, int]:
        """The timestamp and offset of the last entry; -1 and the base offset if there is no entry."""
        self.load()
        if self._last is None:
            return NO_TIMESTAMP, self.base_offset
        return self._last[0], self.base_offset + self._last[1]

    @property
    def is_full(self) -> bool:
        # Keep space for the entry that is added when the segment rolls.
        return self._on_disk + len(self._tail) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is greater than that of the last entry.

        Raises InvalidOffset if `offset` is below that of the last entry.
        """
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
        """Return the offset at which to begin a search for the first record at or after `timestamp`."""
        number = self._floor(timestamp)
        return self.base_offset if number < 0 else self.base_offset + self.entry(number)[1]

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and after `offset`."""
        relative = offset - self.base_offset
        number = self._floor(relative, column=1)
        self._truncate_to_entries(number if number >= 0 and self.entry(number)[1] == relative else number + 1)
