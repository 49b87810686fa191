"""The offset map takes in records that are laid out alike at once: that must change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.storage.cleaner.offset_map import ENTRY_BYTES, LONGEST_PLAIN_KEY, OffsetMap, short
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
def test_the_map_is_that_of_the_records_one_by_one(
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
    for capacity, from_offset in ((10_000, 0), (10_000, 1010), (150, 0)):
        by_batch = OffsetMap(capacity * ENTRY_BYTES)
        by_batch.add(data, HEADER_BYTES, len(data), 1000, count, from_offset)
        latest: dict[bytes, int] = {}
        tombstone = False
        for record in records(data, 0, header):
            if record.key is None or record.offset < from_offset:
                continue
            key = record.key if len(record.key) <= LONGEST_PLAIN_KEY else short(record.key)
            if len(latest) >= capacity:  # what is not new would have no place either
                break
            latest[key] = record.offset
            tombstone = tombstone or record.value is None
        assert by_batch.latest == latest
        assert bool(by_batch.with_tombstones) == tombstone
        assert not by_batch.with_gaps
