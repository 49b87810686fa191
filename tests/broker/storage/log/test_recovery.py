"""Log recovery after a crash: damaged tails, indexes, snapshots, epochs and interrupted operations."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from kwire.broker.storage.checkpoints import read_topic_id
from kwire.broker.storage.disk import Disk, RealDisk, StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.recovery import open_log
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values, values

VALUE = bytes(100)


@pytest.fixture(params=["memory", "real"])
def any_harness(request: pytest.FixtureRequest, tmp_path: Path) -> LogHarness:
    disk: Disk = MemoryDisk() if request.param == "memory" else RealDisk()
    root = "" if request.param == "memory" else str(tmp_path)
    return LogHarness(disk, root)


def offsets(log: Log) -> list[int]:
    return [offset for offset, _ in offsets_and_values(log)]


# --- the tail


def test_torn_tail_loses_only_its_batch(any_harness: LogHarness) -> None:
    harness = any_harness
    log = harness.open()
    harness.append(log, b"a")
    harness.append(log, b"b")
    path = harness.path(0, ".log")
    kept = harness.disk.size(path)
    harness.append(log, b"torn", b"torn")
    whole = harness.disk.read(path)
    for size in range(kept, len(whole)):
        harness.disk.write(path, whole[:size], sync=False)
        recovered = harness.open()
        assert (values(recovered), recovered.log_end_offset) == ([b"a", b"b"], 2)
        assert harness.disk.size(path) == kept
        assert harness.append(recovered, b"c").first_offset == 2
        assert values(harness.open()) == [b"a", b"b", b"c"]
    harness.disk.write(path, whole, sync=False)
    assert values(harness.open()) == [b"a", b"b", b"torn", b"torn"]


@pytest.mark.parametrize("rest", [bytes(1), bytes(61), bytes(5000), b"\xff" * 200, b"\x7f" * 80], ids=len)
def test_garbage_after_the_last_batch_is_truncated(harness: LogHarness, rest: bytes) -> None:
    log = harness.open()
    harness.append(log, b"a")
    path = harness.path(0, ".log")
    whole = harness.disk.read(path)
    harness.disk.write(path, whole + rest, sync=False)
    assert values(harness.open()) == [b"a"]
    assert harness.disk.read(path) == whole


def test_flipped_byte_covered_by_the_crc_loses_only_its_batch(harness: LogHarness, disk: MemoryDisk) -> None:
    log = harness.open()
    harness.append(log, b"a")
    path = harness.path(0, ".log")
    start = disk.size(path)
    harness.append(log, b"value")
    whole = disk.read(path)
    # The length is in bytes 8 to 11, the magic in 16, the CRC in 17 to 20; the CRC covers all that follows.
    for position in [*range(8, 12), *range(16, len(whole) - start)]:
        disk.write(path, whole, sync=False)
        disk.corrupt(path, start + position)
        recovered = harness.open()
        assert (values(recovered), recovered.log_end_offset) == ([b"a"], 1), position


def test_batch_of_a_later_format_ends_the_log(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    harness.disk.open(harness.path(0, ".log")).write_at(16, [b"\3"])
    assert values(harness.open()) == []


def test_a_batch_that_repeats_an_offset_ends_the_log(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a", b"b")
    path = harness.path(0, ".log")
    whole = harness.disk.read(path)
    harness.disk.write(path, whole + whole, sync=False)
    assert values(harness.open()) == [b"a", b"b"]


def test_segments_after_a_damaged_one_are_renamed(filled: Log, harness: LogHarness, disk: MemoryDisk) -> None:
    disk.corrupt(harness.path(6, ".log"), len(batch(VALUE, VALUE)) + 70)
    recovered = harness.open()
    assert offsets(recovered) == list(range(8))
    assert recovered.segment_base_offsets == [0, 6]
    assert f"{12:020d}.log.deleted" in disk.names(harness.directory)
    harness.append(recovered, b"new")
    assert offsets(harness.open()) == list(range(9))


def test_segments_before_the_recovery_point_are_not_scanned(
    filled: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    disk.corrupt(harness.path(0, ".log"), 70)
    assert offsets(harness.open(recovery_point=7))[-1] == 15
    assert harness.open(recovery_point=6).log_end_offset == 0


def test_recovery_does_not_raise_the_recovery_point(filled: Log, harness: LogHarness) -> None:
    assert harness.open(recovery_point=7).recovery_point == 7
    assert harness.open(recovery_point=99).recovery_point == 16
    assert harness.open(clean=True).recovery_point == 16


def test_older_format_is_an_error_and_not_truncated(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a")
    path = harness.path(0, ".log")
    body = struct.pack(">bbqi", 1, 0, NOW_MS, -1) + struct.pack(">i", 3) + b"old"
    message = struct.pack(">I", crc32(body)) + body
    content = harness.disk.read(path) + struct.pack(">qi", 1, len(message)) + message
    harness.disk.write(path, content, sync=False)
    with pytest.raises(StorageError, match="magic 1"):
        harness.open()
    assert harness.disk.read(path) == content


# --- indexes


def missing(disk: Disk, path: str) -> None:
    disk.remove(path)


def odd_size(disk: Disk, path: str) -> None:
    disk.write(path, disk.read(path) + b"x", sync=False)


def zeros(disk: Disk, path: str) -> None:
    disk.write(path, bytes(1200), sync=False)


@pytest.mark.parametrize("damage", [missing, odd_size, zeros])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("base_offset", [0, 6, 12])
@pytest.mark.parametrize("how", ["clean", "crashed", "trusted"])
def test_missing_or_corrupt_index_is_rebuilt(
    filled: Log,
    harness: LogHarness,
    damage: Callable[[Disk, str], None],
    suffix: str,
    base_offset: int,
    how: str,
) -> None:
    harness.close(filled)
    damage(harness.disk, harness.path(base_offset, suffix))
    log = harness.open(clean=how == "clean", recovery_point=16 if how == "trusted" else 0)
    for offset in range(16):
        data = log.read(offset, max_bytes=1, up_to_offset=16).read()
        assert [header.base_offset for _, header in batches(data)] == [offset - offset % 2]
    for number in range(8):
        found = log.offset_for_timestamp(NOW_MS + number * 10)
        assert found is not None
        assert found.offset == number * 2
    found = log.max_timestamp()
    assert found is not None
    assert found.offset == 15
    harness.close(log)
    # The index is trimmed to its entries again, and marked as valid.
    assert 0 < harness.disk.size(harness.path(base_offset, suffix)) < 50


def test_an_index_without_a_log_is_removed(filled: Log, harness: LogHarness) -> None:
    harness.disk.write(harness.path(99, ".index"), b"", sync=False)
    assert harness.open().segment_base_offsets == [0, 6, 12]
    assert not harness.disk.exists(harness.path(99, ".index"))


def test_missing_index_of_a_damaged_segment_fails_the_open(
    filled: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    disk.open(harness.path(0, ".log")).write_at(8, [bytes(4)])
    disk.remove(harness.path(0, ".index"))
    with pytest.raises(StorageError, match="damaged"):
        harness.open(recovery_point=16)


# --- producers


def idempotent_batch(sequence: int) -> memoryview:
    return batch(VALUE, producer_id=9, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def idempotent_log(harness: LogHarness) -> Log:
    """Return a log of eight batches of one producer, in three segments."""
    harness.config = harness.config._replace(segment_bytes=3 * len(idempotent_batch(0)))
    log = harness.open()
    for sequence in range(8):
        harness.send(log, idempotent_batch(sequence))
    assert log.segment_base_offsets == [0, 3, 6]
    return log


def check_producer_continues(log: Log, harness: LogHarness) -> None:
    for sequence in range(3, 8):
        again = log.append(idempotent_batch(sequence), leader_epoch=0, now_ms=NOW_MS)
        assert (again.is_duplicate, again.first_offset) == (True, sequence)
    with pytest.raises(ApiError) as refused:
        log.append(idempotent_batch(9), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.send(log, idempotent_batch(8)).first_offset == 8


@pytest.mark.parametrize("recovery_point", range(9))
def test_producers_are_known_after_a_crash(
    idempotent_log: Log, harness: LogHarness, recovery_point: int
) -> None:
    """All five batches that may have been in flight are known, with any recovery point."""
    check_producer_continues(harness.open(recovery_point=recovery_point), harness)


def test_producer_state_is_not_read_from_a_damaged_segment(idempotent_log: Log, harness: LogHarness) -> None:
    harness.disk.open(harness.path(3, ".log")).write_at(8, [bytes(4)])
    log = harness.open(recovery_point=8)
    assert log.append(idempotent_batch(7), leader_epoch=0, now_ms=NOW_MS).is_duplicate
    with pytest.raises(ApiError) as refused:
        log.append(idempotent_batch(4), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.send(log, idempotent_batch(8)).first_offset == 8


def test_without_snapshots_producers_are_read_from_the_log(
    idempotent_log: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    harness.close(idempotent_log)
    for name in disk.names(harness.directory):
        if name.endswith(".snapshot"):
            disk.remove(f"{harness.directory}/{name}")
    check_producer_continues(harness.open(clean=True), harness)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crashed"])
@pytest.mark.parametrize("content", [b"", b"\0\1garbage", bytes(70)], ids=["empty", "garbage", "zeros"])
def test_corrupt_snapshots_are_skipped(
    idempotent_log: Log,
    harness: LogHarness,
    disk: MemoryDisk,
    content: bytes,
    clean: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.close(idempotent_log)
    for offset in (3, 6, 8):
        disk.write(harness.path(offset, ".snapshot"), content, sync=False)
    with caplog.at_level(logging.WARNING):
        check_producer_continues(harness.open(clean=clean, recovery_point=8), harness)
    path = harness.path(8 if clean else 6, ".snapshot")
    assert f"Deleting corrupt producer snapshot {path}" in caplog.text


def test_snapshots_are_rewritten_for_recovered_segments(
    idempotent_log: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    before = disk.read(harness.path(6, ".snapshot"))
    disk.remove(harness.path(6, ".snapshot"))
    disk.write(harness.path(7, ".snapshot"), b"stray", sync=False)
    harness.open()
    assert disk.read(harness.path(6, ".snapshot")) == before
    assert not disk.exists(harness.path(7, ".snapshot"))


def test_truncated_log_has_only_the_remaining_producers(
    idempotent_log: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    disk.corrupt(harness.path(3, ".log"), len(idempotent_batch(0)) + 70)
    log = harness.open()
    assert log.log_end_offset == 4
    assert log.append(idempotent_batch(3), leader_epoch=0, now_ms=NOW_MS).is_duplicate
    assert harness.send(log, idempotent_batch(4)).first_offset == 4


# --- leader epochs, start offset, topic id


@pytest.mark.parametrize("content", [None, b"", b"garbage\n", b"0\n1\n9 0\n"], ids=str)
def test_missing_or_corrupt_epochs_are_rebuilt_from_batches(
    harness: LogHarness, content: bytes | None
) -> None:
    log = harness.open()
    for epoch in (1, 1, 4, 6):
        harness.append(log, b"v", epoch=epoch)
    path = f"{harness.directory}/leader-epoch-checkpoint"
    if content is None:
        harness.disk.remove(path)
    else:
        harness.disk.write(path, content, sync=False)
    assert harness.open().leader_epochs == [(1, 0), (4, 2), (6, 3)]
    assert harness.disk.read(path) == b"0\n3\n1 0\n4 2\n6 3\n"


@pytest.mark.parametrize("content", [b"xx", b"1\n0\n", b"0\n1\n1 zero\n"])
def test_corrupt_epochs_of_a_clean_log_are_rebuilt_from_batches(
    harness: LogHarness, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes the directory offline. No record is lost here, and a warning is logged."""
    log = harness.open()
    for epoch in (1, 1, 4, 6):
        harness.append(log, b"v", epoch=epoch)
    harness.close(log)
    path = f"{harness.directory}/leader-epoch-checkpoint"
    harness.disk.write(path, content, sync=False)
    with caplog.at_level(logging.WARNING):
        assert harness.open(clean=True).leader_epochs == [(1, 0), (4, 2), (6, 3)]
    assert path in caplog.text
    assert "Rebuilding the leader epoch cache" in caplog.text
    assert harness.disk.read(path) == b"0\n3\n1 0\n4 2\n6 3\n"


def test_epochs_of_lost_records_are_removed(harness: LogHarness) -> None:
    log = harness.open()
    harness.append(log, b"a", epoch=1)
    kept = harness.disk.size(harness.path(0, ".log"))
    harness.append(log, b"b", epoch=2)
    log.begin_leader_epoch(3)
    harness.disk.open(harness.path(0, ".log")).truncate(kept)
    assert harness.open().leader_epochs == [(1, 0)]


def test_the_log_starts_at_the_checkpoint_or_at_its_first_segment(filled: Log, harness: LogHarness) -> None:
    assert harness.open(log_start_offset=7).log_start_offset == 7
    filled.delete_records_before(7)
    filled.delete_old_segments(NOW_MS)
    assert harness.open(log_start_offset=3).log_start_offset == 6


def test_a_log_that_ends_before_its_start_is_emptied(
    filled: Log, harness: LogHarness, disk: MemoryDisk
) -> None:
    log = harness.open(log_start_offset=20)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (20, 20, [20])
    assert f"{0:020d}.log.deleted" in disk.names(harness.directory)
    assert harness.append(log, b"a").first_offset == 20
    assert offsets_and_values(harness.open(log_start_offset=20)) == [(20, b"a")]


def open_as(harness: LogHarness, topic_id: Uuid | None) -> Log:
    return open_log(
        harness.disk,
        harness.directory,
        "topic",
        0,
        harness.config,
        clean=True,
        delayed_deletion=harness.delayed_deletion,
        rng=random.Random(0),
        now_ms=NOW_MS,
        on_failure=lambda log, error: None,
        topic_id=topic_id,
    )


def test_partially_written_topic_id_is_written_again(harness: LogHarness) -> None:
    first, second = Uuid(b"\1" * 16), Uuid(b"\2" * 16)
    open_as(harness, first)
    harness.disk.kill()  # type: ignore[attr-defined]
    open_as(harness, second).flush()
    assert open_as(harness, None).topic_id == second


def test_the_topic_id_is_written_once_and_must_not_change(harness: LogHarness) -> None:
    first, second = Uuid(b"\1" * 16), Uuid(b"\2" * 16)
    log = open_as(harness, first)
    assert log.topic_id == first
    log.flush()
    assert read_topic_id(harness.disk, harness.directory) == first
    assert open_as(harness, None).topic_id == first
    with pytest.raises(StorageError, match="another topic"):
        open_as(harness, second)


# --- leftovers


def test_files_marked_for_deletion_are_removed(filled: Log, harness: LogHarness) -> None:
    gone = ["00000000000000000003.log.deleted", "00000000000000000003.index.cleaned", "x.tmp"]
    kept = ["quorum-state", "00000000000000000007-0000000001.checkpoint.deleted"]
    for name in gone + kept:
        harness.disk.write(f"{harness.directory}/{name}", b"x", sync=False)
    assert offsets(harness.open()) == list(range(16))
    names = harness.disk.names(harness.directory)
    assert not set(gone) & set(names)
    assert set(kept) <= set(names)


def with_swap_files(harness: LogHarness) -> None:
    """Leave the files of a compaction that merged two segments and has not replaced them yet."""
    merged = harness.disk.read(harness.path(0, ".log")) + harness.disk.read(harness.path(6, ".log"))
    harness.disk.write(harness.path(0, ".log.swap"), merged, sync=False)
    for suffix in (".index", ".timeindex"):
        harness.disk.write(harness.path(0, f"{suffix}.swap"), b"", sync=False)


def test_an_interrupted_swap_is_completed(filled: Log, harness: LogHarness) -> None:
    harness.close(filled)
    with_swap_files(harness)
    log = harness.open()
    assert log.segment_base_offsets == [0, 12]
    assert offsets(log) == list(range(16))
    assert not [name for name in harness.disk.names(harness.directory) if "swap" in name]


def test_swap_interrupted_at_any_operation_is_completed(disk: MemoryDisk) -> None:
    for operations in range(200):
        disk = MemoryDisk()
        harness = LogHarness(disk)
        harness.config = harness.config._replace(segment_bytes=3 * len(batch(VALUE)))
        log = harness.open()
        for _ in range(8):
            harness.append(log, VALUE)
        harness.close(log)
        merged = disk.read(harness.path(0, ".log")) + disk.read(harness.path(3, ".log"))
        disk.write(harness.path(0, ".log.swap"), merged, sync=False)
        disk.fails_after = operations
        try:
            harness.open()
            finished = True
        except StorageError:
            finished = False
        disk.kill()
        assert offsets(harness.open()) == list(range(8)), operations
        if finished:
            return
    pytest.fail("opening takes more than 200 operations")


def test_swap_files_of_an_incomplete_split_are_removed(filled: Log, harness: LogHarness) -> None:
    with_swap_files(harness)
    harness.disk.write(harness.path(0, ".log.cleaned"), b"x", sync=False)
    log = harness.open()
    assert log.segment_base_offsets == [0, 6, 12]
    assert offsets(log) == list(range(16))
    assert not [name for name in harness.disk.names(harness.directory) if "swap" in name or "cleaned" in name]
