"""Java's hashes, orders and blanks, where Kafka's behaviour hangs on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from functools import lru_cache
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

UINT32 = 0xFFFFFFFF
UINT64 = 0xFFFFFFFFFFFFFFFF
FIBONACCI = 0x9E3779B97F4A7C15  # -7046029254386353131
FEWEST_BUCKETS = 16
FEWEST_SLOTS = 2
BLANKS = "".join(map(chr, range(0x21)))
"""What `String.trim()` takes away at both ends."""


_LONGEST_CACHED = 256
"""Names may have 32 KiB, and what is remembered of them is to stay small."""

_CHUNK_BYTES = 2048
"""What is folded at a time: so much stays in the processor's nearest cache."""

_FOLDED_UNITS = 64
"""How many UTF-16 units become one number that way."""


def string_hash(text: str) -> int:
    """`String.hashCode()` as an unsigned number of 32 bits: about 10 ns a character of long ones."""
    return _known_hash(text) if len(text) <= _LONGEST_CACHED else _long_hash(text)


@lru_cache(maxsize=4096)
def _known_hash(text: str) -> int:
    value = 0
    units = string_order(text)
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & UINT32
    return value


def _foldings() -> list[tuple[int, int, int]]:
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


_FOLDINGS = _foldings()
_BEYOND_FOLDED = pow(31, _FOLDED_UNITS, UINT32 + 1)


def _long_hash(text: str) -> int:
    """The same for long strings, where a step for each unit would take milliseconds.

    All units are one large number, in which each left neighbour is multiplied and added to the right one, for
    all pairs at once. A sum is never wider than the two places it came from.
    """
    units = string_order(text)
    units = bytes(-len(units) % _CHUNK_BYTES) + units  # what is 0 in front counts nothing
    value = 0
    for start in range(0, len(units), _CHUNK_BYTES):
        folded = int.from_bytes(units[start : start + _CHUNK_BYTES], "big")
        for shift, mask, factor in _FOLDINGS:
            folded = (folded >> shift & mask) * factor + (folded & mask)
        whole = folded.to_bytes(_CHUNK_BYTES, "big")
        for end in range(2 * _FOLDED_UNITS, _CHUNK_BYTES + 1, 2 * _FOLDED_UNITS):
            value = (value * _BEYOND_FOLDED + int.from_bytes(whole[end - 4 : end], "big")) & UINT32
    return value


def string_order(text: str) -> bytes:
    """What `String.compareTo` orders by: UTF-16 units, which differs from code points above U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def topic_partition_hash(topic: str, partition: int) -> int:
    """`TopicPartition.hashCode()`, likewise."""
    return (31 * (31 + partition) + string_hash(topic)) & UINT32


def uuid_hash(uuid: bytes) -> int:
    """The hash of Kafka's `Uuid`, likewise: its four words, mixed."""
    value = int.from_bytes(uuid[:8], "big") ^ int.from_bytes(uuid[8:], "big")
    return (value >> 32 ^ value) & UINT32


def uuid_order(uuid: bytes) -> tuple[int, int]:
    """What `Uuid.compareTo` orders by: its halves, as signed numbers."""
    return int.from_bytes(uuid[:8], "big", signed=True), int.from_bytes(uuid[8:], "big", signed=True)


def buckets_of(capacity: int) -> int:
    """How many buckets a `HashMap` has that was made with this capacity."""
    return 1 << max(capacity - 1, 0).bit_length()


def buckets_of_copy(size: int) -> int:
    """How many buckets a `HashSet` has that was made from a collection of this size."""
    return buckets_of(max(size * 4 // 3 + 1, FEWEST_BUCKETS))


def buckets_of_map_copy(size: int) -> int:
    """How many buckets a `HashMap` has that was made from a map of this size."""
    return buckets_of(size * 4 // 3 + 1) if size else FEWEST_BUCKETS


def bucket_order(keys: Iterable[K], hash_of: Callable[[K], int], buckets: int) -> list[K]:
    """The keys in the order of a hash table of this size, and as they come where they share a bucket."""

    def bucket(key: K) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(keys, key=bucket)


def grown(buckets: int, size: int) -> int:
    """How many buckets a `HashMap` of so many has when it holds this many keys."""
    while 4 * size > 3 * buckets:
        buckets *= 2
    return buckets


def hash_map_order(keys: Iterable[K], hash_of: Callable[[K], int], buckets: int = FEWEST_BUCKETS) -> list[K]:
    """The keys, each once, as a `HashMap` that got them in this order tells them.

    That is by bucket, of which there are `buckets` at first; the table doubles when it is more than three
    quarters full. Not as in Java where eight keys or more share a bucket, which then becomes a tree.
    """
    distinct = list(dict.fromkeys(keys))
    return bucket_order(distinct, hash_of, grown(buckets, len(distinct)))


def hash_set_order(keys: Collection[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys, each once, as a `HashSet` made from this collection tells them."""
    return hash_map_order(keys, hash_of, buckets_of_copy(len(keys)))


class HashTable(Generic[K]):
    """The keys of a `HashMap` that grows as Java's does; it does not shrink."""

    __slots__ = ("_buckets", "_computed", "_hash_of", "_put")

    def __init__(self, hash_of: Callable[[K], int], buckets: int = FEWEST_BUCKETS) -> None:
        self._hash_of = hash_of
        self._buckets = buckets
        self._put: dict[K, None] = {}
        self._computed: dict[K, None] = {}

    def put(self, key: K) -> None:
        """`put`: a new key is the last in its bucket, and the table grows when that makes it too full."""
        if key not in self._computed:
            self._put[key] = None
        self._buckets = grown(self._buckets, len(self._put) + len(self._computed))

    def compute(self, key: K) -> None:
        """`computeIfAbsent`, `merge`: a new key is the first, and the table grows if it was too full."""
        self._buckets = grown(self._buckets, len(self._put) + len(self._computed))
        if key not in self._put:
            self._computed[key] = None

    @property
    def order(self) -> list[K]:
        """The keys as the map tells them."""
        return bucket_order([*reversed(self._computed), *self._put], self._hash_of, self._buckets)


def timeline_slots(slots: int, size: int) -> int:
    """How many slots a `TimelineHashMap` of this size has after a `put`, be the key new or not."""
    return 2 * slots if 3 * (size + 1) > 4 * slots else slots


def timeline_map_order(keys: Iterable[K], hash_of: Callable[[K], int], slots: int = FEWEST_SLOTS) -> list[K]:
    """The keys, each once, as Kafka's `TimelineHashMap` that got them in this order tells them.

    That is by slot, which the highest bits of a product decide (Fibonacci hashing), and in a slot the
    last first. There are `slots` at first, and twice as many when three quarters of the keys are more.
    """
    distinct = list(dict.fromkeys(keys))
    while 3 * len(distinct) > 4 * slots:
        slots *= 2
    shift = 65 - slots.bit_length()

    def slot(key: K) -> int:
        value = hash_of(key)
        signed = value - (1 << 32) if value >> 31 else value
        return (signed * FIBONACCI & UINT64) >> shift

    distinct.reverse()
    return sorted(distinct, key=slot)


def scala_map_order(keys: Iterable[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys, each once, as Scala's mutable `HashMap` that got them in this order tells them.

    Unlike Java's it grows already with the key that would fill three quarters of it, or then with one that it
    has, and a bucket is in the order of hashes.
    """
    buckets = FEWEST_BUCKETS
    distinct: dict[K, int] = {}
    for key in keys:
        if 4 * (len(distinct) + 1) >= 3 * buckets:
            buckets *= 2
        value = hash_of(key)
        distinct[key] = value ^ value >> 16
    return sorted(distinct, key=lambda key: (distinct[key] & (buckets - 1), distinct[key] ^ 1 << 31))


def scala_trie_order(keys: Iterable[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys, each once, as Scala's immutable `HashMap` that got them in this order tells them.

    It is a trie by five bits of the hash at a time, the lowest first. A node tells the keys that it holds
    before those of the nodes below it.
    """
    return _trie_order(dict.fromkeys(keys), lambda key: _scala_improved(hash_of(key)), 0)


def _trie_order(keys: Iterable[K], hash_of: Callable[[K], int], shift: int) -> list[K]:
    if shift >= 32:
        # They have the same hash.
        return list(keys)
    branches: dict[int, list[K]] = {}
    for key in keys:
        branches.setdefault(hash_of(key) >> shift & 31, []).append(key)
    own = [branches[at][0] for at in sorted(branches) if len(branches[at]) == 1]
    below = (
        _trie_order(branches[at], hash_of, shift + 5) for at in sorted(branches) if len(branches[at]) > 1
    )
    return [*own, *(key for order in below for key in order)]


def _scala_improved(value: int) -> int:
    value = value + ~(value << 9) & UINT32
    value ^= value >> 14
    value = value + (value << 4) & UINT32
    return value ^ value >> 10
