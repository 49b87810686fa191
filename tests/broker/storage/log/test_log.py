"""One log: appends, edge cases of reads, timestamps, flushes and failures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import AppendOrigin, LogConfig
from kwire.broker.storage.log.segments import INCOMPLETE
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches, build, read_header
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values, values

VALUE = bytes(100)
DAY_MS = 24 * 60 * 60 * 1000


def size_of_one() -> int:
    return len(batch(VALUE))


# --- appending


def test_appends_get_consecutive_offsets(harness: LogHarness) -> None:
    log = harness.open()
    assert harness.append(log, b"a", b"b")[:2] == (0, 1)
    assert harness.append(log, b"c")[:2] == (2, 2)
    assert offsets_and_values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert log.log_end_offset == 3


def test_batches_carry_the_leader_epoch(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a", epoch=7)
    region = log.read(0, max_bytes=1000, up_to_offset=1)
    assert read_header(region.read()).leader_epoch == 7
    assert log.leader_epochs == [(7, 0)]


def test_staged_records_are_not_read_and_one_commit_writes_them_all(harness: LogHarness) -> None:
    log = harness.open()
    for number in range(3):
        log.append(batch(b"%d" % number), leader_epoch=0, now_ms=NOW_MS)
    assert log.staged
    assert log.log_end_offset == 3
    assert log.written_end_offset == 0
    assert log.read(0, max_bytes=1000, up_to_offset=3).size_bytes == 0
    log.commit()
    assert not log.staged
    assert values(log) == [b"0", b"1", b"2"]


def test_a_refused_batch_stages_nothing(harness: LogHarness) -> None:
    log = harness.open()
    garbled = batch(b"a")
    garbled[-1] ^= 1
    with pytest.raises(ApiError) as refused:
        log.append(garbled, leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert (bool(log.staged), log.log_end_offset) == (False, 0)


def test_log_append_time_is_returned_and_written(harness: LogHarness) -> None:
    harness.config = harness.config._replace(message_timestamp_type="LogAppendTime")
    log = harness.open()
    assert harness.append(log, b"a", timestamp=5).log_append_time_ms == NOW_MS
    header = read_header(log.read(0, max_bytes=1000, up_to_offset=1).read())
    assert (header.max_timestamp, header.has_log_append_time) == (NOW_MS, True)


def test_more_than_a_segment_is_too_large(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_bytes=200)
    log = harness.open()
    with pytest.raises(ApiError) as refused:
        log.append(batch(bytes(300)), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_stored_batches_keep_their_offsets_and_epochs(harness: LogHarness) -> None:
    log = harness.open()
    first = build([(NOW_MS, None, b"v", [])], base_offset=10, leader_epoch=3)
    second = build([(NOW_MS, None, b"v", [])], base_offset=20, leader_epoch=4)
    assert log.append_stored(memoryview(first + second))[:2] == (10, 20)
    log.commit()
    assert [offset for offset, _ in offsets_and_values(log)] == [10, 20]
    assert log.leader_epochs == [(3, 10), (4, 20)]


def test_stored_batches_must_follow_the_end(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a", b"b")
    with pytest.raises(ApiError) as refused:
        log.append_stored(memoryview(build([(NOW_MS, None, b"v", [])], base_offset=1)))
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("cut", [0, 5, 40, 61, -1], ids=str)
def test_truncated_stored_batches_are_corrupt(harness: LogHarness, cut: int) -> None:
    log = harness.open()
    with pytest.raises(ApiError) as refused:
        log.append_stored(batch(b"value")[:cut])
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def fetched(log: Log, *epochs: int, end: int | None = None) -> tuple[int, int] | None:
    """Append fetched batches of these epochs, and return the appended offsets. The leader epoch is 4."""
    records = b"".join(
        build([(NOW_MS + offset, None, b"v", [])], base_offset=offset, leader_epoch=epoch)
        for offset, epoch in enumerate(epochs, log.log_end_offset)
    )
    appended = log.append_fetched(memoryview(records)[:end], leader_epoch=4, now_ms=NOW_MS)
    return None if appended is None else appended[:2]


def test_fetched_batches_may_be_truncated_and_have_no_later_epoch(harness: LogHarness) -> None:
    log = harness.open()
    assert fetched(log, 3, 4, end=-1) == (0, 0)
    assert fetched(log, 4, 4, 5, 4) == (1, 2)
    assert [fetched(log, 5), fetched(log, 4, end=40), fetched(log, end=0)] == [None] * 3
    log.commit()
    assert log.leader_epochs == [(3, 0), (4, 1)]
    with pytest.raises(ApiError) as refused:
        log.append_fetched(memoryview(bytes(100)), leader_epoch=4, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_follower_has_the_indexes_of_its_leader(harness: LogHarness) -> None:
    leader = harness.open()
    for _ in range(50):
        harness.append(leader, bytes(300))
    stored = leader.read(0, max_bytes=1 << 20, up_to_offset=50).read()
    follower = LogHarness(harness.disk, "/follower").open()
    assert follower.append_fetched(memoryview(stored), leader_epoch=0, now_ms=NOW_MS) is not None
    follower.commit()
    for log in (leader, follower):
        log.close()
    names = [name for name in harness.disk.names(leader.directory) if name.endswith(("index", "log"))]
    assert len(names) == 3
    for name in names:
        one, other = (harness.disk.read(f"{log.directory}/{name}") for log in (leader, follower))
        assert one == other
    assert len(harness.disk.read(f"{leader.directory}/{0:020d}.index")) > 8


# --- reading


def base_offsets(log: Log, offset: int, max_bytes: int = 1 << 20, up_to: int = 16) -> list[int]:
    region = log.read(offset, max_bytes=max_bytes, up_to_offset=up_to)
    return [header.base_offset for _, header in batches(region.read())]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, [0, 2, 4]), (1, [0, 2, 4]), (2, [2, 4]), (5, [4]), (6, [6, 8, 10]), (15, [14]), (16, [])],
)
def test_a_read_begins_with_the_batch_that_holds_the_offset(
    filled: Log, offset: int, expected: list[int]
) -> None:
    assert base_offsets(filled, offset) == expected


@pytest.mark.parametrize(("up_to", "expected"), [(0, []), (2, [0]), (4, [0, 2]), (6, [0, 2, 4])])
def test_read_ends_at_the_upper_bound(filled: Log, up_to: int, expected: list[int]) -> None:
    assert base_offsets(filled, 0, up_to=up_to) == expected


@pytest.mark.parametrize("offset", [-1, 17])
def test_offsets_beyond_either_end_are_out_of_range(filled: Log, offset: int) -> None:
    with pytest.raises(ApiError) as refused:
        filled.read(offset, max_bytes=100, up_to_offset=16)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_first_batch_may_exceed_max_bytes_only_on_request(filled: Log) -> None:
    one = len(batch(VALUE, VALUE))
    assert filled.read(0, max_bytes=1, up_to_offset=16).size_bytes == one
    assert filled.read(0, max_bytes=1, up_to_offset=16, at_least_one=False) is INCOMPLETE
    assert filled.read(0, max_bytes=0, up_to_offset=16, at_least_one=False).size_bytes == 0
    assert filled.read(0, max_bytes=one + 10, up_to_offset=16).size_bytes == one + 10


def test_region_remains_readable_after_its_segment_is_deleted(filled: Log) -> None:
    region = filled.read(0, max_bytes=1 << 20, up_to_offset=16)
    filled.delete_records_before(6)
    assert filled.delete_old_segments(NOW_MS) == 1
    assert [header.base_offset for _, header in batches(region.read())] == [0, 2, 4]


def test_bytes_to_counts_within_a_segment(filled: Log) -> None:
    first, second = filled.segment_base_offsets[:2]
    last, end = filled.segment_base_offsets[-1], filled.log_end_offset
    before_second = filled.size_between(first, second - 1)
    assert filled.bytes_from_position(first, 0, second) is None
    assert filled.bytes_from_position(first, 0, second - 1) == before_second
    assert filled.bytes_from_position(first, before_second, second - 1) == 0
    assert filled.bytes_from_position(last, 0, end) == filled.size_between(last, end)


def test_read_position_is_cached_in_the_active_segment(filled: Log) -> None:
    first, second = filled.segment_base_offsets[:2]
    last, end = filled.segment_base_offsets[-1], filled.log_end_offset
    assert [filled.find_position(offset)[0] for offset in (0, second - 1, second, end)] == [
        0,
        0,
        second,
        last,
    ]
    for offset in (last, last + 2, end):
        region = filled.read(offset, max_bytes=1 << 20, up_to_offset=end)
        assert filled.known_position(region, offset) == filled.find_position(offset)
    for offset in (first, second):
        region = filled.read(offset, max_bytes=1 << 20, up_to_offset=end)
        assert filled.known_position(region, offset) is None
    cut = filled.read(last, max_bytes=1, up_to_offset=end, at_least_one=False)
    assert filled.known_position(cut, last) is None, "there is more than was read"


@pytest.mark.parametrize(
    ("offset", "up_to", "count"),
    [(0, 16, 8), (0, 6, 3), (0, 4, 2), (3, 16, 7), (6, 6, 0), (4, 8, 2), (0, 13, 6), (15, 99, 1), (9, 2, 0)],
)
def test_size_between_counts_bytes_across_segments(filled: Log, offset: int, up_to: int, count: int) -> None:
    assert filled.size_between(offset, up_to) == count * len(batch(VALUE, VALUE))


def test_reads_equal_those_of_a_reopened_log(filled: Log, harness: LogHarness) -> None:
    """Cached positions of recent appends must not change the result of a read."""
    fresh = harness.open(recovery_point=16)
    for offset in range(17):
        for up_to in range(17):
            for max_bytes in (0, 100, 10_000):
                ours, theirs = (
                    log.read(offset, max_bytes=max_bytes, up_to_offset=up_to).read()
                    for log in (filled, fresh)
                )
                assert ours == theirs


def test_a_damaged_length_in_the_middle_is_a_corrupt_message(filled: Log, harness: LogHarness) -> None:
    harness.disk.open(harness.path(0, ".log")).write_at(len(batch(VALUE, VALUE)) + 8, [bytes(4)])
    fresh = harness.open(recovery_point=16, clean=True)
    with pytest.raises(ApiError) as refused:
        fresh.read(3, max_bytes=100, up_to_offset=16)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert fresh.failure is None


# --- timestamps


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(0, 0), (NOW_MS, 0), (NOW_MS + 1, 1), (NOW_MS + 2, 2), (NOW_MS + 35, 8), (NOW_MS + 71, 15)],
)
def test_a_timestamp_finds_the_first_record_that_is_not_older(
    filled: Log, timestamp: int, expected: int
) -> None:
    found = filled.offset_for_timestamp(timestamp)
    assert found is not None
    assert found.offset == expected
    assert found.leader_epoch == 0


def test_a_timestamp_after_the_last_finds_nothing(filled: Log) -> None:
    assert filled.offset_for_timestamp(NOW_MS + 72) is None


def test_records_before_the_log_start_are_not_found_by_timestamp(filled: Log) -> None:
    filled.delete_records_before(9)
    filled.delete_old_segments(NOW_MS)
    found = filled.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 9


@pytest.fixture
def aged(harness: LogHarness) -> Log:
    """Return a log with the timestamps 100, 5, 70 in the first segment and 5, 99 in the next."""
    harness.small_segments(VALUE)
    harness.config = harness.config._replace(retention_ms=-1)
    log = harness.open()
    for timestamp in (100, 5, 70, 5, 99):
        harness.append(log, VALUE, timestamp=timestamp)
    return log


@pytest.mark.parametrize(("start", "expected"), [(0, 0), (1, 2), (2, 2), (3, None)])
def test_the_search_ends_in_the_first_segment_that_had_a_match(
    aged: Log, start: int, expected: int | None
) -> None:
    aged.delete_records_before(start)
    found = aged.offset_for_timestamp(60)
    assert (found and found.offset) == expected


def test_timestamp_search_continues_after_a_deleted_segment(aged: Log) -> None:
    aged.delete_records_before(3)
    aged.delete_old_segments(NOW_MS)
    found = aged.offset_for_timestamp(60)
    assert found is not None
    assert found.offset == 4


def test_max_timestamp_is_over_all_segments(aged: Log) -> None:
    aged.delete_records_before(3)
    for expected in ((100, 0), (99, 4)):
        largest = aged.max_timestamp()
        assert largest is not None
        assert (largest.timestamp, largest.offset) == expected
        aged.delete_old_segments(NOW_MS)


def test_max_timestamp_is_returned_with_its_first_record(harness: LogHarness) -> None:
    harness.small_segments(VALUE)
    log = harness.open()
    assert log.max_timestamp() is None
    for timestamp in (10, 40, 20, 30, 40, 5, 39):
        harness.append(log, VALUE, timestamp=timestamp)
    for _ in range(2):
        found = log.max_timestamp()
        assert found is not None
        assert (found.timestamp, found.offset) == (40, 1)
    harness.append(log, VALUE, timestamp=41)
    found = log.max_timestamp()
    assert found is not None
    assert (found.timestamp, found.offset) == (41, 7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 31))
def test_timestamp_lookups_equal_a_linear_search(timestamps: list[int], wanted: int) -> None:
    harness = LogHarness(MemoryDisk())
    harness.small_segments(VALUE)
    log = harness.open()
    for timestamp in timestamps:
        harness.append(log, VALUE, timestamp=timestamp)
    expected = next((offset for offset, each in enumerate(timestamps) if each >= wanted), None)
    for each in (log, harness.open(), harness.open(clean=True)):
        found = each.offset_for_timestamp(wanted)
        assert (None if found is None else found.offset) == expected


# --- producers


def idempotent_batch(sequence: int, *, epoch: int = 0, count: int = 1) -> memoryview:
    return batch(*[b"v"] * count, producer_id=9, producer_epoch=epoch, base_sequence=sequence)


def test_a_repeated_batch_is_answered_with_its_first_offsets(harness: LogHarness) -> None:
    log = harness.open()
    first = harness.send(log, idempotent_batch(0, count=2))
    harness.send(log, idempotent_batch(2))
    again = log.append(idempotent_batch(0, count=2), leader_epoch=0, now_ms=NOW_MS)
    assert again.is_duplicate
    assert again[:2] == first[:2] == (0, 1)
    assert not log.staged
    assert log.log_end_offset == 3


def test_a_batch_repeated_within_one_turn_is_a_duplicate_too(harness: LogHarness) -> None:
    log = harness.open()
    log.append(idempotent_batch(0), leader_epoch=0, now_ms=NOW_MS)
    assert log.append(idempotent_batch(0), leader_epoch=0, now_ms=NOW_MS).is_duplicate


def test_a_gap_in_the_sequence_is_refused(harness: LogHarness) -> None:
    log = harness.open()
    harness.send(log, idempotent_batch(0))
    with pytest.raises(ApiError) as refused:
        log.append(idempotent_batch(2), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_state_survives_roll_truncation_and_reopening(harness: LogHarness) -> None:
    harness.config = harness.config._replace(segment_bytes=3 * len(idempotent_batch(0)))
    log = harness.open()
    for sequence in range(8):
        harness.send(log, idempotent_batch(sequence))
    log.truncate_to(5)
    log.flush()
    assert harness.send(log, idempotent_batch(5)).first_offset == 5
    harness.close(log)
    for reopened in (harness.open(clean=True), harness.open()):
        assert reopened.append(idempotent_batch(5), leader_epoch=0, now_ms=NOW_MS).is_duplicate
        with pytest.raises(ApiError):
            reopened.append(idempotent_batch(7), leader_epoch=0, now_ms=NOW_MS)


def test_the_last_stable_offset_waits_for_an_open_transaction(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    harness.send(log, batch(b"v", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    marker = build(
        [(NOW_MS, b"\0\0\0\1", bytes(6), [])],
        base_offset=2,
        producer_id=9,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    log.append_stored(memoryview(marker))
    log.commit()
    assert log.last_stable_offset == 1
    log.high_watermark = 3
    assert log.last_stable_offset == 3
    harness.append(log, b"b")
    log.truncate_to(3)
    assert log.last_stable_offset == 3


# --- durability


def test_the_recovery_point_moves_only_with_a_flush(harness: LogHarness, disk: MemoryDisk) -> None:
    log = harness.open()
    harness.append(log, b"a")
    assert log.recovery_point == 0
    ticket = log.begin_flush()
    harness.append(log, b"b")
    before = disk.syncs
    ticket.work()
    assert disk.syncs > before
    ticket.finish()
    assert (log.recovery_point, ticket.end_offset) == (1, 1)


def test_flush_that_ends_after_a_truncation_does_not_cover_later_appends(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a", b"b", b"c")
    ticket = log.begin_flush()
    log.truncate_to(0)
    with pytest.raises(AssertionError, match="has to be flushed first"):
        harness.append(log, b"too early")
    log.flush()
    harness.append(log, b"x", b"y", b"z")
    ticket.work()
    ticket.finish()
    assert log.recovery_point == 0


def test_flush_messages_and_flush_ms_request_a_flush(harness: LogHarness) -> None:
    log = harness.open()
    log.config = log.config._replace(flush_messages=2, flush_ms=1000)
    assert not log.needs_flush(NOW_MS)
    harness.append(log, b"a")
    assert not log.needs_flush(NOW_MS + 999)
    assert log.needs_flush(NOW_MS + 1000)
    harness.append(log, b"b")
    assert log.needs_flush(NOW_MS)
    log.flush()
    assert not log.needs_flush(NOW_MS + 5000)


def test_roll_requests_a_flush(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    assert not log.has_unflushed_segments
    log.roll(NOW_MS)
    assert log.has_unflushed_segments
    log.flush()
    assert not log.has_unflushed_segments


# --- failure


def test_full_disk_fails_the_append_and_leaves_no_bytes(harness: LogHarness, disk: MemoryDisk) -> None:
    log = harness.open()
    harness.append(log, b"kept")
    size = disk.size(harness.path(0, ".log"))
    log.append(batch(b"lost"), leader_epoch=0, now_ms=NOW_MS)
    disk.free_bytes = 20
    with pytest.raises(StorageError):
        log.commit()
    assert disk.size(harness.path(0, ".log")) == size
    assert log.failure is not None
    assert len(harness.failures) == 1
    disk.kill()
    assert values(harness.open()) == [b"kept"]


def test_offline_log_rejects_every_operation(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    log.append(batch(b"b"), leader_epoch=0, now_ms=NOW_MS)
    log.fail(StorageError("gone"))
    assert (bool(log.staged), log.log_end_offset) == (False, 1)
    for attempt in (
        lambda: log.append(batch(b"c"), leader_epoch=0, now_ms=NOW_MS),
        lambda: log.append_stored(batch(b"c")),
        lambda: log.read(0, max_bytes=1, up_to_offset=1),
        lambda: log.size_between(0, 1),
        lambda: log.offset_for_timestamp(0),
        log.max_timestamp,
        lambda: log.delete_records_before(1),
    ):
        with pytest.raises(ApiError) as refused:
            attempt()
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    for operation in (log.commit, log.flush, lambda: log.truncate_to(0), lambda: log.begin_leader_epoch(1)):
        with pytest.raises(StorageError):
            operation()
    assert harness.failures == []


# --- leader epochs


def test_end_offsets_of_leader_epochs(harness: LogHarness) -> None:
    log = harness.open()
    assert log.end_offset_for_epoch(0) == (-1, -1)
    log.begin_leader_epoch(2)
    harness.append(log, b"a", b"b", epoch=2)
    log.begin_leader_epoch(5)
    harness.append(log, b"c", epoch=5)
    assert log.latest_epoch == 5
    assert log.end_offset_for_epoch(2) == (2, 2)
    assert log.end_offset_for_epoch(4) == (2, 2)
    assert log.end_offset_for_epoch(5) == (5, 3)
    assert log.end_offset_for_epoch(6) == (-1, -1)
    assert log.epoch_at(0) == 2
    assert log.epoch_at(2) == 5


def test_coordinator_may_append_control_batches(harness: LogHarness) -> None:
    log = harness.open()
    control = memoryview(build([(NOW_MS, b"\0\0\0\1", bytes(6), [])], control=True))
    with pytest.raises(ApiError) as refused:
        log.append(control, leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    log.append(control, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.commit()
    assert log.log_end_offset == 1


def test_the_defaults_are_those_of_kafka() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.index_interval_bytes, config.retention_ms) == (
        1 << 30,
        4096,
        7 * DAY_MS,
    )
