"""Compiled loops that read adjacent records with the same record head and different lengths.

A record head is the number of bytes of each varint before the key, which changes only a few times in a batch.
One struct call reads a record up to its value, and shows whether the record has the expected head. A table
maps the record's length to the position of the next record. Each loop is generated as source code for its
head, and compiled at the first use. The source is registered with linecache, so that a traceback shows the
failing line.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias

_FAR: Final = 1 << 62
"""A distance that leads beyond the end of any batch."""
_MIN_OF_TWO_BYTES: Final = 0x40
"""The minimum record length with a two-byte varint."""
_MAX_TIMESTAMP_BYTES: Final = 10
_MAX_DELTA_BYTES: Final = 5

RunReader: TypeAlias = Callable[[bytes, int, int, int, list[int], list[bytes | None], list[int]], int]
"""Arguments: data, start of the first record, end of the last record, maximum number of records, and three
lists: starts, keys, and indexes of tombstones.

Records with the expected head are added to the lists. The result is the position of the first other record.
"""


RecordHead: TypeAlias = tuple[int, int, int, int]
"""The number of bytes of a record's length, timestamp delta and offset delta, and the first byte of its key
size."""


def head_of(data: bytes, start: int) -> RecordHead:
    """Return the head of the record at `start`. Raises IndexError if the data ends within the head."""
    at = start
    while data[at] > 0x7F:
        at += 1
    length_bytes = at + 1 - start
    timestamp_at = at = at + 2
    while data[at] > 0x7F:
        at += 1
    delta_at = at = at + 1
    while data[at] > 0x7F:
        at += 1
    return length_bytes, delta_at - timestamp_at, at + 1 - delta_at, data[at + 1]


@lru_cache(maxsize=1024)
def run_reader(head: RecordHead, longest_size: int, *, one_size: bool) -> RunReader | None:
    """Return a loop for records with this head, or None if a loop is not possible.

    With `one_size`, all keys have the size in `head`; otherwise they may have any size up to `longest_size`.
    Sizes are encoded as in a record: twice the number of bytes, and odd for a record without a key.
    """
    length_bytes, timestamp_bytes, delta_bytes, size = head
    if (
        length_bytes > 2
        or timestamp_bytes > _MAX_TIMESTAMP_BYTES
        or delta_bytes > _MAX_DELTA_BYTES
        or size & 1  # no key
        or size > longest_size
    ):
        return None
    bind = _loop(length_bytes, timestamp_bytes, delta_bytes, one_size)
    varint_bytes = timestamp_bytes + delta_bytes
    form = f"<{'BH'[length_bytes - 1]}x{varint_bytes}BB"
    least = 0
    if one_size:
        # A shorter record would end in its key or before its value.
        least = 1 + varint_bytes + 1 + (size >> 1) + 1
        assert least <= _MIN_OF_TWO_BYTES
        form += f"{size >> 1}sB"
    steps = _steps_of_one_byte(least) if length_bytes == 1 else _steps_of_two_bytes()
    made: RunReader = bind(Struct(form).unpack_from, steps, size if one_size else longest_size)
    return made


def _steps_of_one_byte(least: int) -> list[int]:
    """Return the distance to the next record for each one-byte length; _FAR for lengths below `least`."""
    return [1 + (byte >> 1) if byte < 0x80 and byte >> 1 >= least else _FAR for byte in range(0x100)]


@cache
def _steps_of_two_bytes() -> list[int]:
    """Return the distance to the next record for each two-byte length from _MIN_OF_TWO_BYTES on."""
    steps = list(range(2, 2 + (1 << 13)))
    return [
        steps[first >> 1 & 0x3F | second << 6] if first > 0x7F and second else _FAR
        for second in range(0x80)
        for first in range(0x100)
    ]


_LOOP: Final = """\
def bind(fetch, steps, of_size):
    def read(data, at, end, most, starts, keys, tombstones):
        first = at
        try:
            for _ in repeat(None, most):
                length, {names}, size{more} = fetch(data, at)
                if {differs}:
                    break
                after = at + steps[length]
{key}
                    tombstones.append(len(keys))
                starts.append(at)
                keys.append(key)
                at = after
        except (StructError, IndexError):
            pass  # the record at `at` has another head, or there is none
        if at > end and at != first:
            # The length of the last record was wrong.
            at = starts.pop()
            keys.pop()
            if tombstones and tombstones[-1] == len(keys):
                tombstones.pop()
        return at
    return read
"""
_ONE_SIZE: Final = """\
                if value & 1:"""
_ANY_SIZE: Final = """\
                key_end = at + {key_at} + (size >> 1)
                if key_end >= after:
                    break
                key = data[at + {key_at} : key_end]
                if data[key_end] & 1:"""


@cache
def _loop(length_bytes: int, timestamp_bytes: int, delta_bytes: int, one_size: bool) -> Any:
    names: list[str] = []
    tests: list[str] = []
    for kind, count in (("timestamp", timestamp_bytes), ("delta", delta_bytes)):
        of_kind = [f"{kind}{number}" for number in range(count)]
        names += of_kind
        tests += [f"{name} < 0x80" for name in of_kind[:-1]]
        tests.append(f"{of_kind[-1]} > 0x7F")
    tests += ["size != of_size"] if one_size else ["size & 1", "size > of_size"]
    source = _LOOP.format(
        names=", ".join(names),
        more=", key, value" if one_size else "",
        differs=" or ".join(tests),
        key=_ONE_SIZE
        if one_size
        else _ANY_SIZE.format(key_at=length_bytes + 1 + timestamp_bytes + delta_bytes + 1),
    )
    title = f"<kwire records {length_bytes} {timestamp_bytes} {delta_bytes} {one_size}>"
    linecache.cache[title] = (len(source), None, source.splitlines(True), title)
    made: dict[str, Any] = {"repeat": repeat, "StructError": StructError}
    exec(compile(source, title, "exec"), made)
    return made["bind"]
