"""The log cleaner reads and rebuilds every batch that the validation of produced batches accepts."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.cleaner.batch_rebuild import with_delete_horizon, with_records
from kwire.broker.storage.cleaner.record_keys import LONGEST_PLAIN_KEY, hash_key, keys_of
from kwire.wire.batch import HEADER_BYTES, build, read_header, records
from kwire.wire.record_scan import Problem, scan
from tests.wire.test_record_scan import BASE, MAX, MIN, mutations

HORIZON_MS = BASE + 1000
UNUSUAL = [
    "9280808010 00 00 00 04 6b6b 02 76 00",  # a length with bits beyond 32
    "1a 00 00 00 8480808010 6b6b 02 76 00",  # a key length with bits beyond 32
    "12 00 00 00 04 6b6b 05 00 00",  # bytes after the headers: rejected
    "10 00 00 00 04 6b6b 05 00",  # a value length of -3
    "24 00 8280808080808080807e 00 04 6b6b 02 76 00",  # a timestamp delta with bits beyond 64
    "12 00 02 00 04 6b6b 02 76 00",  # a timestamp that wraps if the base timestamp is the maximum
]


def check(payload: bytes, count: int, base_timestamp: int) -> bool:
    """Return whether the scan accepts the payload. If so, check that the cleaner can process it."""
    if scan(payload, count, base_timestamp, MIN, MAX, True)[:1] != (Problem.NONE,):
        return False
    batch = build([(BASE, b"k", None, [])])[:HEADER_BYTES] + payload
    header = read_header(batch)._replace(
        batch_length=len(batch) - 12, records_count=count, base_timestamp=base_timestamp
    )
    expected = list(records(batch, 0, header))
    if any(record.key is None for record in expected):
        return False
    found = keys_of(bytes(batch), HEADER_BYTES, len(batch), count)
    assert found.keys == [
        key if len(key) <= LONGEST_PLAIN_KEY else hash_key(key)
        for record in expected
        if (key := record.key) is not None
    ]
    assert found.tombstones == [index for index, record in enumerate(expected) if record.value is None]
    for rebuilt in (
        with_records(payload, header, count),
        with_delete_horizon(bytes(batch), [(HEADER_BYTES, len(batch))], header, count, HORIZON_MS),
    ):
        new_header = read_header(rebuilt)
        assert list(records(rebuilt, 0, new_header)) == expected
        assert new_header.max_timestamp == max(record.timestamp for record in expected)
    return True


@pytest.mark.parametrize("base_timestamp", [BASE, MAX, MIN, 0])
@pytest.mark.parametrize("payload", UNUSUAL)
def test_cleaner_processes_unusual_records(payload: str, base_timestamp: int) -> None:
    accepted = check(bytes.fromhex(payload), 1, base_timestamp)
    assert accepted == (payload != UNUSUAL[2])


def test_cleaner_processes_accepted_batches() -> None:
    choose = random.Random("accepted batches")
    accepted = 0
    for (payload, count), _ in zip(mutations(choose), range(20_000), strict=False):
        accepted += check(payload, count, choose.choice([BASE, BASE, MAX, MIN]))
    assert accepted > 500
