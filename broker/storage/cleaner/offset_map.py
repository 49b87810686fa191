"""The last offset of each key in the dirty part of a log, within a bound of memory.

Short keys are kept as they are. Of others there is a hash, one byte longer than the longest key that is kept
itself, so that no key can be mistaken for another's hash. A dictionary of Python's needs some 160 bytes an
entry, where Kafka's table needs 24: with the same buffer fewer keys fit, and a log with very many of them
takes more rounds. What it is about is that the buffer's size is what it says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from struct import Struct
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


_ONE_BYTE_DELTAS: Final = 64
_DELTAS: Final = 8192
"""So many offset deltas have a varint of one byte, and of at most two."""
_DELTA_FIRST: Final = bytes(
    delta << 1 if delta < _ONE_BYTE_DELTAS else delta << 1 & 0x7F | 0x80 for delta in range(_DELTAS)
)
_DELTA_SECOND: Final = bytes(delta >> 6 for delta in range(_DELTAS))
_LAST_BYTES: Final = bytes(range(0x80))
"""What a varint may end with."""
_LEAST_ALIKE: Final = 6


@lru_cache(maxsize=1024)
def _key_layout(begin: int, size: int, stride: int) -> Struct:
    return Struct(f"{begin}x{size}s{stride - begin - size}x")


def _alike(
    data: bytes, start: int, stride: int, end: int, marks: tuple[int, int, int, int], index: int, count: int
) -> int:
    """How many records from `start` on are laid out like the one there; 0 if it is not worth it.

    `marks` are where, in a record, begin the timestamp delta, the offset delta, the size of the key, the key.
    Records of one length have each byte of their heads at a distance of it, and may be taken in at once.
    """
    timestamp_at, delta_at, size_at, key_at = marks
    if delta_at + 1 == size_at:
        most = min(count, (end - start) // stride, _ONE_BYTE_DELTAS - index)
    elif delta_at + 2 == size_at:
        most = min(count, (end - start) // stride, _DELTAS - index)
    else:
        return 0
    for at in range(timestamp_at - 1):  # the length
        column = data[start + at : start + most * stride : stride]
        most -= len(column.lstrip(column[:1]))
        if most < _LEAST_ALIKE:
            return 0
    stop = start + most * stride
    if data[start + delta_at : stop : stride] != _DELTA_FIRST[index : index + most]:
        return 0
    if (
        delta_at + 2 == size_at
        and data[start + delta_at + 1 : stop : stride] != (_DELTA_SECOND[index : index + most])
    ):
        return 0
    for at in range(size_at, key_at):
        if data[start + at : stop : stride].strip(data[start + at : start + at + 1]):
            return 0
    for at in range(timestamp_at, delta_at - 1):
        if len(data[start + at : stop : stride].translate(None, _LAST_BYTES)) != most:
            return 0
    return most if data[start + delta_at - 1 : stop : stride].isascii() else 0


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
        self.with_gaps: set[int] = set()
        """The base offsets of batches whose records do not count from 0 on, one by one."""
        self._survivors: array[int] | None = None

    def add(self, data: bytes, at: int, end: int, base_offset: int, count: int, from_offset: int) -> None:
        """Take in the records of a batch, which lie, not compressed, from `at` to `end`.

        Records before `from_offset` do not count. CorruptBatch. When the map becomes `full`, `latest_offset`
        is that of the last record that went in.
        """
        latest = self.latest
        may_fill = len(latest) + count > self.capacity
        may_run = not may_fill and base_offset >= from_offset
        offset = self.latest_offset
        index = 0
        while index < count:
            start = at
            length = first = data[at]
            at += 1
            if length > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    length = length & 0x7F | byte << 7
                    at += 1
                else:
                    length, at = varint_rest(data, at, length)
            stop = at + (length >> 1)
            at += 1  # attributes
            timestamp_at = at
            while data[at] > 0x7F:  # timestamp delta
                at += 1
            at += 1
            delta_at = at
            delta = data[at]
            at += 1
            if delta > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    delta = delta & 0x7F | byte << 7
                    at += 1
                else:
                    delta, at = varint_rest(data, at, delta)
            if delta != index << 1:
                self.with_gaps.add(base_offset)
            size_at = at
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = varint_rest(data, at, size)
            index += 1
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
                if may_run and stop < end and data[stop] == first and delta == index - 1 << 1:
                    marks = (timestamp_at - start, delta_at - start, size_at - start, at - start)
                    alike = _alike(data, start, stop - start, end, marks, index - 1, count - index + 1)
                    if alike:
                        stride = stop - start
                        stop = start + alike * stride
                        if 1 in data[key_end:stop:stride]:
                            self.with_tombstones.add(base_offset)
                        layout = _key_layout(at - start, key_end - at, stride)
                        keys: Iterable[bytes] = chain.from_iterable(
                            layout.iter_unpack(memoryview(data)[start:stop])
                        )
                        if size > LONGEST_PLAIN_KEY << 1:
                            keys = map(short, keys)
                        latest.update(zip(keys, range(record_offset, record_offset + alike), strict=True))
                        offset = record_offset + alike - 1
                        index += alike - 1
            at = stop
        if at != end:
            raise CorruptBatch(f"{end - at} bytes are left after the records of the batch at {base_offset}")

    def survivors(self) -> array[int]:
        """The offsets that stay of those taken in, in order. To be asked for when the map is complete."""
        if self._survivors is None:
            self._survivors = array("q", sorted(self.latest.values()))
        return self._survivors
