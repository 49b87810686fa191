"""Producer state of a log: sequences, epochs, duplicates, transactions, expiration and snapshots."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.broker.storage.log.producer_snapshot import CorruptSnapshot, ProducerState, encode_snapshot
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import ABORT, COMMIT, MAX_PRODUCER_EPOCH, MAX_SEQUENCE, BatchHeader, build, read_header
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.log_harness import NOW_MS

HOUR_MS = 60 * 60 * 1000

KAFKA_SNAPSHOT = bytes.fromhex(
    "000123c1832700000003"
    "00000000000003e80003000000290000000000000077000000040000018bcfe5687bffffffffffffffffffffffff"
    "00000000000003e900007fffffff000000000000007a000000020000018bcfe569c8000000070000000000000078"
    "00000000000003ea0009ffffffffffffffffffffffff000000000000018bcfe56b1500000002ffffffffffffffff"
)
"""Written by Kafka 4.3.1 at offset 123: a plain producer, one with an open transaction whose sequence is at
its greatest, and one of which only a marker is known."""


@pytest.fixture
def producers(disk: MemoryDisk) -> ProducerStateManager:
    disk.make_directory("/t-0")
    return ProducerStateManager(disk, "/t-0", partition="t-0", expiration_ms=24 * HOUR_MS)


def header(
    sequence: int,
    count: int = 1,
    *,
    offset: int = 0,
    producer_id: int = 1,
    epoch: int = 0,
    timestamp: int = NOW_MS,
    transactional: bool = False,
) -> BatchHeader:
    built = build(
        [(timestamp, None, b"v", [])],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return read_header(built)._replace(last_offset_delta=count - 1, records_count=count)


def fill(producers: ProducerStateManager, *sequences: int, epoch: int = 0, count: int = 1) -> None:
    """Append batches of producer 1 at the offsets of their sequences."""
    for sequence in sequences:
        producers.update(header(sequence, count, offset=sequence, epoch=epoch))


def error_code(producers: ProducerStateManager, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        producers.check(batch)
    return ErrorCode(refused.value.code)


# --- sequences


def test_unknown_producer_may_start_at_any_sequence(producers: ProducerStateManager) -> None:
    assert producers.check(header(42)) is None


@pytest.mark.parametrize("sequence", [0, 2, 4, 6, 100])
def test_a_batch_must_follow_the_last(producers: ProducerStateManager, sequence: int) -> None:
    fill(producers, 3, 4, count=1)
    producers.update(header(5, offset=5))
    expected = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if sequence == 6:
        assert producers.check(header(6)) is None
    elif sequence == 4:
        assert producers.check(header(4)) is not None
    else:
        assert error_code(producers, header(sequence)) == expected


def test_sequence_wraps_after_the_maximum(producers: ProducerStateManager) -> None:
    producers.update(header(MAX_SEQUENCE, offset=9))
    assert producers.check(header(0)) is None
    assert error_code(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_duplicate_batch_across_the_maximum_sequence(producers: ProducerStateManager) -> None:
    across = header(MAX_SEQUENCE - 1, 4, offset=10)
    producers.update(across)
    assert producers.producers[1].last_sequence == 1
    assert producers.check(across) is not None
    assert producers.check(header(2)) is None


def test_the_last_five_batches_are_recognized(producers: ProducerStateManager) -> None:
    fill(producers, 0, 2, 4, 6, 8, 10, count=2)
    for sequence in (2, 4, 6, 8, 10):
        duplicate = producers.check(header(sequence, 2))
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (sequence, sequence + 1)
    assert error_code(producers, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_of_another_size_is_no_duplicate(producers: ProducerStateManager) -> None:
    fill(producers, 0, 2, count=2)
    assert error_code(producers, header(2, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_code(producers, header(0, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_are_independent(producers: ProducerStateManager) -> None:
    fill(producers, 0, 1)
    assert producers.check(header(7, producer_id=2)) is None
    assert len(producers) == 1


def test_replicated_batches_are_not_checked(producers: ProducerStateManager) -> None:
    fill(producers, 0)
    assert producers.check(header(9), origin=AppendOrigin.REPLICATION) is None


# --- epochs


def test_a_new_epoch_starts_at_zero(producers: ProducerStateManager) -> None:
    fill(producers, 0, 1)
    assert error_code(producers, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1)) is None


def test_an_old_epoch_is_refused(producers: ProducerStateManager) -> None:
    fill(producers, 0, epoch=5)
    assert error_code(producers, header(1, epoch=4)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_negative_epoch_is_rejected_for_a_new_producer(producers: ProducerStateManager) -> None:
    assert error_code(producers, header(0, epoch=-2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(header(0, epoch=-1)) is None


def test_a_new_epoch_forgets_the_batches_of_the_old(producers: ProducerStateManager) -> None:
    fill(producers, 0, 1)
    producers.update(header(0, offset=2, epoch=1))
    duplicate = producers.check(header(0, epoch=1))
    assert duplicate is not None
    assert duplicate.first_offset == 2
    assert error_code(producers, header(0, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert error_code(producers, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# --- transactions


def end_transaction(
    producers: ProducerStateManager, offset: int, kind: int, *, epoch: int = 0, coordinator_epoch: int = 0
) -> None:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch)
    marker = build(
        [(NOW_MS, key, value, [])],
        base_offset=offset,
        producer_id=1,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )
    producers.check_marker(1, epoch, coordinator_epoch, 0)
    producers.update_from_marker(read_header(marker), marker, 0)


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "version", "code"),
    [
        (1, 0, 0, None),
        (1, -1, 2, None),
        (1, -2, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (1, -2, -1, ErrorCode.UNKNOWN_SERVER_ERROR),
        (1, 0, -2, None),
        (0, 0, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_invalid_markers_are_rejected(
    producers: ProducerStateManager,
    known: bool,
    epoch: int,
    coordinator_epoch: int,
    version: int,
    code: ErrorCode | None,
) -> None:
    if known:
        producers.producers[1] = ProducerState()
        producers.producers[1].set_epoch(1)
    elif epoch == 0:
        code = ErrorCode.UNKNOWN_SERVER_ERROR  # without a known producer, whatever the epoch
    if code is None:
        producers.check_marker(1, epoch, coordinator_epoch, version)
        return
    with pytest.raises(ApiError) as refused:
        producers.check_marker(1, epoch, coordinator_epoch, version)
    assert refused.value.code == code


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_transaction_is_unstable_until_its_marker_is_replicated(
    producers: ProducerStateManager, kind: int
) -> None:
    producers.update(header(0, offset=10, transactional=True))
    producers.update(header(1, offset=11, transactional=True))
    assert producers.first_unstable_offset == 10
    end_transaction(producers, 12, kind)
    assert producers.first_unstable_offset == 10
    assert next(iter(producers.unreplicated.values())).is_aborted == (kind == ABORT)
    producers.on_high_watermark_updated(12)
    assert producers.first_unstable_offset == 10
    producers.on_high_watermark_updated(13)
    assert producers.first_unstable_offset is None


def test_a_plain_batch_within_a_transaction_is_refused(producers: ProducerStateManager) -> None:
    producers.update(header(0, transactional=True))
    assert error_code(producers, header(1)) == ErrorCode.INVALID_TXN_STATE


def verify(producers: ProducerStateManager, sequence: int, *, epoch: int = 0, raises: bool = False) -> None:
    producers.begin_verification(1, epoch, sequence, supports_epoch_bump=raises, began_ms=0)


def test_later_batch_does_not_overtake_a_rejected_batch(producers: ProducerStateManager) -> None:
    verify(producers, 4)
    verify(producers, 6)
    assert error_code(producers, header(6, transactional=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(4, transactional=True)) is None
    verify(producers, 9, epoch=1)
    verify(producers, 3, epoch=0)  # a late response of the old epoch
    assert producers.check(header(9, epoch=1, transactional=True)) is None
    producers.update(header(9, epoch=1, transactional=True))
    assert len(producers.verifications) == 0
    assert producers.check(header(10, epoch=1, transactional=True)) is None


def test_verification_after_the_end_of_its_transaction_is_stale(
    producers: ProducerStateManager,
) -> None:
    begun = producers.begin_verification(1, 0, -1, supports_epoch_bump=False, began_ms=0)
    assert producers.verifications.is_current(1, begun)
    producers.verifications.complete(header(0, transactional=True))
    assert not producers.verifications.is_current(1, begun)


def test_version_2_transaction_of_an_unknown_producer_starts_at_sequence_0(
    producers: ProducerStateManager,
) -> None:
    verify(producers, 5, raises=True)
    assert error_code(producers, header(5, transactional=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verify(producers, 0, raises=True)
    assert producers.check(header(0, transactional=True)) is None


def test_fenced_producer_does_not_block_its_successor(producers: ProducerStateManager) -> None:
    producers.update(header(0, epoch=1, transactional=True))
    with pytest.raises(ApiError) as refused:
        producers.check_epoch(1, 0)
    producers.check_epoch(1, 1)
    producers.check_epoch(7, 0)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(header(1, epoch=1, transactional=True)) is None


def test_marker_of_the_verified_epoch_ends_verification_only_in_version_1(
    producers: ProducerStateManager,
) -> None:
    """With transaction version 2, the marker of a transaction has the next epoch.

    A marker with the verified epoch therefore belongs to an earlier transaction.
    """
    verify(producers, -1, raises=True)
    end_transaction(producers, 0, ABORT)
    assert error_code(producers, header(0, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end_transaction(producers, 1, ABORT, epoch=1)
    assert producers.check(header(0, epoch=2)) is None


def test_marker_or_timeout_ends_a_verification(producers: ProducerStateManager) -> None:
    verify(producers, 0)
    end_transaction(producers, 0, ABORT)
    assert len(producers.verifications) == 0
    verify(producers, 0)
    producers.expire(NOW_MS + 24 * HOUR_MS)
    producers.verifications.expire(-1)
    assert error_code(producers, header(7, transactional=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers.verifications.expire(0)
    assert producers.check(header(7, transactional=True)) is None


def test_markers_of_an_old_producer_or_coordinator_are_refused(producers: ProducerStateManager) -> None:
    producers.update(header(0, epoch=3, transactional=True))
    with pytest.raises(ApiError) as refused:
        end_transaction(producers, 1, COMMIT, epoch=2)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    end_transaction(producers, 1, COMMIT, epoch=3, coordinator_epoch=5)
    with pytest.raises(ApiError) as refused:
        end_transaction(producers, 2, COMMIT, epoch=3, coordinator_epoch=4)
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize(
    ("epoch", "version", "is_open", "fits"),
    [
        (3, 0, True, True),
        (3, 2, True, False),
        (3, 2, False, True),
        (2, 2, False, False),
        (4, 2, True, True),
        (MAX_PRODUCER_EPOCH, 2, True, True),
    ],
)
def test_version_2_marker_must_have_a_newer_epoch(
    producers: ProducerStateManager, epoch: int, version: int, is_open: bool, fits: bool
) -> None:
    current = epoch if epoch == MAX_PRODUCER_EPOCH else 3
    producers.update(header(0, epoch=current, transactional=is_open))
    if fits:
        producers.check_marker(1, epoch, 0, version)
        return
    with pytest.raises(ApiError) as refused:
        producers.check_marker(1, epoch, 0, version)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_transaction_that_began_before_the_log_start_is_still_open(producers: ProducerStateManager) -> None:
    producers.update(header(0, offset=10, transactional=True))
    producers.on_log_start_offset_incremented(11)
    assert producers.first_unstable_offset == 10
    assert error_code(producers, header(1)) == ErrorCode.INVALID_TXN_STATE


# --- expiry


def test_expired_producers_are_removed_except_with_open_transactions(producers: ProducerStateManager) -> None:
    producers.update(header(0, producer_id=1))
    producers.update(header(0, producer_id=2, timestamp=NOW_MS + HOUR_MS))
    producers.update(header(0, producer_id=3, transactional=True))
    producers.expire(NOW_MS + 24 * HOUR_MS - 1)
    assert set(producers.producers) == {1, 2, 3}
    producers.expire(NOW_MS + 24 * HOUR_MS)
    assert set(producers.producers) == {2, 3}
    assert producers.check(header(42)) is None


# --- snapshots


def test_snapshot_of_kafka_is_read(producers: ProducerStateManager) -> None:
    producers.load_snapshot(KAFKA_SNAPSHOT, 123, now_ms=NOW_MS)
    assert producers.end_offset == 123
    plain, in_transaction, marked = (producers.producers[each] for each in (1000, 1001, 1002))
    assert (plain.epoch, plain.last_timestamp, plain.coordinator_epoch) == (3, 1700000000123, -1)
    assert [tuple(batch) for batch in plain.batches] == [(41, 119, 4, 1700000000123)]
    assert (plain.batches[0].first_sequence, plain.batches[0].first_offset) == (37, 115)
    assert (in_transaction.txn_first_offset, in_transaction.coordinator_epoch) == (120, 7)
    assert producers.first_unstable_offset == 120
    assert producers.check(header(0, producer_id=1001, transactional=True)) is None
    assert (marked.epoch, marked.last_sequence, len(marked.batches)) == (9, -1, 0)


def test_snapshot_has_kafkas_format(producers: ProducerStateManager) -> None:
    producers.load_snapshot(KAFKA_SNAPSHOT, 123, now_ms=NOW_MS)
    assert encode_snapshot(producers.producers) == KAFKA_SNAPSHOT


def test_a_snapshot_without_producers_has_ten_bytes(producers: ProducerStateManager) -> None:
    content = encode_snapshot(producers.producers)
    assert content == b"\0\1" + crc32c(bytes(4)).to_bytes(4, "big") + bytes(4)


def test_only_the_last_batch_of_a_producer_survives_a_snapshot(producers: ProducerStateManager) -> None:
    fill(producers, 0, 1, 2)
    producers.load_snapshot(encode_snapshot(producers.producers), 3, now_ms=NOW_MS)
    assert producers.check(header(2)) is not None
    assert error_code(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(3)) is None


def test_expired_producers_are_not_loaded(producers: ProducerStateManager) -> None:
    producers.load_snapshot(KAFKA_SNAPSHOT, 123, now_ms=1700000000123 + 24 * HOUR_MS)
    assert set(producers.producers) == {1001, 1002}


@pytest.mark.parametrize(("log_start_offset", "is_loaded"), [(121, True), (122, True), (123, False)])
def test_snapshot_entries_are_loaded_only_if_the_log_starts_before_it(
    disk: MemoryDisk, producers: ProducerStateManager, *, log_start_offset: int, is_loaded: bool
) -> None:
    disk.write(producers.snapshot_path(123), KAFKA_SNAPSHOT, sync=False)
    assert producers.load(log_start_offset, 130, NOW_MS) == 123
    assert producers.first_unstable_offset == (120 if is_loaded else None)


@pytest.mark.parametrize("cut", [*range(10), 11, 55, 56, 147])
def test_truncated_snapshot_is_corrupt(producers: ProducerStateManager, cut: int) -> None:
    with pytest.raises(CorruptSnapshot):
        producers.load_snapshot(KAFKA_SNAPSHOT[:cut], 123, now_ms=NOW_MS)


def test_a_flipped_byte_anywhere_makes_a_snapshot_corrupt(producers: ProducerStateManager) -> None:
    for position in range(len(KAFKA_SNAPSHOT)):
        garbled = bytearray(KAFKA_SNAPSHOT)
        garbled[position] ^= 0x40
        with pytest.raises(CorruptSnapshot):
            producers.load_snapshot(bytes(garbled), 123, now_ms=NOW_MS)


def test_wrong_count_is_corrupt_despite_a_valid_checksum(producers: ProducerStateManager) -> None:
    content = bytearray(KAFKA_SNAPSHOT)
    content[6:10] = (4).to_bytes(4, "big")
    content[2:6] = crc32c(bytes(content[6:])).to_bytes(4, "big")
    with pytest.raises(CorruptSnapshot):
        producers.load_snapshot(bytes(content), 123, now_ms=NOW_MS)


def test_one_snapshot_per_offset(producers: ProducerStateManager, disk: MemoryDisk) -> None:
    fill(producers, 0)
    producers.take_snapshot()
    producers.take_snapshot()
    assert disk.names("/t-0") == [f"{1:020d}.snapshot"]
    assert list(producers.unsynced_snapshots) == [1]


def test_snapshot_that_is_written_again_during_its_sync_needs_another_sync(
    producers: ProducerStateManager,
) -> None:
    fill(producers, 0)
    producers.take_snapshot()
    first = producers.unsynced_snapshots
    producers.forget_snapshot(1)
    producers.take_snapshot()
    second = producers.unsynced_snapshots
    producers.snapshots_synced(first)
    assert producers.unsynced_snapshots == second
    producers.snapshots_synced(second)
    assert not producers.unsynced_snapshots


def test_the_newest_snapshot_in_range_is_loaded(producers: ProducerStateManager, disk: MemoryDisk) -> None:
    for sequence in range(3):
        fill(producers, sequence)
        producers.take_snapshot()
    disk.write(producers.snapshot_path(2), b"garbage", sync=False)
    assert producers.load(0, 2, NOW_MS) == 1
    assert producers.producers[1].last_sequence == 0
    # A snapshot beyond the log end and a corrupt one are ignored.
    assert disk.names("/t-0") == [f"{1:020d}.snapshot"]
    assert producers.load(2, 2, NOW_MS) == 2
    assert len(producers) == 0
