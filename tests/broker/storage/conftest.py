"""A log on a disk in memory, empty or with three small segments."""

from __future__ import annotations

import pytest

from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch

VALUE = bytes(100)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def harness(disk: MemoryDisk) -> LogHarness:
    return LogHarness(disk)


@pytest.fixture
def filled(harness: LogHarness) -> Log:
    """Fill a log: two records per batch, three batches per segment, offsets 0..5, 6..11 and 12..15."""
    harness.config = harness.config._replace(
        segment_bytes=3 * len(batch(VALUE, VALUE)), index_interval_bytes=1
    )
    log = harness.open()
    for number in range(8):
        harness.append(log, VALUE, VALUE, timestamp=NOW_MS + number * 10)
    assert log.segment_base_offsets == [0, 6, 12]
    return log
