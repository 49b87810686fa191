"""Reading the keys of a batch's records. This is the cleaner's inner loop, optimized for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import Final

from kwire.broker.storage.cleaner.compiled_readers import RecordHead, head_of, run_reader
from kwire.wire.batch import CorruptBatch
from kwire.wire.plural import plural

LONGEST_PLAIN_KEY: Final = 46
_HASH_BYTES: Final = LONGEST_PLAIN_KEY + 1
_LONGEST_PLAIN_SIZE: Final = LONGEST_PLAIN_KEY << 1
"""The size of the longest plain key as a varint, which has one byte."""
_LAST_BYTES: Final = bytes(range(0x80))
"""The bytes that may end a varint."""
EVEN_BYTES: Final = bytes(range(0, 0x100, 2))
"""The first bytes of varints that are not negative."""
UINT32_MAX: Final = (1 << 32) - 1
UINT64_MAX: Final = (1 << 64) - 1
_MIN_ALIKE: Final = 6
_MAX_ALIKE: Final = 128
"""The maximum number of records in a run of one layout. Later offset deltas take another byte."""
_WORTH_A_LAYOUT: Final = 24
"""From this number of records on, one struct for all keys of a run is faster to create and use."""
_MIN_MIXED: Final = 8
_MAX_MIXED: Final = 256
"""The maximum number of records of different lengths before the lengths are compared again."""


def hash_key(key: bytes) -> bytes:
    """Return the hash of a key that is longer than LONGEST_PLAIN_KEY. It never equals a plain key."""
    return blake2b(key, digest_size=_HASH_BYTES).digest()


def varint_rest(data: bytes, at: int, first: int, mask: int = UINT32_MAX) -> tuple[int, int]:
    """Decode an unsigned varint of several bytes. Return its value and the position after it.

    `first` is its first byte, and `at` the position of its second byte. As in Java, bits outside of `mask`
    are dropped. Raises CorruptBatch, or IndexError.
    """
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & mask, at
        shift += 7
        if shift > 63:
            raise CorruptBatch("a varint has more than 64 bits")


class RecordKeys:
    """The keys of one batch's records, in order."""

    __slots__ = ("_starts", "_starts_of", "has_null", "keys", "tombstones")

    def __init__(
        self, keys: list[bytes | None] | None = None, starts_of: Callable[[], list[int]] = list
    ) -> None:
        self.keys: list[bytes | None] = [] if keys is None else keys
        """The keys. A long key is replaced by its `hash_key`."""
        self._starts_of: Callable[[], list[int]] = starts_of
        self._starts: list[int] | None = None
        self.tombstones: list[int] = []
        """The indexes of the records without a value."""
        self.has_null = False
        """Whether a record has no key."""

    @property
    def starts(self) -> list[int]:
        """The start of each record, followed by the end of the last record."""
        if self._starts is None:
            self._starts = self._starts_of()
        return self._starts


@lru_cache(maxsize=1024)
def _one_key(begin: int, size: int, stride: int) -> Struct:
    return Struct(f"{begin}x{size}s{stride - begin - size}x")


@lru_cache(maxsize=256)
def _many_keys(begin: int, size: int, stride: int, count: int) -> Struct:
    return Struct(f"{begin}x{size}s" + f"{stride - size}x{size}s" * (count - 1))


def _count_alike(
    data: bytes, start: int, stride: int, end: int, marks: tuple[int, int, int, int], most: int
) -> int:
    """Count the records from `start` on with the layout of the first record, up to `most`.

    Return 0 if they are too few to save time.

    `marks` are the positions of timestamp delta, offset delta, key size and key in a record. Records of the
    same length have each byte of their heads at a constant distance. So a slice with a stride reads that byte
    from all records.
    """
    timestamp_at, delta_at, size_at, key_at = marks
    most = min(most, (end - start) // stride, _MAX_ALIKE)
    for at in range(timestamp_at - 1):  # the length
        column = data[start + at : start + most * stride : stride]
        most -= len(column.lstrip(column[:1]))
        if most < _MIN_ALIKE:
            return 0
    stop = start + most * stride
    # The offset deltas must have the same number of bytes; in a batch this number grows at most twice.
    column = data[start + size_at - 1 : stop : stride]
    if not column.isascii():
        most = len(column) - len(column.lstrip(_LAST_BYTES))
        stop = start + most * stride
        if most < _MIN_ALIKE:
            return 0
    for at in range(delta_at, size_at - 1):
        if data[start + at : stop : stride].translate(None, _LAST_BYTES) != data[start + at : stop : stride]:
            return 0
    for at in range(size_at, key_at):
        if data[start + at : stop : stride].strip(data[start + at : start + at + 1]):
            return 0
    for at in range(timestamp_at, delta_at - 1):
        if len(data[start + at : stop : stride].translate(None, _LAST_BYTES)) != most:
            return 0
    return most if data[start + delta_at - 1 : stop : stride].isascii() else 0


def keys_of(data: bytes, at: int, end: int, count: int) -> RecordKeys:
    """Read the keys of `count` uncompressed records from `at` to `end`. Raises CorruptBatch."""
    found = RecordKeys()
    try:
        _read(found, data, at, end, count)
    except IndexError:
        raise CorruptBatch("records are truncated") from None
    return found


def _read(found: RecordKeys, data: bytes, at: int, end: int, count: int) -> None:
    keys, starts = found.keys, found.starts
    add_key, add_start = keys.append, starts.append
    left = count
    length_before = -1
    differing, mixed_again, wait = 1, count, _MIN_MIXED
    while left > 0:
        add_start(at)
        length = data[at]
        if length > 0x7F:
            byte = data[at + 1]
            if byte < 0x80:
                length = length & 0x7F | byte << 7
                at += 2
            else:
                length, at = varint_rest(data, at + 1, length)
        else:
            at += 1
        stop = at + (length >> 1)
        at += 1  # attributes
        while data[at] > 0x7F:  # timestamp delta
            at += 1
        at += 1
        while data[at] > 0x7F:  # offset delta
            at += 1
        size = data[at + 1]
        at += 2
        left -= 1
        if size & 1 or size > _LONGEST_PLAIN_SIZE:
            if size > 0x7F:
                size, at = varint_rest(data, at, size)
            if size & 1:  # zigzag: odd is negative, no key
                found.has_null = True
                add_key(None)
                if data[at] & 1:
                    found.tombstones.append(len(keys) - 1)
                at = stop
                continue
        key_end = at + (size >> 1)
        if key_end >= stop:
            raise CorruptBatch(f"a key of {plural(size >> 1, 'byte')} in a record of {length >> 1}")
        key = data[at:key_end]
        add_key(key if size <= _LONGEST_PLAIN_SIZE else hash_key(key))
        if data[key_end] & 1:  # the value's length is negative, so the value is null
            found.tombstones.append(len(keys) - 1)
        if left < _MIN_ALIKE:
            at = stop
            continue
        if length == length_before:
            differing = 0
            alike = _read_alike(found, data, at, key_end, stop, end, left)
            left -= alike
            stop += alike * (stop - starts[-1 - alike])
        else:
            differing += 1
            if (
                differing > 1
                and left <= mixed_again
                and data[stop : stop + 2] != data[starts[-1] : starts[-1] + 2]
            ):
                mixed = _read_mixed(found, data, stop, end, left)
                left -= mixed
                if mixed < _MIN_MIXED:
                    # If layouts keep changing, read more and more records one by one.
                    mixed_again = left - wait
                    wait *= 2
                if mixed:
                    stop = starts.pop()
                    length = -1
                    differing = int(_is_mixed(starts, stop))
        length_before = length
        at = stop
    if at != end:
        raise CorruptBatch(f"{plural(end - at, 'byte')} left after {plural(count, 'record')}")
    add_start(at)


def _read_alike(
    found: RecordKeys, data: bytes, key_at: int, key_end: int, stop: int, end: int, left: int
) -> int:
    """Read the records that follow the last record and have its layout; return their number."""
    start = found.starts[-1]
    stride = stop - start
    length_bytes, timestamp_bytes, delta_bytes, _ = head_of(data, start)
    delta_at = length_bytes + 1 + timestamp_bytes
    marks = (length_bytes + 1, delta_at, delta_at + delta_bytes, key_at - start)
    alike = _count_alike(data, start, stride, end, marks, left + 1) - 1
    if alike <= 0:
        return 0
    after = stop + alike * stride
    values = data[key_end + stride : after : stride]
    if values.translate(None, EVEN_BYTES):
        base = len(found.keys)
        found.tombstones += [base + index for index, byte in enumerate(values) if byte & 1]
    begin, size = key_at - start, key_end - key_at
    more: Iterable[bytes]
    if alike < _WORTH_A_LAYOUT:
        layout = _one_key(begin, size, stride)
        more = chain.from_iterable(layout.iter_unpack(memoryview(data)[stop:after]))
    else:
        more = _many_keys(begin, size, stride, alike).unpack_from(data, stop)
    found.keys += more if size <= LONGEST_PLAIN_KEY else map(hash_key, more)
    found.starts.extend(range(stop, after, stride))
    return alike


def _read_mixed(found: RecordKeys, data: bytes, at: int, end: int, left: int) -> int:
    """Read records of any lengths from `at` on, in runs with the same record head, and return their number.

    If the number is not 0, the end of the last record is also added to `found.starts`.
    """
    starts, keys, tombstones = found.starts, found.keys, found.tombstones
    before = len(keys)
    one_size, taken = True, _MIN_MIXED
    last: RecordHead | None = None
    while left >= _MIN_ALIKE and at < end:
        head = head_of(data, at)
        if one_size and last is not None and head != last and head[:-1] == last[:-1]:
            one_size = False  # another key size has ended the run
        elif taken < _MIN_MIXED:
            break
        read = run_reader(head, _LONGEST_PLAIN_SIZE, one_size=one_size)
        if read is None:
            break
        known = len(keys)
        at = read(data, at, end, min(left, _MAX_MIXED), starts, keys, tombstones)
        taken = len(keys) - known
        left -= taken
        if taken > 1 and not _is_mixed(starts, at):
            break
        last = head
    taken = len(keys) - before
    if taken:
        starts.append(at)
    return taken


def _is_mixed(starts: list[int], end: int) -> bool:
    """Return whether the last two records have different lengths."""
    return end - starts[-1] != starts[-1] - starts[-2]


def record_offsets(data: bytes, starts: list[int], base_offset: int) -> list[int]:
    """Return the offset of each record. The last element of `starts` is the end of the last record.

    Raises CorruptBatch.
    """
    offsets = []
    for at in starts[:-1]:
        while data[at] > 0x7F:  # length
            at += 1
        at += 2  # attributes
        while data[at] > 0x7F:  # timestamp delta
            at += 1
        at += 1
        delta = data[at]
        if delta > 0x7F:
            delta, at = varint_rest(data, at + 1, delta)
        offsets.append(base_offset + (delta >> 1))
    return offsets
