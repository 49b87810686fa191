"""The keys of a batch's records, read as fast as the interpreter allows: the cleaner's inner loop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import chain, repeat
from struct import Struct
from struct import error as StructError
from typing import Final

from kwire.batch import CorruptBatch

LONGEST_PLAIN_KEY: Final = 46
_HASH_BYTES: Final = LONGEST_PLAIN_KEY + 1
_LONGEST_PLAIN_SIZE: Final = LONGEST_PLAIN_KEY << 1
"""The varint that tells its size, which is one byte."""
_LAST_BYTES: Final = bytes(range(0x80))
"""What a varint may end with."""
_CONTINUES: Final = bytes(0x80) + b"\1" * 0x80
"""Of each byte of a varint: 1 if there is more of it, 0 if it is the last."""
_LEAST_ALIKE: Final = 6
_MOST_ALIKE: Final = 128
"""At most so many records of one layout are looked for at once: offset deltas grow by a byte now and then."""
_WORTH_A_LAYOUT: Final = 24
"""From so many records on their keys are unpacked by one layout, whose making has to pay."""
_MOST_MIXED: Final = 256
"""At most so many records with heads of one layout are read at once: what does not fit is read again."""
_MOST_DELTA_BYTES: Final = 5
_FAR: Final = 1 << 62
"""A step beyond all bytes."""


def short(key: bytes) -> bytes:
    """What stands for a key that is longer than LONGEST_PLAIN_KEY: no plain key can be mistaken for it."""
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


class RecordKeys:
    """What the cleaner wants to know of the records of one batch, in their order."""

    __slots__ = ("has_null", "keys", "starts", "tombstones")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        """Each key, or what is `short` for it."""
        self.starts: list[int] = []
        """Where each record begins, and behind them where the last one ends."""
        self.tombstones: list[int] = []
        """The indexes of the records without a value, those without a key aside."""
        self.has_null = False
        """Whether some record has no key."""


@lru_cache(maxsize=1024)
def _one_key(begin: int, size: int, stride: int) -> Struct:
    return Struct(f"{begin}x{size}s{stride - begin - size}x")


@lru_cache(maxsize=256)
def _many_keys(begin: int, size: int, stride: int, count: int) -> Struct:
    return Struct(f"{begin}x{size}s" + f"{stride - size}x{size}s" * (count - 1))


@lru_cache(maxsize=256)
def _head_and_key(length_bytes: int, head: int, size: int) -> Struct:
    """A record up to where its value begins: length, deltas and key size, key, the first byte after it."""
    return Struct(f"<{'BH'[length_bytes - 1]}x{head}s{size}sc")


@lru_cache(maxsize=64)
def _steps_of_one_byte(least: int) -> list[int]:
    """How far it is to the next record, by a length of one byte; _FAR if it is longer, or below `least`."""
    return [1 + (byte >> 1) if byte < 0x80 and byte >> 1 >= least else _FAR for byte in range(0x100)]


_LEAST_OF_TWO_BYTES: Final = 0x40


@cache
def _steps_of_two_bytes() -> list[int]:
    """The same by a length of two bytes, read as one number, which is none below _LEAST_OF_TWO_BYTES."""
    lengths = list(range(2, 2 + (1 << 13)))
    return [
        lengths[first >> 1 & 0x3F | second << 6] if first > 0x7F and second else _FAR
        for second in range(0x80)
        for first in range(0x100)
    ]


def _alike(
    data: bytes, start: int, stride: int, end: int, marks: tuple[int, int, int, int], most: int
) -> int:
    """How many records from `start` on are laid out like the one there, of `most`; 0 if it is not worth it.

    `marks` are where, in a record, begin the timestamp delta, the offset delta, the size of the key, the key.
    Records of one length have each byte of their heads at a distance of it, and may be taken in at once.
    """
    timestamp_at, delta_at, size_at, key_at = marks
    most = min(most, (end - start) // stride, _MOST_ALIKE)
    for at in range(timestamp_at - 1):  # the length
        column = data[start + at : start + most * stride : stride]
        most -= len(column.lstrip(column[:1]))
        if most < _LEAST_ALIKE:
            return 0
    stop = start + most * stride
    # An offset delta of as many bytes; it becomes longer within a run at most twice in a batch.
    column = data[start + size_at - 1 : stop : stride]
    if not column.isascii():
        most = len(column) - len(column.lstrip(_LAST_BYTES))
        stop = start + most * stride
        if most < _LEAST_ALIKE:
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
    """Read the `count` records that lie, not compressed, from `at` to `end`. CorruptBatch."""
    found = RecordKeys()
    try:
        _read(found, data, at, end, count)
    except IndexError:
        raise CorruptBatch("records are cut short") from None
    return found


def _read(found: RecordKeys, data: bytes, at: int, end: int, count: int) -> None:
    keys, starts = found.keys, found.starts
    add_key, add_start = keys.append, starts.append
    left = count
    length_before = -1
    differing, mixed_again, wait = 0, count, _LEAST_ALIKE
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
                at = stop
                continue
        key_end = at + (size >> 1)
        if key_end >= stop:
            raise CorruptBatch(f"a key of {size >> 1} bytes in a record of {length >> 1}")
        key = data[at:key_end]
        add_key(key if size <= _LONGEST_PLAIN_SIZE else short(key))
        if data[key_end] == 1:  # the value's length is -1
            found.tombstones.append(len(keys) - 1)
        if left < _LEAST_ALIKE:
            at = stop
            continue
        if length == length_before:
            differing = 0
            alike = _take_alike(found, data, at, key_end, stop, end, left)
            left -= alike
            stop += alike * (stop - starts[-1 - alike])
        else:
            differing += 1
            if differing > 1 and left <= mixed_again:
                mixed = _take_mixed(found, data, at, size >> 1, stop, end, left)
                if mixed < _LEAST_ALIKE:
                    # Heads that keep changing are read one by one, for longer and longer.
                    mixed_again = left - mixed - wait
                    wait *= 2
                if mixed:
                    left -= mixed
                    stop = starts.pop()
                    length = -1
                    # What becomes alike is to be found so, by the next two records.
                    differing = int(stop - starts[-1] != starts[-1] - starts[-2])
        length_before = length
        at = stop
    if at != end:
        raise CorruptBatch(f"{end - at} bytes are left after {count} records")
    add_start(at)


def _take_alike(
    found: RecordKeys, data: bytes, key_at: int, key_end: int, stop: int, end: int, left: int
) -> int:
    """Take in the records after the last one, as far as they are laid out as it is: how many."""
    start = found.starts[-1]
    stride = stop - start
    timestamp_at, delta_at, size_at = _marks(data, start)
    marks = (timestamp_at - start, delta_at - start, size_at - start, key_at - start)
    alike = _alike(data, start, stride, end, marks, left + 1) - 1
    if alike <= 0:
        return 0
    after = stop + alike * stride
    values = data[key_end + stride : after : stride]
    if 1 in values:
        base = len(found.keys)
        found.tombstones += [base + index for index, byte in enumerate(values) if byte == 1]
    begin, size = key_at - start, key_end - key_at
    more: Iterable[bytes]
    if alike < _WORTH_A_LAYOUT:
        layout = _one_key(begin, size, stride)
        more = chain.from_iterable(layout.iter_unpack(memoryview(data)[stop:after]))
    else:
        more = _many_keys(begin, size, stride, alike).unpack_from(data, stop)
    found.keys += more if size <= LONGEST_PLAIN_KEY else map(short, more)
    found.starts += range(stop, after, stride)
    return alike


def _take_mixed(
    found: RecordKeys, data: bytes, key_at: int, key_bytes: int, stop: int, end: int, left: int
) -> int:
    """Take in the records after the last one, of any lengths, as far as their layouts are its: how many.

    If there are any, the place where the last of them ends is added to the starts as well. All of a record
    that comes before its value is fetched at once, and only afterwards are all looked at together, whether
    they had this layout: a length that has not leads nowhere.
    """
    start = found.starts[-1]
    timestamp_at, delta_at, size_at = _marks(data, start)
    length_bytes = timestamp_at - 1 - start
    head_bytes = size_at + 1 - timestamp_at
    least = 1 + head_bytes + key_bytes + 1
    if (
        length_bytes > 2
        or size_at - delta_at > _MOST_DELTA_BYTES
        or key_at != size_at + 1
        or key_bytes > LONGEST_PLAIN_KEY
        or least > _LEAST_OF_TWO_BYTES
    ):
        return 0
    # Offset deltas mostly count the records, which says when they become longer by a byte.
    delta = data[delta_at]
    if delta > 0x7F:
        delta, _ = varint_rest(data, delta_at + 1, delta)
    most = min(left, _MOST_MIXED, (1 << 7 * (size_at - delta_at) - 1) - 1 - (delta >> 1))
    if most <= 0:
        return 0
    steps = _steps_of_two_bytes() if length_bytes == 2 else _steps_of_one_byte(least)
    fetch = _head_and_key(length_bytes, head_bytes, key_bytes).unpack_from
    starts: list[int] = []
    heads: list[bytes] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    at = stop
    try:
        for _ in repeat(None, most):
            length, head, key, value = fetch(data, at)
            starts.append(at)
            heads.append(head)
            keys.append(key)
            values.append(value)
            at += steps[length]
    except (StructError, IndexError):
        at = _FAR
    mixed = len(heads) if at <= end else len(heads) - 1
    mixed = min(mixed, _fitting(heads, data[timestamp_at:key_at]))
    if mixed <= 0:
        return 0
    if mixed < len(heads):
        at = starts[mixed]
        del starts[mixed:], keys[mixed:], values[mixed:]
    marks = b"".join(values)
    if 1 in marks:
        base = len(found.keys)
        found.tombstones += [base + index for index, byte in enumerate(marks) if byte == 1]
    found.keys += keys
    found.starts += starts
    found.starts.append(at)
    return mixed


def _fitting(heads: list[bytes], wanted: bytes) -> int:
    """How many of the heads come before the first one without the layout and the key size of `wanted`."""
    size = len(wanted)
    sizes = b"".join(heads)
    kinds = sizes.translate(_CONTINUES)
    layout = wanted.translate(_CONTINUES)
    sizes = sizes[size - 1 :: size]
    fitting = len(heads) - len(sizes.lstrip(wanted[-1:]))
    if kinds != layout * len(heads):
        for number in range(size):
            column = kinds[number::size]
            fitting = min(fitting, len(heads) - len(column.lstrip(layout[number : number + 1])))
    return fitting


def _marks(data: bytes, start: int) -> tuple[int, int, int]:
    """Where the timestamp delta, the offset delta and the size of the key begin of the record at `start`."""
    at = start
    while data[at] > 0x7F:
        at += 1
    timestamp_at = at = at + 2
    while data[at] > 0x7F:
        at += 1
    delta_at = at = at + 1
    while data[at] > 0x7F:
        at += 1
    return timestamp_at, delta_at, at + 1


def offsets_of(data: bytes, starts: list[int], base_offset: int) -> list[int]:
    """The offsets of the records that begin there; the last of `starts` is where they end. CorruptBatch."""
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
