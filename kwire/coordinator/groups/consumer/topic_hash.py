"""Hashes of a consumer group's topics. KIP-1101.

The hashes are stored with the group. A different hash means that a topic was created or deleted, got
partitions, or has replicas on other racks. The hash is XXH3 of 64 bits over little-endian numbers. A string
is hashed as its UTF-16 code units, followed by their number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.wire.java_strings import string_sort_key

MAGIC: Final = 0
"""The version of the hash function."""

INT: Final = struct.Struct("<i")
LONG: Final = struct.Struct("<q")


def topic_hash(topic_id: bytes, name: str, racks_by_partition: Sequence[Sequence[str]]) -> int:
    """Return the signed hash of an existing topic. The order of a partition's racks does not matter.

    Topics that do not exist are not part of a group's hash.
    """
    hashed = bytearray([MAGIC])
    # Java hashes the two halves of the id as numbers.
    hashed += topic_id[7::-1] + topic_id[:7:-1]
    hashed += _string(name)
    hashed += INT.pack(len(racks_by_partition))
    for partition, racks in enumerate(racks_by_partition):
        hashed += INT.pack(partition)
        for rack in sorted(racks, key=string_sort_key):
            text = _string(rack)
            hashed += text[-INT.size :] + text
    return _xxh3(hashed)


def group_hash(hashes: Mapping[str, int]) -> int:
    """Return the signed hash of a group's topics, from their hashes by name. It is 0 without topics."""
    if not hashes:
        return 0
    return _xxh3(b"".join(LONG.pack(hashes[name]) for name in sorted(hashes, key=string_sort_key)))


def _string(text: str) -> bytes:
    units = text.encode("utf-16-le", "surrogatepass")
    return units + INT.pack(len(units) // 2)


def _xxh3(hashed: bytes | bytearray) -> int:
    import xxhash

    value = xxhash.xxh3_64_intdigest(hashed)
    return value - (1 << 64) if value >> 63 else value
