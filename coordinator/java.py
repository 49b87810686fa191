"""Hashes as Java computes them, where Kafka's behaviour hangs on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

UINT32 = 0xFFFFFFFF
FEWEST_BUCKETS = 16


def string_hash(text: str) -> int:
    """`String.hashCode()` as an unsigned number of 32 bits."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & UINT32
    return value


def topic_partition_hash(topic: str, partition: int) -> int:
    """`TopicPartition.hashCode()`, likewise."""
    return (31 * (31 + partition) + string_hash(topic)) & UINT32


def hash_map_order(keys: Iterable[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys, each once, as a `HashMap` that got them in this order tells them.

    That is by bucket; the table doubles when it is more than three quarters full.
    """
    distinct = list(dict.fromkeys(keys))
    buckets = FEWEST_BUCKETS
    while 4 * len(distinct) > 3 * buckets:
        buckets *= 2

    def bucket(key: K) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(distinct, key=bucket)
