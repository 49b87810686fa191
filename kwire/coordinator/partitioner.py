"""The hash of group ids and transactional ids to partitions of the coordinator's topic."""

from __future__ import annotations

from functools import lru_cache

from kwire.wire.java_strings import string_hash

PARTITION_CACHE_SIZE = 20_000
"""The maximum number of group ids and transactional ids whose partition is cached for later requests."""

MAX_CACHED_NAME_LENGTH = 200
"""The length of the longest cached name. Longer names, of up to 32 KiB, would make the cache too large."""


def partition_of(name: str, count: int) -> int:
    """Return the partition for a group id or transactional id in a topic with `count` partitions.

    The partition is Java's string hash, made positive as by Kafka's `Utils.abs`, modulo `count`.
    """
    is_cached = len(name) <= MAX_CACHED_NAME_LENGTH
    return _cached_partition_of(name, count) if is_cached else _partition_of(name, count)


def _partition_of(name: str, count: int) -> int:
    value = string_hash(name)
    if value >= 0x80000000:
        value = 0x100000000 - value
    # The smallest int32 has no absolute value in an int32. Kafka uses 0.
    return 0 if value == 0x80000000 else value % count


_cached_partition_of = lru_cache(PARTITION_CACHE_SIZE)(_partition_of)
