"""The order of keys, which decides what is found wrong first."""

from __future__ import annotations

from kwire.broker.metadata.names import LONGEST_ORDERED, map_order


def test_keys_come_as_a_map_has_them() -> None:
    assert list(map_order(["segment.bytes", "retention.ms", "nothing"])) == [
        "nothing",
        "segment.bytes",
        "retention.ms",
    ]


def test_keys_that_are_too_long_to_be_hashed_come_as_they_are() -> None:
    long = [letter * (LONGEST_ORDERED // 2) for letter in "cba"]
    assert list(map_order(long)) == long
    assert sorted(map_order(long[:2])) == sorted(long[:2])
