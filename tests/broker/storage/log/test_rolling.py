"""The conditions for rolling a segment, and the state that a roll leaves."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import build
from kwire.wire.errors import ApiError
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values, values

VALUE = bytes(100)
DAY_MS = 24 * 60 * 60 * 1000


def test_a_full_segment_rolls(harness: LogHarness) -> None:
    harness.small_segments(VALUE)
    log = harness.open()
    for _ in range(7):
        harness.append(log, VALUE)
    assert log.segment_base_offsets == [0, 3, 6]
    assert [offset for offset, _ in offsets_and_values(log)] == list(range(7))


def test_staged_bytes_count_for_rolling(harness: LogHarness) -> None:
    harness.small_segments(VALUE)
    log = harness.open()
    for _ in range(7):
        log.append(batch(VALUE), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    assert log.segment_base_offsets == [0, 3, 6]
    assert [offset for offset, _ in offsets_and_values(log)] == list(range(7))


@pytest.mark.parametrize(("sequence", "epoch"), [(2, 1), (9, 1), (0, 0)], ids=["duplicate", "gap", "epoch"])
def test_rejected_batch_also_rolls_a_full_segment(harness: LogHarness, sequence: int, epoch: int) -> None:
    harness.small_segments(VALUE)
    log = harness.open()

    def send(sequence: int, epoch: int = 1) -> None:
        records = batch(VALUE, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        log.append(records, leader_epoch=0, now_ms=NOW_MS)

    for number in range(3):
        send(number)
    assert log.segment_base_offsets == [0]
    with suppress(ApiError):
        send(sequence, epoch)
    assert (log.segment_base_offsets, log.log_end_offset) == ([0, 3], 3)
    harness.append(log, VALUE)
    assert [offset for offset, _ in offsets_and_values(log)] == list(range(4))


def test_compacted_segment_rolls_at_max_compaction_lag(harness: LogHarness) -> None:
    harness.config = harness.config._replace(
        segment_ms=1000, max_compaction_lag_ms=100, cleanup_policy=frozenset({"compact"})
    )
    assert harness.config.max_segment_ms == 100
    assert harness.config._replace(cleanup_policy=frozenset({"delete"})).max_segment_ms == 1000
    harness.config = harness.config._replace(cleanup_policy=frozenset({"compact", "delete"}), segment_ms=50)
    assert harness.config.max_segment_ms == 50


def test_a_segment_rolls_when_timestamps_span_more_than_segment_ms(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_ms=1000)
    log = harness.open()
    harness.append(log, b"a", timestamp=NOW_MS)
    harness.append(log, b"b", timestamp=NOW_MS + 1000)
    assert log.segment_base_offsets == [0]
    harness.append(log, b"c", timestamp=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 2]


def test_a_segment_without_timestamps_rolls_by_the_clock(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_ms=1000)
    log = harness.open()
    harness.append(log, b"a", timestamp=-1)
    harness.now_ms += 1001
    harness.append(log, b"b", timestamp=-1)
    assert log.segment_base_offsets == [0, 1]


def test_an_empty_segment_does_not_roll_by_time(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_ms=1000)
    log = harness.open()
    harness.now_ms += DAY_MS
    harness.append(log, b"a")
    assert log.segment_base_offsets == [0]


def test_a_full_index_rolls(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_index_bytes=36, index_interval_bytes=0)
    log = harness.open()
    for number in range(6):
        harness.append(log, b"v", timestamp=NOW_MS + number)
    # The time index holds three entries of 12 bytes, and the roll needs one.
    assert log.segment_base_offsets == [0, 3]


def test_offsets_too_far_apart_for_an_index_roll(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    far = 1 << 31
    log.append_stored(memoryview(build([(NOW_MS, None, b"v", [])], base_offset=far)))
    log.commit()
    assert log.segment_base_offsets == [0, far]
    assert [offset for offset, _ in offsets_and_values(log)] == [0, far]


def test_roll_trims_indexes_and_writes_a_producer_snapshot(harness: LogHarness, disk: MemoryDisk) -> None:
    harness.small_segments(VALUE)
    log = harness.open()
    for number in range(4):
        harness.append(log, VALUE, timestamp=NOW_MS + number)
    files = disk.tree(harness.directory)
    assert len(files["00000000000000000000.index"]) == 2 * 8
    assert len(files["00000000000000000000.timeindex"]) == 2 * 12
    assert len(files["00000000000000000003.index"]) == harness.config.segment_index_bytes
    assert "00000000000000000003.snapshot" in files


def test_preallocated_space_is_released_on_roll(harness: LogHarness, disk: MemoryDisk) -> None:
    harness.config = harness.config._replace(preallocate=True, segment_bytes=4096)
    log = harness.open()
    harness.append(log, VALUE)
    assert disk.size(harness.path(0, ".log")) == 4096
    assert values(log) == [VALUE]
    log.roll(NOW_MS)
    assert disk.size(harness.path(0, ".log")) == len(batch(VALUE))
