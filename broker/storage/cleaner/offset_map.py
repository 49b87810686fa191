"""The last offset of each key in the dirty part of a log, within a bound of memory.

Short keys are kept as they are. Of others there is a hash, one byte longer than the longest key that is kept
itself, so that no key can be mistaken for another's hash. A dictionary of Python's needs some 160 bytes an
entry, where Kafka's table needs 24: with the same buffer fewer keys fit, and a log with very many of them
takes more rounds. What it is about is that the buffer's size is what it says.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

from kwire.batch import CorruptBatch

ENTRY_BYTES: Final = 160
"""What an entry costs: key and offset as objects, and their place in a dictionary that grows by doubling."""
LONGEST_PLAIN_KEY: Final = 46
_HASH_BYTES: Final = LONGEST_PLAIN_KEY + 1


def short(key: bytes) -> bytes:
    """What stands for a key that is longer than LONGEST_PLAIN_KEY."""
    return blake2b(key, digest_size=_HASH_BYTES).digest()


def varint_rest(data: bytes, at: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint, whose first byte says that there is more; and where it ends."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise CorruptBatch("a varint of more than 64 bits")


class OffsetMap:
    """Keys and their last offsets, filled from the first dirty offset on until it is full."""

    def __init__(self, size_bytes: int) -> None:
        self.capacity = max(1, size_bytes // ENTRY_BYTES)
        self.latest: dict[bytes, int] = {}
        self.latest_offset = -1
        """What was taken in ends here: records beyond it stay."""
        self.is_full = False
        self.with_tombstones: set[int] = set()
        """The base offsets of batches with a tombstone."""
        self._survivors: array[int] | None = None

    def add(self, data: bytes, at: int, end: int, base_offset: int, count: int, from_offset: int) -> None:
        """Take in the records of a batch, which lie, not compressed, from `at` to `end`.

        Records before `from_offset` do not count. CorruptBatch. When the map becomes `full`, `latest_offset`
        is that of the last record that went in.
        """
        latest = self.latest
        may_fill = len(latest) + count > self.capacity
        offset = self.latest_offset
        for _ in range(count):
            length = data[at]
            at += 1
            if length > 0x7F:
                length, at = varint_rest(data, at, length)
            stop = at + (length >> 1)
            at += 1  # attributes
            while data[at] > 0x7F:  # timestamp delta
                at += 1
            at += 1
            delta = data[at]
            at += 1
            if delta > 0x7F:
                delta, at = varint_rest(data, at, delta)
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = varint_rest(data, at, size)
            if not size & 1:  # zigzag: odd is negative, no key
                key_end = at + (size >> 1)
                if key_end >= stop:
                    raise CorruptBatch(f"a key of {size >> 1} bytes in a record of {length >> 1}")
                key = data[at:key_end]
                if size > LONGEST_PLAIN_KEY << 1:
                    key = short(key)
                record_offset = base_offset + (delta >> 1)
                if record_offset >= from_offset:
                    if may_fill and len(latest) >= self.capacity:
                        self.is_full = True
                        self.latest_offset = offset
                        return
                    latest[key] = offset = record_offset
                    if data[key_end] == 1:  # the value's length is -1
                        self.with_tombstones.add(base_offset)
            at = stop
        if at != end:
            raise CorruptBatch(f"{end - at} bytes are left after the records of the batch at {base_offset}")

    def survivors(self) -> array[int]:
        """The offsets that stay of those taken in, in order. To be asked for when the map is complete."""
        if self._survivors is None:
            self._survivors = array("q", sorted(self.latest.values()))
        return self._survivors
