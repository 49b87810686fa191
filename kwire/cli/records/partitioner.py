"""The default partitioner for keys, as in Java's producer, so that all producers agree.

The partition is the 32-bit Murmur2 hash of the key with the seed of Kafka's `Utils.murmur2`, made positive,
modulo the number of partitions.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_32_BITS: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash as an unsigned 32-bit number."""
    hashed = (_SEED ^ len(data)) & _32_BITS
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _32_BITS
        word = (word ^ word >> 24) * _MULTIPLIER & _32_BITS
        hashed = (hashed * _MULTIPLIER & _32_BITS) ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _32_BITS
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _32_BITS
    return hashed ^ hashed >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the index of the partition for a key; `partitions` is the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
