"""Both ends of a log: truncation, DeleteRecords and retention by age and size."""

from __future__ import annotations

import pytest

from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values

VALUE = bytes(100)
DAY_MS = 24 * 60 * 60 * 1000


@pytest.mark.parametrize("offset", range(17))
def test_truncation_keeps_batches_that_end_before_the_offset(
    filled: Log, harness: LogHarness, offset: int
) -> None:
    assert filled.truncate_to(offset) == (offset < 16)
    kept = list(range(offset - offset % 2))
    assert [each for each, _ in offsets_and_values(filled)] == kept
    assert filled.log_end_offset == offset
    filled.flush()
    harness.append(filled, b"new")
    assert [each for each, _ in offsets_and_values(filled)] == [*kept, offset]
    assert [each for each, _ in offsets_and_values(harness.open())] == [*kept, offset]


def test_appends_after_a_truncation_are_found_at_their_positions(harness: LogHarness) -> None:
    """Not at the position of the truncated batch."""
    log = harness.open()
    for _ in range(6):
        harness.append(log, VALUE)
    log.truncate_to(1)
    log.flush()
    log.append(batch(*[VALUE * 2] * 5), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    for offset in range(1, 6):
        data = log.read(offset, max_bytes=1 << 20, up_to_offset=6).read()
        assert [header.base_offset for _, header in batches(data)] == [1]


def test_truncation_below_the_log_start_restarts_the_log_there(filled: Log, harness: LogHarness) -> None:
    filled.delete_records_before(8)
    filled.delete_old_segments(NOW_MS)
    filled.truncate_to(4)
    assert (filled.log_start_offset, filled.log_end_offset) == (4, 4)
    assert filled.leader_epochs == []
    filled.flush()
    harness.append(filled, b"new")
    assert offsets_and_values(filled) == [(4, b"new")]


def test_truncation_also_truncates_epochs_and_the_recovery_point(harness: LogHarness) -> None:
    log = harness.open()
    for epoch in range(3):
        harness.append(log, b"v", epoch=epoch)
    log.flush()
    log.truncate_to(1)
    assert log.leader_epochs == [(0, 0)]
    assert (log.recovery_point, log.high_watermark) == (1, 1)


def test_records_are_deleted_up_to_an_offset(filled: Log) -> None:
    filled.delete_records_before(7)
    assert filled.log_start_offset == 7
    assert [offset for offset, _ in offsets_and_values(filled)] == list(range(7, 16))
    assert filled.segment_base_offsets == [0, 6, 12]
    assert filled.delete_old_segments(NOW_MS) == 1
    assert filled.segment_base_offsets == [6, 12]
    filled.delete_records_before(3)
    assert filled.log_start_offset == 7


def test_records_beyond_the_high_watermark_are_not_deleted(filled: Log) -> None:
    filled.high_watermark = 10
    with pytest.raises(ApiError) as refused:
        filled.delete_records_before(11)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


# --- retention


def test_retention_ms_deletes_segments_and_later_their_files(
    filled: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    filled.config = filled.config._replace(retention_ms=DAY_MS, file_delete_delay_ms=500)
    assert filled.delete_old_segments(NOW_MS + 21 + DAY_MS) == 0
    assert filled.delete_old_segments(NOW_MS + 22 + DAY_MS) == 1
    assert filled.log_start_offset == 6
    harness.delayed_deletion.tick(1000)
    assert f"{0:020d}.log.deleted" in disk.names(harness.directory)
    harness.delayed_deletion.tick(1499)
    assert f"{0:020d}.log.deleted" in disk.names(harness.directory)
    harness.delayed_deletion.tick(1500)
    assert not [name for name in disk.names(harness.directory) if name.startswith(f"{0:020d}")]


def test_expired_active_segment_is_rolled_and_deleted(filled: Log) -> None:
    filled.config = filled.config._replace(retention_ms=1)
    assert filled.delete_old_segments(NOW_MS + DAY_MS) == 3
    assert filled.segment_base_offsets == [16]
    assert (filled.log_start_offset, filled.log_end_offset) == (16, 16)
    assert filled.delete_old_segments(NOW_MS + DAY_MS) == 0


def test_retention_bytes_keeps_at_least_that_many_bytes(filled: Log) -> None:
    one = len(batch(VALUE, VALUE))
    filled.config = filled.config._replace(retention_bytes=5 * one + 1, retention_ms=-1)
    assert filled.delete_old_segments(NOW_MS) == 0
    filled.config = filled.config._replace(retention_bytes=5 * one, retention_ms=-1)
    assert filled.delete_old_segments(NOW_MS) == 1


def test_retention_stops_at_the_high_watermark(filled: Log) -> None:
    filled.config = filled.config._replace(retention_ms=1)
    filled.high_watermark = 7
    assert filled.delete_old_segments(NOW_MS + DAY_MS) == 1


def test_retention_does_not_apply_to_compacted_topics(filled: Log) -> None:
    filled.config = filled.config._replace(retention_ms=1, cleanup_policy=frozenset({"compact"}))
    assert filled.delete_old_segments(NOW_MS + DAY_MS) == 0
    filled.delete_records_before(6)
    assert filled.delete_old_segments(NOW_MS + DAY_MS) == 1
