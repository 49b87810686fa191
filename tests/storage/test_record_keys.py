"""Keys of records that are laid out alike are read at once: that must change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap, Survivors
from broker.storage.cleaner.record_keys import LONGEST_PLAIN_KEY, keys_of, offsets_of, short
from kwire.batch import HEADER_BYTES, build, read_header, records

SIZES = [
    pytest.param(lambda draw: 100, id="one size"),
    pytest.param(lambda draw: 100 if draw.random() < 0.95 else draw.randrange(300), id="mostly one size"),
    pytest.param(lambda draw: draw.randrange(3), id="tiny"),
    pytest.param(lambda draw: draw.choice([-1, 10, 10, 10]), id="tombstones"),
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
def test_what_is_read_is_that_of_the_records_one_by_one(
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
    assert offsets_of(data, found.starts, 1000) == [offset for offset, _, _ in expected]
    assert found.keys == [None if key is None else shortened(key) for _, key, _ in expected]
    assert found.has_null == (None in found.keys)
    assert found.tombstones == [
        index for index, (_, key, is_tombstone) in enumerate(expected) if is_tombstone and key is not None
    ]
    for capacity, from_offset in ((10_000, 0), (10_000, 1010), (150, 0)):
        by_batch = OffsetMap(capacity * ENTRY_BYTES)
        by_batch.add(data, HEADER_BYTES, len(data), 1000, count, from_offset)
        keys: set[bytes] = set()
        last = -1
        for offset, key, _ in expected:
            if key is None or offset < from_offset:
                continue
            if len(keys) >= capacity:  # what is not new would have no place either
                break
            keys.add(shortened(key))
            last = offset
        assert by_batch.latest == dict.fromkeys(keys, 1000)
        assert by_batch.is_full == (len(keys) == capacity)
        if by_batch.is_full:
            assert by_batch.latest_offset == last


def shortened(key: bytes) -> bytes:
    return key if len(key) <= LONGEST_PLAIN_KEY else short(key)


def test_survivors_are_told_batch_by_batch() -> None:
    survivors = Survivors({b"a": 10, b"b": 30, b"c": 10, b"d": 50})
    assert set(survivors.of(10, 5)) == {b"a", b"c"}
    assert survivors.of(20, 5) == []
    assert survivors.of(40, 5) == []
    assert survivors.of(50, 5) == [b"d"]


@pytest.mark.parametrize("length", [LONGEST_PLAIN_KEY, LONGEST_PLAIN_KEY + 1, 400])
def test_no_key_is_taken_for_another(length: int) -> None:
    """Not among very many, and not a plain one for what stands for a longer one."""
    keys = [b"%0*d" % (length, number) for number in range(5000)]
    data = bytes(build([(0, key, b"", []) for key in keys], base_offset=0))
    known = OffsetMap(len(keys) * ENTRY_BYTES)
    known.add(data, HEADER_BYTES, len(data), 0, len(keys), 0)
    assert len(known.latest) == len(keys)
    sizes = {len(key) for key in known.latest if key is not None}
    assert sizes == {length} if length <= LONGEST_PLAIN_KEY else min(sizes) > LONGEST_PLAIN_KEY
