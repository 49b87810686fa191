"""Future logs: the files of a log that is copied to another directory."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from kwire.broker.storage.dirs.future_log import FutureLog
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import build, read_header
from kwire.wire.errors import ApiError
from kwire.wire.primitives import uuid_from_text

TOPIC_ID = uuid_from_text("AAAAAAAAAAAAAAAAAAAABw")


def replace_source(copy: FutureLog) -> Log:
    """Return the copy after it has replaced its source."""
    copy.next_region(1000)
    copy.log.flush()
    replacement = copy.replace_source(1000)
    replacement.finish()
    assert copy.log.is_recoverable or copy.log.failure is not None
    return replacement.log


@pytest.mark.parametrize("index_interval_bytes", [0, 1024, 4096])
@pytest.mark.parametrize("largest_value_bytes", [20, 3000])
def test_future_log_files_equal_the_sources(index_interval_bytes: int, largest_value_bytes: int) -> None:
    """kafka-dump-log verifies that every index entry refers to one appended batch."""
    rng = random.Random(largest_value_bytes)
    disk = MemoryDisk()
    manager = LogManager(disk, ["/one", "/two"], logger=STORAGE_LOGGER, rng=rng)
    manager.open(0)
    config = LogConfig(index_interval_bytes=index_interval_bytes, segment_bytes=64 * 1024)
    source = manager.create("t", 0, TOPIC_ID, config, 0)
    target = manager.directory("/two")
    assert target is not None
    for number in range(600):
        value = bytes(rng.randrange(largest_value_bytes))
        batch = build([(1000 + number * 7 % 50, None, value, []) for _ in range(rng.randrange(1, 4))])
        source.append(memoryview(batch), leader_epoch=0, now_ms=0)
        source.commit()
    source.high_watermark = source.log_end_offset
    source.close()
    written = disk.tree("/one/t-0")
    replace_source(FutureLog(manager, source, target, 0)).close()
    copied = disk.tree("/two/t-0")
    assert [name for name in written if name.endswith(".log")]
    assert copied == written


def test_crash_at_any_step_leaves_one_directory_of_the_partition() -> None:
    """A broker would not start with two."""
    seen = set()
    for operations in range(60):
        rng = random.Random(operations)
        disk = MemoryDisk()
        manager = LogManager(disk, ["/one", "/two"], logger=STORAGE_LOGGER, rng=rng)
        manager.open(0)
        source = manager.create("t", 0, TOPIC_ID, LogConfig(), 0)
        target = manager.directory("/two")
        assert target is not None
        source.append(memoryview(build([(1000, None, b"v", [])])), leader_epoch=0, now_ms=0)
        source.commit()
        source.high_watermark = source.log_end_offset
        copy = FutureLog(manager, source, target, 0)
        disk.fails_after = operations
        with suppress(StorageError, ApiError):
            replace_source(copy)
        disk.kill()
        kinds = [
            (path, name[len(f"t-0.{0:032x}") :])
            for path in ("/one", "/two")
            for name in disk.names(path)
            if name.startswith("t-0")
        ]
        assert not {("/one", ""), ("/two", "")} <= set(kinds)
        assert ("/one", "") in kinds or ("/two", "") in kinds or ("/two", "-future") in kinds
        seen.update(kinds)
    assert {("/one", ""), ("/two", ""), ("/one", "-delete")} <= seen


@pytest.mark.parametrize(
    ("log_start_offset", "first_offset", "stable_offset"), [(0, 1, 1), (1, 1, 1), (2, 3, 3), (4, None, 5)]
)
def test_open_transaction_starts_at_the_first_copied_batch(
    log_start_offset: int, first_offset: int | None, stable_offset: int
) -> None:
    manager = LogManager(MemoryDisk(), ["/one", "/two"], logger=STORAGE_LOGGER, rng=random.Random(0))
    manager.open(0)
    source = manager.create("t", 0, TOPIC_ID, LogConfig(), 0)
    target = manager.directory("/two")
    assert target is not None
    sequence = 0
    for is_transactional in (False, True, False, True, False):
        producer = (9, 0, sequence) if is_transactional else (-1, -1, -1)
        sent = build(
            [(1000, None, b"v", [])],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            transactional=is_transactional,
        )
        source.append(memoryview(sent), leader_epoch=0, now_ms=1000)
        source.commit()
        sequence += is_transactional
    source.high_watermark = source.log_end_offset
    source.delete_records_before(log_start_offset)
    copy = replace_source(FutureLog(manager, source, target, 1000))
    assert copy.log_start_offset == log_start_offset
    assert copy.producers.producers[9].last_sequence == 1
    assert copy.producers.producers[9].txn_first_offset == first_offset
    assert (copy.high_watermark, copy.last_stable_offset) == (5, stable_offset)


def batches_of_ten(manager: LogManager, count: int) -> tuple[Log, LogDirectory]:
    manager.open(0)
    source = manager.create("t", 0, TOPIC_ID, LogConfig(), 0)
    target = manager.directory("/two")
    assert target is not None
    for _ in range(count):
        sent = build([(1000, None, b"v" * 2_000, []) for _ in range(10)])
        source.append(memoryview(sent), leader_epoch=0, now_ms=0)
        source.commit()
    source.high_watermark = source.log_end_offset
    return source, target


@pytest.mark.parametrize("log_start_offset", [0, 5, 9, 10, 25, 29, 30])
def test_log_with_its_start_within_a_batch_is_copied(log_start_offset: int) -> None:
    manager = LogManager(MemoryDisk(), ["/one", "/two"], logger=STORAGE_LOGGER, rng=random.Random(0))
    source, target = batches_of_ten(manager, 3)
    source.delete_records_before(log_start_offset)
    copy = replace_source(FutureLog(manager, source, target, 0))
    assert (copy.log_start_offset, copy.log_end_offset) == (log_start_offset, 30)
    if log_start_offset < 30:
        found = copy.read(log_start_offset, max_bytes=1, up_to_offset=30).read()
        assert read_header(found).base_offset == log_start_offset // 10 * 10


@pytest.mark.parametrize("pieces", [0, 1, 2, 5])
@pytest.mark.parametrize("log_start_offset", [5, 10, 25, 39, 61, 99, 100])
def test_records_deleted_from_the_source_during_the_copy(pieces: int, log_start_offset: int) -> None:
    manager = LogManager(MemoryDisk(), ["/one", "/two"], logger=STORAGE_LOGGER, rng=random.Random(0))
    source, target = batches_of_ten(manager, 10)
    copy = FutureLog(manager, source, target, 0)
    for _ in range(pieces):
        piece = copy.next_region(0)
        if piece is not None:
            copy.append(piece.read(), 0)
    source.delete_records_before(log_start_offset)
    log = replace_source(copy)
    assert (log.log_start_offset, log.log_end_offset) == (log_start_offset, 100)
