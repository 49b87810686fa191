"""The layout of earlier batches speeds up reading, and never changes the result."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.broker.storage.cleaner import key_reader
from kwire.broker.storage.cleaner.key_reader import KeyReader
from kwire.broker.storage.cleaner.record_keys import RecordKeys, keys_of
from kwire.wire.batch import HEADER_BYTES, CorruptBatch, build

Written = list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]


def same_layout_records(count: int, key_bytes: int, value_bytes: int, step_ms: int, seed: int) -> Written:
    draw = random.Random(seed)
    return [
        (5_000 + number * step_ms, draw.randbytes(key_bytes), draw.randbytes(value_bytes), ())
        for number in range(count)
    ]


def body(written: Written, deltas: list[int] | None = None) -> bytes:
    return bytes(build(written, offset_deltas=deltas))[HEADER_BYTES:]


def outcome(
    read: Callable[[bytes, int, int, int], RecordKeys], data: bytes, count: int
) -> tuple[object, ...]:
    """Return the keys that `read` finds in `data`, which is put between other bytes, or the error."""
    try:
        found = read(b"\x10" * 7 + data + bytes(30), 7, 7 + len(data), count)
    except CorruptBatch:
        return (CorruptBatch,)
    return found.keys, found.starts, found.tombstones, found.has_null


@pytest.fixture
def read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of records of each batch that was not read by a layout."""
    counts: list[int] = []

    def counted(data: bytes, at: int, end: int, count: int) -> RecordKeys:
        counts.append(count)
        return keys_of(data, at, end, count)

    monkeypatch.setattr(key_reader, "keys_of", counted)
    return counts


@pytest.mark.parametrize("count", [6, 15, 64, 65, 140, 9000])
@pytest.mark.parametrize("key_bytes", [0, 16, 46])
@pytest.mark.parametrize("step_ms", [0, 1])
def test_third_batch_of_a_layout_is_read_by_its_layout(
    count: int, key_bytes: int, step_ms: int, read_one_by_one: list[int]
) -> None:
    reader = KeyReader()
    for seed in range(5):
        data = body(same_layout_records(count, key_bytes, 100, step_ms, seed))
        assert outcome(reader.keys_of, data, count) == outcome(keys_of, data, count)
    assert read_one_by_one == [count] * 2


@settings(max_examples=300, deadline=None)
@given(
    st.integers(6, 150),
    st.integers(0, 50),
    st.sampled_from([0, 1, 30, 60, 100, 9000]),
    st.sampled_from([0, 1, 20, -1]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 9), st.integers(0, 255)), max_size=3),
)
def test_batch_of_the_same_size_with_another_layout_is_read_correctly(
    count: int,
    key_bytes: int,
    value_bytes: int,
    step_ms: int,
    with_gaps: bool,
    damages: list[tuple[int, int, int]],
) -> None:
    reader = KeyReader()
    deltas = [number * 2 + number // 50 * 300 for number in range(count + 1)] if with_gaps else None
    for seed in range(2):
        reader.keys_of(
            known := body(same_layout_records(count, key_bytes, value_bytes, step_ms, seed), deltas),
            0,
            len(known),
            count,
        )
    starts = keys_of(known, 0, len(known), count).starts
    damaged = bytearray(known)
    for which, place, byte in damages:
        # Only in record headers, because the reader checks no other bytes.
        damaged[min(starts[which % count] + place, len(known) - 1)] = byte
    assert outcome(reader.keys_of, bytes(damaged), count) == outcome(keys_of, bytes(damaged), count)


@pytest.mark.parametrize("which", [0, 7, 19])
def test_records_of_the_same_size_with_another_layout_are_detected(which: int) -> None:
    """No value, no key, a longer key with a shorter value, or timestamps of another length."""
    count = 20
    plain = same_layout_records(count, 16, 40, 0, 1)
    others: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]] = [
        (5_000, plain[which][1], None, (("h" * 19, bytes(19)),)),
        (5_000, None, bytes(56), ()),
        (5_000, bytes(20), bytes(36), ()),
        (5_000 + (2000 if which else 0), bytes(16), bytes(39 if which else 40), ()),
    ]
    for other in others:
        data = body([*plain[:which], other, *plain[which + 1 :]])
        assert len(data) == len(body(plain))
        reader = KeyReader()
        for _ in range(2):
            reader.keys_of(body(plain), 0, len(data), count)
        assert outcome(reader.keys_of, data, count) == outcome(keys_of, data, count)


def test_search_for_layouts_ends_if_none_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    sought = 0
    layout_of = key_reader._layout_of

    def counted(data: bytes, at: int, records: RecordKeys) -> object:
        nonlocal sought
        sought += 1
        return layout_of(data, at, records)

    monkeypatch.setattr(key_reader, "_layout_of", counted)
    reader = KeyReader()
    for number in range(200):
        data = body(same_layout_records(10, 16, 50 + number, 0, number))
        for _ in range(2):
            reader.keys_of(data, 0, len(data), 10)
    assert sought < 20
