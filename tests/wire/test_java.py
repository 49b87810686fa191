"""Hashes against values that a JVM printed."""

from __future__ import annotations

import pytest

from kwire.wire.java import (
    HashTable,
    hash_map_order,
    scala_map_order,
    scala_trie_order,
    string_hash,
    timeline_map_order,
    timeline_slots,
    topic_partition_hash,
)


def test_strings() -> None:
    assert string_hash("") == 0
    assert string_hash("hello") == 99162322
    assert string_hash("Hello World") == 2**32 - 862545276
    assert string_hash("\U0001f600") == 1772899


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("y" * 257, -1353158535),
        ("kwire-\u00e9\U0001f600" * 150, 1014228384),
        ("ab" * 1024, 838403072),
        ("x" * 32767, -2080510088),
    ],
)
def test_long_strings(text: str, printed: int) -> None:
    assert string_hash(text) == printed % 2**32


def test_topic_partitions() -> None:
    hashes = [topic_partition_hash("__consumer_offsets", partition) for partition in range(50)]
    assert hashes[0] == 2**32 - 970370408
    order = hash_map_order(range(50), hashes.__getitem__)
    assert order[:8] == [13, 46, 9, 42, 21, 17, 30, 26]
    assert order[-8:] == [22, 18, 31, 27, 39, 6, 35, 2]


def test_a_map_tells_its_keys_by_bucket_and_grows() -> None:
    assert hash_map_order([17, 3, 16, 1, 3], lambda key: key) == [16, 17, 1, 3]
    assert hash_map_order([*range(20, 8, -1), 33, 32], lambda key: key) == [32, 33, *range(9, 21)]


def test_what_a_map_computes_comes_first_in_its_bucket_and_grows_it_late() -> None:
    table = HashTable(int)
    for key in (3, 19, 3):
        table.put(key)
    for key in (35, 51, 19, 35):
        table.compute(key)
    assert table.order == [51, 35, 3, 19]
    for key in (*range(4, 12), 16):
        table.compute(key)
    # Thirteen keys are too many for sixteen buckets, which is seen with the next one.
    assert table.order == [16, 51, 35, 3, 19, *range(4, 12)]
    table.compute(16)
    assert table.order == [35, 3, *range(4, 12), 16, 51, 19]


def test_kafkas_map_grows_also_with_a_key_that_it_has() -> None:
    slots = 2
    for size, expected in ((0, 2), (1, 2), (2, 4), (2, 4), (4, 4), (5, 8)):
        slots = timeline_slots(slots, size)
        assert slots == expected
    names = [f"member-{number}" for number in range(3)]
    assert timeline_map_order(names, string_hash) == ["member-0", "member-2", "member-1"]


def test_scalas_mutable_map_grows_a_key_earlier_and_orders_its_buckets() -> None:
    assert scala_map_order([33, 17, 3, 16, 1, 3, 2**31 + 1], lambda key: key) == [16, 2**31 + 1, 1, 17, 33, 3]
    assert scala_map_order([16, *range(1, 11)], lambda key: key) == [16, *range(1, 11)]
    assert scala_map_order([16, *range(1, 12)], lambda key: key) == [*range(1, 12), 16]
    # So it does with a key that it has.
    assert scala_map_order([16, *range(1, 11), 1], lambda key: key) == [*range(1, 11), 16]
    assert scala_map_order([], lambda key: key) == []


def test_scalas_mutable_map_of_partitions() -> None:
    def order(partitions: int) -> list[int]:
        return scala_map_order(range(partitions), lambda index: topic_partition_hash("lo10", index))

    assert order(10) == [1, 0, 3, 2, 9, 8, 5, 4, 7, 6]
    assert order(13) == [12, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2]


def test_scalas_immutable_map() -> None:
    assert scala_trie_order(["lo10", "lo3"], string_hash) == ["lo3", "lo10"]
    names = ["Aa", "BB", "AaBB", "BBAa", "AaAa", "BBBB", "lo1"]
    assert scala_trie_order(names, string_hash) == ["lo1", "Aa", "BB", "AaBB", "BBAa", "AaAa", "BBBB"]
