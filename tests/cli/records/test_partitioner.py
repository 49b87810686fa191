"""Keys are hashed to the same partitions as by other producers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.cli.records.partitioner import murmur2, partition_for_key
from tests.wire import kafka_json


@pytest.mark.parametrize(
    ("key", "hashed"),
    # From Kafka's test of `Utils.murmur2`, clients/src/test/.../UtilsTest.java.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_kafka(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % (1 << 32)


def test_partitions_match_kafka_python() -> None:
    other: Any = kafka_json.reference("kafka.partitioner.default")
    rng = random.Random(7)
    for length in range(40):
        key = rng.randbytes(length)
        assert murmur2(key) == other.murmur2(key) & 0xFFFFFFFF
        for count in (1, 3, 12):
            assert partition_for_key(key, count) == (other.murmur2(key) & 0x7FFFFFFF) % count
