"""Bulk reading of keys from records with one layout has the same result as reading one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.broker.storage.cleaner import record_keys
from kwire.broker.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap, Survivors
from kwire.broker.storage.cleaner.record_keys import (
    LONGEST_PLAIN_KEY,
    RecordKeys,
    hash_key,
    keys_of,
    record_offsets,
)
from kwire.wire.batch import HEADER_BYTES, CorruptBatch, build, read_header, records

SIZES = [
    pytest.param(lambda draw: 100, id="one size"),
    pytest.param(lambda draw: 100 if draw.random() < 0.95 else draw.randrange(300), id="mostly one size"),
    pytest.param(lambda draw: draw.randrange(3), id="tiny"),
    pytest.param(lambda draw: draw.choice([-1, 10, 10, 10]), id="tombstones"),
    pytest.param(lambda draw: draw.randrange(50, 150), id="mixed"),
    pytest.param(lambda draw: draw.randrange(300), id="widely mixed"),
    pytest.param(lambda draw: 100 if draw.random() < 0.5 else -1, id="mixed with tombstones"),
    pytest.param(lambda draw: 9000 if draw.random() < 0.1 else 60, id="long ones"),
]
KEYS = [
    pytest.param(lambda draw: b"%06d" % draw.randrange(200), id="short keys"),
    pytest.param(lambda draw: b"%080d" % draw.randrange(200), id="long keys"),
    pytest.param(lambda draw: b"%d" % draw.randrange(200), id="keys of some sizes"),
    pytest.param(lambda draw: None if draw.random() < 0.02 else b"%06d" % draw.randrange(99), id="no key"),
]


@pytest.mark.parametrize("size_of", SIZES)
@pytest.mark.parametrize("key_of", KEYS)
@pytest.mark.parametrize("step_ms", [0, 1, 90])
@pytest.mark.parametrize("count", [1, 70, 400])
def test_keys_equal_those_of_the_record_reader(
    size_of: Callable[[random.Random], int],
    key_of: Callable[[random.Random], bytes | None],
    step_ms: int,
    count: int,
) -> None:
    draw = random.Random(count)
    written = []
    for number in range(count):
        size = size_of(draw)
        value = None if size < 0 else draw.randbytes(size)
        written.append((1_000_000 + number * step_ms - draw.randrange(2), key_of(draw), value, ()))
    data = bytes(build(written, base_offset=1000))
    header = read_header(data)
    found = keys_of(data, HEADER_BYTES, len(data), count)
    expected = [(record.offset, record.key, record.value is None) for record in records(data, 0, header)]
    assert len(found.starts) == count + 1
    assert record_offsets(data, found.starts, 1000) == [offset for offset, _, _ in expected]
    assert found.keys == [None if key is None else shortened(key) for _, key, _ in expected]
    assert found.has_null == (None in found.keys)
    assert found.tombstones == [index for index, (_, _, is_tombstone) in enumerate(expected) if is_tombstone]
    for capacity, from_offset in ((10_000, 0), (10_000, 1010), (150, 0)):
        by_batch = OffsetMap(capacity * ENTRY_BYTES)
        by_batch.add(data, HEADER_BYTES, len(data), 1000, count, from_offset)
        keys: set[bytes] = set()
        last = -1
        for offset, key, _ in expected:
            if key is None or offset < from_offset:
                continue
            if len(keys) >= capacity:  # a known key has no other place either
                break
            keys.add(shortened(key))
            last = offset
        assert by_batch.latest == dict.fromkeys(keys, 1000)
        assert by_batch.is_full == (len(keys) == capacity)
        if by_batch.is_full:
            assert by_batch.latest_offset == last


def shortened(key: bytes) -> bytes:
    return key if len(key) <= LONGEST_PLAIN_KEY else hash_key(key)


def test_surviving_records_are_returned_per_batch() -> None:
    survivors = Survivors({b"a": 10, b"b": 30, b"c": 10, b"d": 50})
    assert set(survivors.of(10, 5)) == {b"a", b"c"}
    assert survivors.of(20, 5) == []
    assert survivors.of(40, 5) == []
    assert survivors.of(50, 5) == [b"d"]


@pytest.mark.parametrize("length", [LONGEST_PLAIN_KEY, LONGEST_PLAIN_KEY + 1, 400])
def test_keys_of_one_length_are_distinguished(length: int) -> None:
    """Each of 5000 keys has its own entry. The entry of a long key is a hash, longer than any plain key."""
    keys = [b"%0*d" % (length, number) for number in range(5000)]
    data = bytes(build([(0, key, b"", []) for key in keys], base_offset=0))
    known = OffsetMap(len(keys) * ENTRY_BYTES)
    known.add(data, HEADER_BYTES, len(data), 0, len(keys), 0)
    assert len(known.latest) == len(keys)
    sizes = {len(key) for key in known.latest if key is not None}
    assert sizes == {length} if length <= LONGEST_PLAIN_KEY else min(sizes) > LONGEST_PLAIN_KEY


def one_by_one(data: bytes, at: int, end: int, count: int) -> RecordKeys:
    """Return the result of `keys_of` without bulk reading."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_keys, "_read_alike", lambda *_: 0)
        patch.setattr(record_keys, "_read_mixed", lambda *_: 0)
        return keys_of(data, at, end, count)


def outcome(read: Callable[[bytes, int, int, int], RecordKeys], *of: Any) -> tuple[object, ...]:
    try:
        found = read(*of)
    except CorruptBatch:
        return (CorruptBatch,)
    return found.keys, found.starts, found.tombstones, found.has_null


def sizes(most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda pair: (min(pair), max(pair)))


@st.composite
def stretches(draw: st.DrawFn) -> list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]:
    """Draw records in runs of one layout, long enough for bulk reading."""
    written = []
    timestamp = 1_000_000
    for _ in range(draw(st.integers(1, 4))):
        random_of = random.Random(draw(st.integers(0, 1 << 32)))
        keys, values = (
            draw(sizes(draw(st.sampled_from([20, 70])))),
            draw(sizes(draw(st.sampled_from([60, 300])))),
        )
        if draw(st.booleans()):
            keys = (keys[0], keys[0])
        step_ms = draw(st.sampled_from([0, 1, 7, -3, 1 << 20]))
        odd = draw(st.sampled_from([0.0, 0.0, 0.02, 0.5]))
        for _ in range(draw(st.integers(1, 150))):
            key: bytes | None = random_of.randbytes(random_of.randint(*keys))
            value: bytes | None = random_of.randbytes(random_of.randint(*values))
            headers: tuple[tuple[str, bytes], ...] = ()
            if random_of.random() < odd:
                kind = random_of.randrange(4)
                key = None if kind == 0 else key
                value = None if kind == 1 else random_of.randbytes(9000) if kind == 2 else value
                headers = (("name", b"x" * random_of.randrange(90)),)
            timestamp += step_ms
            written.append((timestamp, key, value, headers))
    return written


@settings(max_examples=150, deadline=None)
@given(
    stretches(),
    st.integers(0, 20),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
    st.integers(-2, 2),
)
def test_bulk_reading_equals_reading_one_by_one(
    written: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]],
    before: int,
    with_gaps: bool,
    damages: list[tuple[float, int]],
    too_many: int,
) -> None:
    """Compare both also for damaged records, records between other bytes, and a wrong number of records."""
    count = len(written)
    deltas = [number * 3 + number // 50 * 1000 for number in range(count + 1)] if with_gaps else None
    body = bytes(build(written, offset_deltas=deltas))[HEADER_BYTES:]
    data = bytes(before) + body
    for behind in (b"", bytes(70), b"\xff" * 5):
        of = (data + behind, before, len(data), count)
        assert outcome(keys_of, *of) == outcome(one_by_one, *of) != (CorruptBatch,)
    damaged = bytearray(data)
    for where, byte in damages:
        damaged[before + int(where * (len(body) - 1))] = byte
    for size in (len(data), before + int(len(body) * (damages[0][0] if damages else 0.5))):
        of = (bytes(damaged[:size]), before, size, count + too_many)
        assert outcome(keys_of, *of) == outcome(one_by_one, *of)
    of = (bytes(damaged), before, len(data) - 1, count)
    assert outcome(keys_of, *of) == outcome(one_by_one, *of)


def test_changed_layout_is_detected_at_the_same_apparent_key_size() -> None:
    """The timestamp delta is one byte longer, so the offset delta, 16, is at the position of the key size."""
    written = [(64 if number == 16 else 0, b"%016d" % number, bytes(50 + number), ()) for number in range(40)]
    data = bytes(build(written))
    found = keys_of(data, HEADER_BYTES, len(data), len(written))
    assert found.keys == [key for _, key, _, _ in written]


@pytest.mark.parametrize("key_bytes", [[16], [16, 9, 12]])
@pytest.mark.parametrize("value_bytes", [8, 70])
def test_record_that_ends_with_its_key_is_invalid(value_bytes: int, key_bytes: list[int]) -> None:
    """The record length is encoded in one byte, or in two although one is enough."""
    written = [
        (0, bytes(key_bytes[number % len(key_bytes)]), bytes(value_bytes + number % 5), ())
        for number in range(30)
    ]
    body = bytes(build(written))[HEADER_BYTES:]
    last = bytes((0, 0, len(written) << 1, 16 << 1)) + bytes(16)
    for length in (bytes((len(last) << 1,)), bytes((len(last) << 1 | 0x80, 0))):
        data = body + length + last
        with pytest.raises(CorruptBatch):
            keys_of(data + bytes(100), 0, len(data), len(written) + 1)
        data += b"\1\0"  # no value, and no headers
        length = bytes((length[0] + 4, *length[1:]))
        data = data[: len(body)] + length + data[len(body) + len(length) :]
        assert keys_of(data + bytes(100), 0, len(data), len(written) + 1).tombstones == [len(written)]
