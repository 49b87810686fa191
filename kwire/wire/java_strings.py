"""What clients and files show of Java's strings: their hash, their order, and what is blank in them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

UINT32 = 0xFFFFFFFF
BLANKS = "".join(map(chr, range(0x21)))
"""What `String.trim()` takes away at both ends."""


_MAX_CACHED_LENGTH = 256
"""Names may have 32 KiB, and what is remembered of them is to stay small."""

_CHUNK_BYTES = 2048
"""What is folded at a time: so much stays in the processor's nearest cache."""

_FOLDED_UNITS = 64
"""How many UTF-16 units become one number that way."""


def string_hash(text: str) -> int:
    """`String.hashCode()` as an unsigned number of 32 bits: about 10 ns a character of long ones."""
    return _cached_hash(text) if len(text) <= _MAX_CACHED_LENGTH else _long_hash(text)


@lru_cache(maxsize=4096)
def _cached_hash(text: str) -> int:
    value = 0
    units = string_sort_key(text)
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & UINT32
    return value


def _folding_steps() -> list[tuple[int, int, int]]:
    """For each doubling of the width: by how many bits neighbours are apart, the mask of every other one, and
    what the left one is multiplied by."""
    steps = []
    width_bytes, factor = 2, 31
    while width_bytes < 2 * _FOLDED_UNITS:
        pairs = _CHUNK_BYTES // (2 * width_bytes)
        mask = int.from_bytes((bytes(width_bytes) + b"\xff" * width_bytes) * pairs, "big")
        steps.append((8 * width_bytes, mask, factor))
        width_bytes *= 2
        factor *= factor
    return steps


_FOLDING_STEPS = _folding_steps()
_FOLDED_FACTOR = pow(31, _FOLDED_UNITS, UINT32 + 1)


def _long_hash(text: str) -> int:
    """The same for long strings, where a step for each unit would take milliseconds.

    All units are one large number, in which each left neighbour is multiplied and added to the right one, for
    all pairs at once. A sum is never wider than the two places it came from.
    """
    units = string_sort_key(text)
    units = bytes(-len(units) % _CHUNK_BYTES) + units  # what is 0 in front counts nothing
    value = 0
    for start in range(0, len(units), _CHUNK_BYTES):
        folded = int.from_bytes(units[start : start + _CHUNK_BYTES], "big")
        for shift, mask, factor in _FOLDING_STEPS:
            folded = (folded >> shift & mask) * factor + (folded & mask)
        folded_bytes = folded.to_bytes(_CHUNK_BYTES, "big")
        for end in range(2 * _FOLDED_UNITS, _CHUNK_BYTES + 1, 2 * _FOLDED_UNITS):
            value = (value * _FOLDED_FACTOR + int.from_bytes(folded_bytes[end - 4 : end], "big")) & UINT32
    return value


def hash_set_order(texts: Iterable[str], capacity: int = 16) -> list[str]:
    """Each text once, in the order in which Java goes over a `HashSet` of that capacity with them added."""
    added = list(dict.fromkeys(texts))
    buckets = 1 << (max(capacity, 1) - 1).bit_length()
    while len(added) > buckets * 3 // 4:
        buckets *= 2

    def bucket(text: str) -> int:
        value = string_hash(text)
        return (value ^ value >> 16) & buckets - 1

    return sorted(added, key=bucket)


def string_sort_key(text: str) -> bytes:
    """What `String.compareTo` orders by: UTF-16 units, which differs from code points above U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")
