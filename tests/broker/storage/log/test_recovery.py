"""Opening a log after a crash: damaged tails, indexes, snapshots and epochs, and what was left half done."""

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
from tests.broker.storage.log_bench import NOW_MS, LogBench, batch, numbered, values

VALUE = bytes(100)


@pytest.fixture(params=["memory", "real"])
def any_bench(request: pytest.FixtureRequest, tmp_path: Path) -> LogBench:
    disk: Disk = MemoryDisk() if request.param == "memory" else RealDisk()
    root = "" if request.param == "memory" else str(tmp_path)
    return LogBench(disk, root)


def offsets(log: Log) -> list[int]:
    return [offset for offset, _ in numbered(log)]


# --- the tail


def test_a_tail_torn_anywhere_costs_only_its_batch(any_bench: LogBench) -> None:
    bench = any_bench
    log = bench.open()
    bench.append(log, b"a")
    bench.append(log, b"b")
    path = bench.path(0, ".log")
    kept = bench.disk.size(path)
    bench.append(log, b"torn", b"torn")
    whole = bench.disk.read(path)
    for size in range(kept, len(whole)):
        bench.disk.write(path, whole[:size], sync=False)
        recovered = bench.open()
        assert (values(recovered), recovered.log_end_offset) == ([b"a", b"b"], 2)
        assert bench.disk.size(path) == kept
        assert bench.append(recovered, b"c").first_offset == 2
        assert values(bench.open()) == [b"a", b"b", b"c"]
    bench.disk.write(path, whole, sync=False)
    assert values(bench.open()) == [b"a", b"b", b"torn", b"torn"]


@pytest.mark.parametrize("rest", [bytes(1), bytes(61), bytes(5000), b"\xff" * 200, b"\x7f" * 80], ids=len)
def test_garbage_after_the_last_batch_is_cut_off(bench: LogBench, rest: bytes) -> None:
    log = bench.open()
    bench.append(log, b"a")
    path = bench.path(0, ".log")
    whole = bench.disk.read(path)
    bench.disk.write(path, whole + rest, sync=False)
    assert values(bench.open()) == [b"a"]
    assert bench.disk.read(path) == whole


def test_a_flipped_byte_anywhere_under_the_crc_costs_only_its_batch(
    bench: LogBench, disk: MemoryDisk
) -> None:
    log = bench.open()
    bench.append(log, b"a")
    path = bench.path(0, ".log")
    start = disk.size(path)
    bench.append(log, b"value")
    whole = disk.read(path)
    # The length is 8 to 11, the magic 16, the CRC 17 to 20, and all after it is summed up.
    for position in [*range(8, 12), *range(16, len(whole) - start)]:
        disk.write(path, whole, sync=False)
        disk.corrupt(path, start + position)
        recovered = bench.open()
        assert (values(recovered), recovered.log_end_offset) == ([b"a"], 1), position


def test_a_batch_of_a_format_to_come_ends_the_log(bench: LogBench) -> None:
    log = bench.open()
    bench.append(log, b"a")
    bench.disk.open(bench.path(0, ".log")).write_at(16, [b"\3"])
    assert values(bench.open()) == []


def test_a_batch_that_repeats_an_offset_ends_the_log(bench: LogBench) -> None:
    log = bench.open()
    bench.append(log, b"a", b"b")
    path = bench.path(0, ".log")
    whole = bench.disk.read(path)
    bench.disk.write(path, whole + whole, sync=False)
    assert values(bench.open()) == [b"a", b"b"]


def test_segments_after_a_damaged_one_are_set_aside(filled: Log, bench: LogBench, disk: MemoryDisk) -> None:
    disk.corrupt(bench.path(6, ".log"), len(batch(VALUE, VALUE)) + 70)
    recovered = bench.open()
    assert offsets(recovered) == list(range(8))
    assert recovered.segment_base_offsets == [0, 6]
    assert f"{12:020d}.log.deleted" in disk.names(bench.directory)
    bench.append(recovered, b"new")
    assert offsets(bench.open()) == list(range(9))


def test_segments_before_the_recovery_point_are_trusted(
    filled: Log, bench: LogBench, disk: MemoryDisk
) -> None:
    disk.corrupt(bench.path(0, ".log"), 70)
    assert offsets(bench.open(recovery_point=7))[-1] == 15
    assert bench.open(recovery_point=6).log_end_offset == 0


def test_the_recovery_point_is_not_raised_by_what_is_only_found(filled: Log, bench: LogBench) -> None:
    assert bench.open(recovery_point=7).recovery_point == 7
    assert bench.open(recovery_point=99).recovery_point == 16
    assert bench.open(clean=True).recovery_point == 16


def test_an_older_format_is_not_mistaken_for_garbage(bench: LogBench) -> None:
    log = bench.open()
    bench.append(log, b"a")
    path = bench.path(0, ".log")
    body = struct.pack(">bbqi", 1, 0, NOW_MS, -1) + struct.pack(">i", 3) + b"old"
    message = struct.pack(">I", crc32(body)) + body
    content = bench.disk.read(path) + struct.pack(">qi", 1, len(message)) + message
    bench.disk.write(path, content, sync=False)
    with pytest.raises(StorageError, match="magic 1"):
        bench.open()
    assert bench.disk.read(path) == content


# --- indexes


def missing(disk: Disk, path: str) -> None:
    disk.remove(path)


def uneven(disk: Disk, path: str) -> None:
    disk.write(path, disk.read(path) + b"x", sync=False)


def zeros(disk: Disk, path: str) -> None:
    disk.write(path, bytes(1200), sync=False)


@pytest.mark.parametrize("damage", [missing, uneven, zeros])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("base_offset", [0, 6, 12])
@pytest.mark.parametrize("how", ["clean", "crashed", "trusted"])
def test_a_lost_or_garbled_index_is_built_again(
    filled: Log,
    bench: LogBench,
    damage: Callable[[Disk, str], None],
    suffix: str,
    base_offset: int,
    how: str,
) -> None:
    bench.close(filled)
    damage(bench.disk, bench.path(base_offset, suffix))
    log = bench.open(clean=how == "clean", recovery_point=16 if how == "trusted" else 0)
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
    bench.close(log)
    # Cut to its entries again, and no longer in doubt.
    assert 0 < bench.disk.size(bench.path(base_offset, suffix)) < 50


def test_an_index_without_a_log_is_removed(filled: Log, bench: LogBench) -> None:
    bench.disk.write(bench.path(99, ".index"), b"", sync=False)
    assert bench.open().segment_base_offsets == [0, 6, 12]
    assert not bench.disk.exists(bench.path(99, ".index"))


def test_an_index_is_checked_against_a_damaged_log_only_when_it_is_needed(
    filled: Log, bench: LogBench, disk: MemoryDisk
) -> None:
    disk.open(bench.path(0, ".log")).write_at(8, [bytes(4)])
    disk.remove(bench.path(0, ".index"))
    with pytest.raises(StorageError, match="damaged"):
        bench.open(recovery_point=16)


# --- producers


def producing(sequence: int) -> memoryview:
    return batch(VALUE, producer_id=9, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def produced(bench: LogBench) -> Log:
    """Eight batches of one producer, in three segments."""
    bench.config = bench.config._replace(segment_bytes=3 * len(producing(0)))
    log = bench.open()
    for sequence in range(8):
        bench.send(log, producing(sequence))
    assert log.segment_base_offsets == [0, 3, 6]
    return log


def assert_producer_goes_on(log: Log, bench: LogBench) -> None:
    for sequence in range(3, 8):
        again = log.append(producing(sequence), leader_epoch=0, now_ms=NOW_MS)
        assert (again.is_duplicate, again.first_offset) == (True, sequence)
    with pytest.raises(ApiError) as refused:
        log.append(producing(9), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert bench.send(log, producing(8)).first_offset == 8


@pytest.mark.parametrize("recovery_point", range(9))
def test_producers_are_known_after_a_crash(produced: Log, bench: LogBench, recovery_point: int) -> None:
    """By all five batches that may have been in flight, wherever the log was synced up to."""
    assert_producer_goes_on(bench.open(recovery_point=recovery_point), bench)


def test_what_was_in_flight_is_not_looked_for_in_a_damaged_segment(produced: Log, bench: LogBench) -> None:
    bench.disk.open(bench.path(3, ".log")).write_at(8, [bytes(4)])
    log = bench.open(recovery_point=8)
    assert log.append(producing(7), leader_epoch=0, now_ms=NOW_MS).is_duplicate
    with pytest.raises(ApiError) as refused:
        log.append(producing(4), leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert bench.send(log, producing(8)).first_offset == 8


def test_without_snapshots_producers_are_read_from_the_log(
    produced: Log, bench: LogBench, disk: MemoryDisk
) -> None:
    bench.close(produced)
    for name in disk.names(bench.directory):
        if name.endswith(".snapshot"):
            disk.remove(f"{bench.directory}/{name}")
    assert_producer_goes_on(bench.open(clean=True), bench)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crashed"])
@pytest.mark.parametrize("content", [b"", b"\0\1garbage", bytes(70)], ids=["empty", "garbage", "zeros"])
def test_garbled_snapshots_are_passed_over(
    produced: Log,
    bench: LogBench,
    disk: MemoryDisk,
    content: bytes,
    clean: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench.close(produced)
    for offset in (3, 6, 8):
        disk.write(bench.path(offset, ".snapshot"), content, sync=False)
    with caplog.at_level(logging.WARNING):
        assert_producer_goes_on(bench.open(clean=clean, recovery_point=8), bench)
    path = bench.path(8 if clean else 6, ".snapshot")
    assert f"Deleting corrupt producer snapshot {path}" in caplog.text


def test_snapshots_are_made_again_for_the_segments_that_were_read(
    produced: Log, bench: LogBench, disk: MemoryDisk
) -> None:
    before = disk.read(bench.path(6, ".snapshot"))
    disk.remove(bench.path(6, ".snapshot"))
    disk.write(bench.path(7, ".snapshot"), b"stray", sync=False)
    bench.open()
    assert disk.read(bench.path(6, ".snapshot")) == before
    assert not disk.exists(bench.path(7, ".snapshot"))


def test_a_cut_log_knows_only_the_producers_that_are_left(
    produced: Log, bench: LogBench, disk: MemoryDisk
) -> None:
    disk.corrupt(bench.path(3, ".log"), len(producing(0)) + 70)
    log = bench.open()
    assert log.log_end_offset == 4
    assert log.append(producing(3), leader_epoch=0, now_ms=NOW_MS).is_duplicate
    assert bench.send(log, producing(4)).first_offset == 4


# --- leader epochs, start offset, topic id


@pytest.mark.parametrize("content", [None, b"", b"garbage\n", b"0\n1\n9 0\n"], ids=str)
def test_epochs_are_found_in_the_batches(bench: LogBench, content: bytes | None) -> None:
    log = bench.open()
    for epoch in (1, 1, 4, 6):
        bench.append(log, b"v", epoch=epoch)
    path = f"{bench.directory}/leader-epoch-checkpoint"
    if content is None:
        bench.disk.remove(path)
    else:
        bench.disk.write(path, content, sync=False)
    assert bench.open().leader_epochs == [(1, 0), (4, 2), (6, 3)]
    assert bench.disk.read(path) == b"0\n3\n1 0\n4 2\n6 3\n"


@pytest.mark.parametrize("content", [b"xx", b"1\n0\n", b"0\n1\n1 zero\n"])
def test_epochs_that_are_garbled_are_found_in_the_batches_of_a_clean_log_too(
    bench: LogBench, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes the directory offline. Nothing is lost here, and whoever wonders is told."""
    log = bench.open()
    for epoch in (1, 1, 4, 6):
        bench.append(log, b"v", epoch=epoch)
    bench.close(log)
    path = f"{bench.directory}/leader-epoch-checkpoint"
    bench.disk.write(path, content, sync=False)
    with caplog.at_level(logging.WARNING):
        assert bench.open(clean=True).leader_epochs == [(1, 0), (4, 2), (6, 3)]
    assert path in caplog.text
    assert "Rebuilding the leader epoch cache" in caplog.text
    assert bench.disk.read(path) == b"0\n3\n1 0\n4 2\n6 3\n"


def test_epochs_of_lost_records_are_forgotten(bench: LogBench) -> None:
    log = bench.open()
    bench.append(log, b"a", epoch=1)
    kept = bench.disk.size(bench.path(0, ".log"))
    bench.append(log, b"b", epoch=2)
    log.begin_leader_epoch(3)
    bench.disk.open(bench.path(0, ".log")).truncate(kept)
    assert bench.open().leader_epochs == [(1, 0)]


def test_the_log_starts_at_the_checkpoint_or_at_its_first_segment(filled: Log, bench: LogBench) -> None:
    assert bench.open(log_start_offset=7).log_start_offset == 7
    filled.delete_records_before(7)
    filled.delete_old_segments(NOW_MS)
    assert bench.open(log_start_offset=3).log_start_offset == 6


def test_a_log_that_ends_before_its_start_is_emptied(filled: Log, bench: LogBench, disk: MemoryDisk) -> None:
    log = bench.open(log_start_offset=20)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (20, 20, [20])
    assert f"{0:020d}.log.deleted" in disk.names(bench.directory)
    assert bench.append(log, b"a").first_offset == 20
    assert numbered(bench.open(log_start_offset=20)) == [(20, b"a")]


def open_as(bench: LogBench, topic_id: Uuid | None) -> Log:
    return open_log(
        bench.disk,
        bench.directory,
        "topic",
        0,
        bench.config,
        clean=True,
        delayed_deletion=bench.delayed_deletion,
        rng=random.Random(0),
        now_ms=NOW_MS,
        on_failure=lambda log, error: None,
        topic_id=topic_id,
    )


def test_a_topic_id_that_was_only_begun_to_be_written_is_written_anew(bench: LogBench) -> None:
    first, second = Uuid(b"\1" * 16), Uuid(b"\2" * 16)
    open_as(bench, first)
    bench.disk.kill()
    open_as(bench, second).flush()
    assert open_as(bench, None).topic_id == second


def test_the_topic_id_is_written_once_and_must_not_change(bench: LogBench) -> None:
    first, second = Uuid(b"\1" * 16), Uuid(b"\2" * 16)
    log = open_as(bench, first)
    assert log.topic_id == first
    log.flush()
    assert read_topic_id(bench.disk, bench.directory) == first
    assert open_as(bench, None).topic_id == first
    with pytest.raises(StorageError, match="another topic"):
        open_as(bench, second)


# --- leftovers


def test_files_that_were_on_their_way_out_are_removed(filled: Log, bench: LogBench) -> None:
    gone = ["00000000000000000003.log.deleted", "00000000000000000003.index.cleaned", "x.tmp"]
    kept = ["quorum-state", "00000000000000000007-0000000001.checkpoint.deleted"]
    for name in gone + kept:
        bench.disk.write(f"{bench.directory}/{name}", b"x", sync=False)
    assert offsets(bench.open()) == list(range(16))
    names = bench.disk.names(bench.directory)
    assert not set(gone) & set(names)
    assert set(kept) <= set(names)


def swapped(bench: LogBench) -> None:
    """As compaction leaves it, having merged the first two segments and not yet replaced them."""
    merged = bench.disk.read(bench.path(0, ".log")) + bench.disk.read(bench.path(6, ".log"))
    bench.disk.write(bench.path(0, ".log.swap"), merged, sync=False)
    for suffix in (".index", ".timeindex"):
        bench.disk.write(bench.path(0, f"{suffix}.swap"), b"", sync=False)


def test_an_interrupted_swap_is_completed(filled: Log, bench: LogBench) -> None:
    bench.close(filled)
    swapped(bench)
    log = bench.open()
    assert log.segment_base_offsets == [0, 12]
    assert offsets(log) == list(range(16))
    assert not [name for name in bench.disk.names(bench.directory) if "swap" in name]


def test_a_swap_is_completed_wherever_it_was_interrupted(disk: MemoryDisk) -> None:
    for operations in range(200):
        disk = MemoryDisk()
        bench = LogBench(disk)
        bench.config = bench.config._replace(segment_bytes=3 * len(batch(VALUE)))
        log = bench.open()
        for _ in range(8):
            bench.append(log, VALUE)
        bench.close(log)
        merged = disk.read(bench.path(0, ".log")) + disk.read(bench.path(3, ".log"))
        disk.write(bench.path(0, ".log.swap"), merged, sync=False)
        disk.fails_after = operations
        try:
            bench.open()
            finished = True
        except StorageError:
            finished = False
        disk.kill()
        assert offsets(bench.open()) == list(range(8)), operations
        if finished:
            return
    pytest.fail("opening takes more than 200 operations")


def test_swap_files_of_an_incomplete_split_are_removed(filled: Log, bench: LogBench) -> None:
    swapped(bench)
    bench.disk.write(bench.path(0, ".log.cleaned"), b"x", sync=False)
    log = bench.open()
    assert log.segment_base_offsets == [0, 6, 12]
    assert offsets(log) == list(range(16))
    assert not [name for name in bench.disk.names(bench.directory) if "swap" in name or "cleaned" in name]
