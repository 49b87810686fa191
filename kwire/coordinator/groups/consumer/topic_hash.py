"""Hashes by which a consumer group knows its topics. KIP-1101.

They are stored with the group, and a difference tells that a topic was created, deleted, widened or moved to
other racks. XXH3 of 64 bits over little-endian numbers; a string is its UTF-16 units and then how many.
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
    """The hash of a topic that exists, signed; in: the racks of the replicas of each partition, in any order.

    A topic that does not exist has no place in a group's hash.
    """
    hashed = bytearray([MAGIC])
    # Java puts in the two halves of the id as numbers.
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
    """The hash of all topics of a group, signed; in: their hashes by name. 0 where there are none."""
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
