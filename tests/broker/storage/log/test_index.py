"""The offset and time indexes: bytes, lookups compared with a list, and corruption."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.broker.storage.log.index import CorruptIndex, InvalidOffset, OffsetIndex, TimeIndex
from kwire.testing.disk import MemoryDisk

BASE = 1000
PATH = "/00000000000000001000.index"


def offset_index(disk: MemoryDisk, max_bytes: int = 8000) -> OffsetIndex:
    index = OffsetIndex(disk, PATH, BASE)
    index.create(max_bytes)
    return index


def time_index(disk: MemoryDisk, max_bytes: int = 12000) -> TimeIndex:
    index = TimeIndex(disk, PATH, BASE)
    index.create(max_bytes)
    return index


def test_entries_are_relative_offset_and_position_in_big_endian() -> None:
    disk = MemoryDisk()
    index = offset_index(disk)
    index.append(1005, 4096)
    index.append(1017, 70_000)
    index.finish()
    assert disk.read(PATH) == struct.pack(">iiii", 5, 4096, 17, 70_000)


def test_time_entries_are_timestamp_and_relative_offset_in_big_endian() -> None:
    disk = MemoryDisk()
    index = time_index(disk)
    index.maybe_append(1_700_000_000_000, 1005)
    index.finish()
    assert disk.read(PATH) == struct.pack(">qi", 1_700_000_000_000, 5)


def test_active_index_is_preallocated_and_trimmed_when_finished() -> None:
    disk = MemoryDisk()
    index = time_index(disk, max_bytes=100)
    assert disk.size(PATH) == 96
    index.maybe_append(7, 1001)
    index.finish()
    assert disk.size(PATH) == 12


def test_an_offset_index_is_full_after_its_last_entry_and_a_time_index_before() -> None:
    offsets, times = offset_index(MemoryDisk(), max_bytes=16), time_index(MemoryDisk(), max_bytes=24)
    offsets.append(1001, 1)
    assert not offsets.is_full
    offsets.append(1002, 2)
    assert offsets.is_full
    assert not times.is_full
    times.maybe_append(5, 1001)
    assert times.is_full


def test_offsets_must_increase() -> None:
    index = offset_index(MemoryDisk())
    index.append(1005, 1)
    with pytest.raises(InvalidOffset):
        index.append(1005, 2)


def test_time_index_appends_only_greater_timestamps() -> None:
    index = time_index(MemoryDisk())
    index.maybe_append(-1, 1001)
    assert index.entries == 0
    index.maybe_append(50, 1002)
    index.maybe_append(50, 1003)
    index.maybe_append(49, 1004)
    assert index.entries == 1
    assert index.last_entry == (50, 1002)
    with pytest.raises(InvalidOffset):
        index.maybe_append(51, 1001)


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=700)


@given(steps, st.integers(0, 40_000), st.booleans())
def test_lookup_finds_the_last_entry_at_or_before_an_offset(
    grown: list[tuple[int, int]], target: int, reopened: bool
) -> None:
    disk = MemoryDisk()
    index = offset_index(disk)
    offset, position = BASE, 0
    entries = [(BASE - 1, 0)]
    for by_offset, by_position in grown:
        offset += by_offset
        position += by_position
        index.append(offset, position)
        entries.append((offset, position))
    if reopened:
        index.finish()
        index = OffsetIndex(disk, PATH, BASE)
    expected = max(entry for entry in entries if entry[0] <= BASE + target or entry[0] < BASE)
    assert index.lookup(BASE + target) == expected[1]


@given(steps, st.integers(0, 40_000), st.booleans())
def test_time_lookup_finds_the_last_entry_at_or_before_a_timestamp(
    grown: list[tuple[int, int]], target: int, reopened: bool
) -> None:
    disk = MemoryDisk()
    index = time_index(disk)
    timestamp, offset = 0, BASE
    entries = [(-1, BASE)]
    for by_timestamp, by_offset in grown:
        timestamp += by_timestamp
        offset += by_offset
        index.maybe_append(timestamp, offset)
        entries.append((timestamp, offset))
    if reopened:
        index.finish()
        index = TimeIndex(disk, PATH, BASE)
    assert index.lookup(target) == max(entry for entry in entries if entry[0] <= target)[1]


@given(steps, st.integers(0, 40_000))
def test_truncating_keeps_the_entries_before_an_offset(grown: list[tuple[int, int]], target: int) -> None:
    offsets, times = offset_index(MemoryDisk()), time_index(MemoryDisk())
    offset = BASE
    kept = []
    for number, (by_offset, position) in enumerate(grown):
        offset += by_offset
        offsets.append(offset, position)
        times.maybe_append(number, offset)
        if offset < BASE + target:
            kept.append((offset - BASE, position))
    offsets.truncate_to(BASE + target)
    times.truncate_to(BASE + target)
    assert [offsets.entry(number) for number in range(offsets.entries)] == kept
    assert times.entries == len(kept)
    offsets.append(BASE + 100_000, 77)
    assert offsets.lookup(BASE + 100_000) == 77


changes = st.lists(
    st.tuples(st.sampled_from(("grow", "look", "cut", "close")), st.integers(0, 1000)), max_size=30
)


@given(changes)
def test_lookups_see_changes_since_earlier_lookups(made: list[tuple[str, int]]) -> None:
    disk = MemoryDisk()
    index = offset_index(disk, max_bytes=8 * 10_000)
    entries: list[tuple[int, int]] = []
    for change, number in made:
        if change == "grow":
            for _ in range(number):
                last, end = entries[-1] if entries else (BASE, 0)
                entries.append((last + 3, end + 500))
                index.append(*entries[-1])
        elif change == "cut":
            entries = [entry for entry in entries if entry[0] < BASE + number]
            index.truncate_to(BASE + number)
        elif change == "close":
            index.finish()
            index = OffsetIndex(disk, PATH, BASE)
            index.open_for_appends(8 * 10_000)
        for target in (BASE + number, BASE + number + 1, BASE + 2 * number):
            before = [entry for entry in entries if entry[0] <= target]
            assert index.lookup(target) == (before[-1][1] if before else 0)


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 7,
        struct.pack(">iiii", 5, 100, 4, 200),
        struct.pack(">iiii", 5, 100, 0, 0),
        struct.pack(">ii", -5, 100),
        b"\0" * 8000,
    ],
    ids=["not whole entries", "offsets fall", "ends in zeros", "negative", "preallocated, not trimmed"],
)
def test_invalid_index_file_is_corrupt(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(PATH, content, sync=False)
    with pytest.raises(CorruptIndex):
        OffsetIndex(disk, PATH, BASE).lookup(BASE)


def test_time_index_with_decreasing_timestamps_is_corrupt() -> None:
    disk = MemoryDisk()
    disk.write(PATH, struct.pack(">qiqi", 500, 1, 400, 2), sync=False)
    with pytest.raises(CorruptIndex):
        TimeIndex(disk, PATH, BASE).lookup(1)


def test_opening_for_appends_keeps_all_entries() -> None:
    disk = MemoryDisk()
    disk.write(PATH, struct.pack(">iiiiii", 1, 10, 2, 20, 3, 30), sync=False)
    index = OffsetIndex(disk, PATH, BASE)
    index.open_for_appends(16)
    assert index.lookup(1003) == 30
    assert index.is_full


def test_offset_at_a_position_skips_the_first_entry_at_it(disk: MemoryDisk) -> None:
    index = offset_index(disk)
    for offset, position in ((1102, 10), (1105, 20), (1109, 30)):
        index.append(offset, position)
    asked = (0, 9, 10, 11, 20, 21, 30, 31)
    assert [index.offset_at(position) for position in asked] == [
        1102,
        1102,
        1105,
        1105,
        1105,
        1109,
        1109,
        None,
    ]
    only = offset_index(MemoryDisk())
    only.append(1102, 10)
    assert [only.offset_at(position) for position in (9, 10, 11)] == [1102, None, None]


def test_lookup_is_cached_until_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    index = offset_index(disk)
    for number in range(500):
        index.append(BASE + 10 * number, number)
    index.finish()
    reads: list[int] = []
    real = index._read
    monkeypatch.setattr(
        OffsetIndex,
        "_read",
        lambda _, number, count: reads.append(count) or real(number, count),  # type: ignore[func-returns-value]
    )
    for _ in range(3):
        assert index.lookup(BASE + 105) == 10
    before = len(reads)
    assert index.lookup(BASE + 115) == 11
    assert len(reads) == before
    index.forget_lookup()
    assert index.lookup(BASE + 115) == 11
    assert len(reads) > before
