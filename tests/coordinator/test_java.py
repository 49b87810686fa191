"""Hashes against values that a JVM printed."""

from __future__ import annotations

from coordinator.java import hash_map_order, string_hash, topic_partition_hash


def test_strings() -> None:
    assert string_hash("") == 0
    assert string_hash("hello") == 99162322
    assert string_hash("Hello World") == 2**32 - 862545276
    assert string_hash("\U0001f600") == 1772899


def test_topic_partitions() -> None:
    hashes = [topic_partition_hash("__consumer_offsets", partition) for partition in range(50)]
    assert hashes[0] == 2**32 - 970370408
    order = hash_map_order(range(50), hashes.__getitem__)
    assert order[:8] == [13, 46, 9, 42, 21, 17, 30, 26]
    assert order[-8:] == [22, 18, 31, 27, 39, 6, 35, 2]


def test_a_map_tells_its_keys_by_bucket_and_grows() -> None:
    assert hash_map_order([17, 3, 16, 1, 3], lambda key: key) == [16, 17, 1, 3]
    assert hash_map_order([*range(20, 8, -1), 33, 32], lambda key: key) == [32, 33, *range(9, 21)]
