"""The offset map of a mirror: entries, and translation of offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kwire.pipeline import offset_map
from kwire.pipeline.mirror.groups import OffsetMapIndex
from kwire.pipeline.offset_map import DeliveryError, MapEntry, OffsetRun, entries


def test_an_entry_with_runs_and_gaps_round_trips() -> None:
    [entry] = entries(
        "m", 3, 120, 140, [*zip(range(120, 125), range(90, 95), strict=True), (135, 95), (136, 97)]
    )
    assert entry.runs == (OffsetRun(120, 90, 5), OffsetRun(135, 95, 1), OffsetRun(136, 97, 1))
    assert (entry.source, entry.end, entry.target, entry.next_target) == (120, 140, 90, 98)
    key, value = entry._replace(origin="c/t/i").encode()
    assert key == b"m/3/120"
    assert json.loads(value) == {
        "source": 120, "end": 140, "target": 90, "origin": "c/t/i", "runs": [0, 0, 5, 10, 0, 1, 0, 1, 1],
    }  # fmt: skip
    assert MapEntry.decode(key, value, "") == entry._replace(origin="c/t/i")


def test_a_range_without_records_is_one_entry() -> None:
    [entry] = entries("m", 0, 5, 9, [], next_target=70)
    assert (entry.source, entry.end, entry.runs, entry.next_target) == (5, 9, (), 70)
    assert MapEntry.decode(*entry.encode(), "") == entry


def test_many_runs_become_consecutive_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "RUNS_PER_ENTRY", 2)
    found = list(entries("m", 0, 0, 20, [(1, 0), (3, 1), (5, 2), (7, 3), (9, 4)]))
    assert [(entry.source, entry.end, len(entry.runs)) for entry in found] == [
        (0, 5, 2),
        (5, 9, 2),
        (9, 20, 1),
    ]
    assert [MapEntry.decode(*entry.encode(), "") for entry in found] == found


@pytest.mark.parametrize(
    ("key", "value"), [(None, b"{}"), (b"m/0/1", None), (b"x", b"y"), (b"m/0/1", b'{"source": 1}')]
)
def test_a_record_that_is_not_an_entry_is_named(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(DeliveryError, match="a-0 at offset 7 is not an entry of an offset map"):
        MapEntry.decode(key, value, "a-0 at offset 7")


def index_of(found: Iterable[MapEntry], next_record: Callable[[int], int]) -> OffsetMapIndex:
    kept = dict(enumerate(found))
    index = OffsetMapIndex(kept.__getitem__, next_record)
    for offset, entry in kept.items():
        index.add(offset, entry)
    return index


def test_offsets_are_translated_to_the_first_at_or_after() -> None:
    index = index_of(
        [
            *entries("m", 0, 10, 10, []),
            *entries("m", 0, 10, 20, [(12, 0), (13, 1), (16, 2)], next_target=0),
            *entries("m", 0, 20, 30, [], next_target=3),
            *entries("m", 0, 30, 40, [(31, 4), (32, 5)]),
        ],
        lambda offset: offset + 1,  # a marker follows the last record
    )
    expected = {0: 0, 10: 0, 12: 0, 13: 1, 14: 2, 16: 2, 17: 4, 25: 4, 31: 4, 32: 5, 33: 7, 40: 7, 41: None}
    assert {offset: index.translate(offset) for offset in expected} == expected


def test_an_empty_mirror_translates_only_its_end() -> None:
    empty = index_of(entries("m", 0, 5, 5, []), lambda offset: offset)
    assert [empty.translate(offset) for offset in (0, 5, 6)] == [0, 0, None]
    assert index_of([], lambda offset: offset).translate(0) is None


def test_missing_map_entries_are_detected() -> None:
    with pytest.raises(DeliveryError, match="continues with source offset 7 after 5"):
        index_of([*entries("m", 0, 0, 5, []), *entries("m", 0, 7, 9, [])], lambda offset: offset)


# Watermarks.


class Refusing:
    """A consumer that first raises an error, and then returns watermarks."""

    def __init__(self, code: int) -> None:
        self._errors = [KafkaException(KafkaError(code))]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        for error in self._errors:
            self._errors.clear()
            raise error
        return 3, 7


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT]
)
def test_watermarks_are_requested_again_after_a_leader_failure(code: int) -> None:
    consumer = cast(Consumer, Refusing(code))
    assert offset_map.watermarks(consumer, TopicPartition("t", 0)) == (3, 7)


def test_a_permanent_error_is_raised() -> None:
    consumer = cast(Consumer, Refusing(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaException):
        offset_map.watermarks(consumer, TopicPartition("t", 0))
