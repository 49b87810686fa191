"""The log manager: directories, locks, checkpoints, clean shutdown, deletion and failures."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kwire.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
)
from kwire.broker.storage.dirs.log_dir import DirectoryInUse, parse_dir_name, suffixed_dir_name
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, RealDisk, StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost, WorkerTask
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid
from tests.broker.storage import log_harness
from tests.broker.storage.log_harness import NOW_MS, batch, offsets_and_values, values, write_topic_id

CONFIG = LogConfig(segment_index_bytes=1200, file_delete_delay_ms=1000)
TOPIC_ID = Uuid(b"\7" * 16)
HOUR_MS = 60 * 60 * 1000


def manager(disk: Disk, *paths: str) -> LogManager:
    return LogManager(
        disk, paths or ("/a",), logger=STORAGE_LOGGER, rng=random.Random(0), config_for=lambda topic: CONFIG
    )


def open_manager(disk: Disk, *paths: str) -> LogManager:
    made = manager(disk, *paths)
    made.open(NOW_MS)
    return made


def append(log: Log, *each: bytes) -> None:
    log_harness.name(log)
    log.append(batch(*each), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    log.high_watermark = log.log_end_offset


def crash(disk: MemoryDisk) -> LogManager:
    """Kill the process, start another one, and return its log manager."""
    disk.kill()
    return open_manager(disk)


# --- directories


def test_directories_are_created_and_locked(disk: MemoryDisk) -> None:
    first = open_manager(disk, "/a", "/b/c")
    assert disk.is_directory("/b/c")
    with pytest.raises(DirectoryInUse):
        open_manager(disk, "/b/c")
    first.shutdown(NOW_MS)
    open_manager(disk, "/b/c")


def test_locked_directory_releases_the_other_locks(disk: MemoryDisk) -> None:
    open_manager(disk, "/b")
    with pytest.raises(DirectoryInUse):
        open_manager(disk, "/a", "/b")
    open_manager(disk, "/a")


def test_lock_excludes_other_processes(tmp_path: Path) -> None:
    ours = open_manager(RealDisk(), str(tmp_path))
    attempt = (
        "import sys; from broker.storage.disk import RealDisk;"
        "sys.exit(3 if RealDisk().lock(sys.argv[1] + '/.lock') is None else 0)"
    )
    assert subprocess.run([sys.executable, "-c", attempt, str(tmp_path)], check=False).returncode == 3
    ours.shutdown(NOW_MS)
    assert subprocess.run([sys.executable, "-c", attempt, str(tmp_path)], check=False).returncode == 0


def test_directory_with_corrupt_meta_properties_goes_offline_alone(disk: MemoryDisk) -> None:
    disk.make_directory("/a")
    disk.write("/a/meta.properties", b"version=9\n", sync=False)
    both = open_manager(disk, "/a", "/b")
    assert [directory.offline for directory in both.directories()] == [True, False]
    both.shutdown(NOW_MS)
    with pytest.raises(StorageError, match=r"no log directory can be used: /a/meta.* version 9"):
        open_manager(disk, "/a")


@pytest.mark.parametrize("name", ["no-number-", "topic", "-x"])
def test_directory_with_an_invalid_partition_name_goes_offline(disk: MemoryDisk, name: str) -> None:
    disk.make_directory(f"/a/{name}")
    assert open_manager(disk, "/a", "/b").directories()[0].offline


def test_size_and_free_space_of_the_volume(disk: MemoryDisk, tmp_path: Path) -> None:
    total, usable = open_manager(disk).directories()[0].volume_bytes()
    assert total > usable > 0
    real = open_manager(RealDisk(), str(tmp_path))
    total, usable = real.directories()[0].volume_bytes()
    assert total > usable >= 0
    real.shutdown(NOW_MS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", ("a", 0, "")),
        ("with-dash.es_-12", ("with-dash.es_", 12, "")),
        ("a-0.0123456789abcdef0123456789abcdef-delete", ("a", 0, "-delete")),
        ("a-b-7.0123456789abcdef0123456789abcdef-stray", ("a-b", 7, "-stray")),
        ("a-b-7.0123456789abcdef0123456789abcdef-future", ("a-b", 7, "-future")),
        ("a", None),
        ("a-", None),
        ("-1", None),
    ],
)
def test_parse_directory_name(name: str, expected: tuple[str, int, str] | None) -> None:
    parsed = parse_dir_name(name)
    assert (None if parsed is None else tuple(parsed[1:])) == expected


def test_deleted_directory_name_is_at_most_255_bytes() -> None:
    name = suffixed_dir_name("t" * 249, 12, "-delete", random.Random(0))
    assert len(name) == 255
    parsed = parse_dir_name(name)
    assert parsed is not None
    assert parsed.topic.startswith("ttt")


# --- creating and finding


def test_logs_are_distributed_over_directories(disk: MemoryDisk) -> None:
    logs = open_manager(disk, "/a", "/b")
    for partition in range(4):
        logs.create("t", partition, TOPIC_ID, CONFIG, NOW_MS)
    assert [len(logs.logs_in(path)) for path in ("/a", "/b")] == [2, 2]
    log = logs.get("t", 3)
    assert log is not None
    assert logs.directory_of(log).path in log.directory
    append(log, b"a")
    assert disk.read(f"{log.directory}/partition.metadata").startswith(b"version: 0\ntopic_id: ")


def test_duplicate_partition_takes_the_second_directory_offline(disk: MemoryDisk) -> None:
    for path in ("/a", "/b"):
        disk.make_directory(f"{path}/t-0")
        write_topic_id(disk, f"{path}/t-0", TOPIC_ID)
    logs = open_manager(disk, "/a", "/b")
    assert [directory.offline for directory in logs.directories()] == [False, True]


@pytest.mark.parametrize(("whole", "begun"), [("/a", "/b"), ("/b", "/a")])
def test_partially_created_directory_is_ignored(disk: MemoryDisk, whole: str, begun: str) -> None:
    """A full disk leaves an empty partition directory, and the broker creates the partition elsewhere."""
    append(open_manager(disk, whole).create("t", 0, TOPIC_ID, CONFIG, NOW_MS), b"kept")
    disk.kill()
    disk.make_directory(f"{begun}/t-0")
    logs = open_manager(disk, "/a", "/b")
    assert [directory.offline for directory in logs.directories()] == [False, False]
    log = logs.get("t", 0)
    assert log is not None
    assert (log.directory, values(log)) == (f"{whole}/t-0", [b"kept"])
    (aside,) = (name for name in disk.names(begun) if name.startswith("t-0"))
    assert aside.endswith("-stray")


@pytest.mark.parametrize("clean", [True, False], ids=["shut down", "killed"])
def test_acknowledged_records_survive_a_restart(disk: MemoryDisk, clean: bool) -> None:
    logs = open_manager(disk)
    append(logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS), b"a", b"b")
    logs.write_checkpoints()
    log = logs.get("t", 0)
    assert log is not None
    append(log, b"c")
    if clean:
        logs.shutdown(NOW_MS, broker_epoch=7)
        assert disk.read("/a/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":7}'
    again = crash(disk)
    assert again.directories()[0].had_clean_shutdown == clean
    assert not disk.exists("/a/.kafka_cleanshutdown")
    log = again.get("t", 0)
    assert log is not None
    assert values(log) == [b"a", b"b", b"c"]
    assert (log.topic_id, log.high_watermark) == (TOPIC_ID, 3 if clean else 2)
    assert log.recovery_point == (3 if clean else 0)


def test_clean_start_skips_recovery(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(log, b"a")
    logs.shutdown(NOW_MS)
    disk.corrupt("/a/t-0/00000000000000000000.log", 66)
    again = open_manager(disk).get("t", 0)
    assert again is not None
    assert again.log_end_offset == 1
    crashed = crash(disk).get("t", 0)
    assert crashed is not None
    # The shutdown flushed the log, as the recovery point shows.
    assert crashed.log_end_offset == 0


def test_shutdown_during_a_sync_writes_no_clean_shutdown_marker(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    append(logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS), b"a")
    logs.shutdown(NOW_MS, is_complete=False)
    assert not disk.exists(f"/a/{CLEAN_SHUTDOWN}")
    again = open_manager(disk).get("t", 0)
    assert again is not None
    assert values(again) == [b"a"]


def test_failed_sync_of_one_log_at_shutdown_leaves_no_clean_shutdown_marker(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    for index in range(3):
        append(logs.create("t", index, TOPIC_ID, CONFIG, NOW_MS), b"a")

    def run_all(works: Iterable[Callable[[], None]]) -> None:
        for number, work in enumerate(list(works)):
            disk.fails_after = 0 if number == 1 else None
            work()
            disk.repair()

    logs.shutdown(NOW_MS, run_all=run_all)
    assert not disk.exists(f"/a/{CLEAN_SHUTDOWN}")


class SyncRecordingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_shutdown_syncs_each_directory_once() -> None:
    disk = SyncRecordingDisk()
    logs = open_manager(disk)
    made = [logs.create("t", index, TOPIC_ID, CONFIG, NOW_MS) for index in range(5)]
    append(made[0], b"a")
    disk.synced.clear()
    logs.shutdown(NOW_MS)
    assert disk.synced[:6] == [*(log.directory for log in made), "/a"]
    assert set(disk.synced[6:]) == {"/a"}  # for the checkpoints and the clean shutdown marker
    disk.power_cut(random.Random(0))
    again = {log.partition: values(log) for log in open_manager(disk).logs()}
    assert again == {0: [b"a"], 1: [], 2: [], 3: [], 4: []}


def test_metadata_log_is_opened_separately_and_recovered_completely(disk: MemoryDisk) -> None:
    logs = open_manager(disk, "/a", "/b")
    log = logs.open_metadata_log(CONFIG, NOW_MS, directory="/b")
    assert log.directory == "/b/__cluster_metadata-0"
    append(log, b"a")
    append(log, b"b")
    logs.shutdown(NOW_MS)
    assert disk.read("/b/recovery-point-offset-checkpoint") == b"0\n0\n"
    size = disk.size("/b/__cluster_metadata-0/00000000000000000000.log")
    disk.corrupt("/b/__cluster_metadata-0/00000000000000000000.log", size - 1)
    again = open_manager(disk, "/a", "/b")
    assert again.get("__cluster_metadata", 0) is None
    assert values(again.open_metadata_log(CONFIG, NOW_MS, directory="/b")) == [b"a"]


def test_metadata_log_directory_survives_power_loss(disk: MemoryDisk) -> None:
    """A broker does not start without the directory. Later appends of an observer do not sync its parent."""
    logs = open_manager(disk, "/a", "/b")
    logs.open_metadata_log(CONFIG, NOW_MS)
    disk.power_cut(random.Random(0))
    assert disk.is_directory("/a/__cluster_metadata-0")


# --- checkpoints


def test_checkpoint_files_have_kafkas_format(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    logs.create("u-x", 3, TOPIC_ID, CONFIG, NOW_MS)
    append(log, b"a", b"b", b"c")
    log.flush()
    append(log, b"d")
    log.delete_records_before(2)
    logs.write_checkpoints()
    assert disk.read("/a/recovery-point-offset-checkpoint") == b"0\n2\nt 0 3\nu-x 3 0\n"
    assert disk.read("/a/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
    assert disk.read("/a/replication-offset-checkpoint") == b"0\n2\nt 0 4\nu-x 3 0\n"
    again = crash(disk).get("t", 0)
    assert again is not None
    assert (again.log_start_offset, again.recovery_point, again.high_watermark) == (2, 3, 4)


@pytest.mark.parametrize("name", ["recovery-point", "log-start", "replication"])
@pytest.mark.parametrize("content", [b"garbage", b"0\n5\nt 0 1\n", b"9\n0\n", b"0\n1\nt zero 1\n"])
def test_corrupt_checkpoint_takes_its_directory_offline(disk: MemoryDisk, name: str, content: bytes) -> None:
    """As in Kafka. Without log start offsets, deleted records would return."""
    logs = open_manager(disk, "/a", "/b")
    for partition in range(2):
        append(logs.create("t", partition, TOPIC_ID, CONFIG, NOW_MS), b"a")
    logs.shutdown(NOW_MS)
    disk.write(f"/b/{name}-offset-checkpoint", content, sync=False)
    again = open_manager(disk, "/a", "/b")
    assert again.get("t", 1) is None
    failed = again.directories()[1]
    assert failed.offline
    assert f"/b/{name}-offset-checkpoint" in failed.failure  # type: ignore[operator]
    again.shutdown(NOW_MS)
    disk.remove(f"/b/{name}-offset-checkpoint")
    log = open_manager(disk, "/a", "/b").get("t", 1)
    assert log is not None
    assert values(log) == [b"a"]


def test_empty_checkpoints_have_no_entries(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    append(logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS), b"a")
    logs.shutdown(NOW_MS)
    for name in ("recovery-point", "log-start", "replication"):
        disk.write(f"/a/{name}-offset-checkpoint", b"", sync=False)
    log = open_manager(disk).get("t", 0)
    assert log is not None
    assert values(log) == [b"a"]


# --- setting aside


def test_deleted_log_is_renamed_and_removed_after_the_delay(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(log, b"a")
    region = log.read(0, max_bytes=100, up_to_offset=1)
    logs.delete(log, NOW_MS)
    assert logs.get("t", 0) is None
    names = [name for name in disk.names("/a") if name.startswith("t-0")]
    assert len(names) == 1
    assert re.fullmatch(r"t-0\.[0-9a-f]{32}-delete", names[0])
    logs.tick(NOW_MS)
    logs.tick(NOW_MS + 999)
    assert names[0] in disk.names("/a")
    logs.tick(NOW_MS + 1000)
    assert names[0] not in disk.names("/a")
    assert region.read()
    with pytest.raises(ApiError):
        log.read(0, max_bytes=100, up_to_offset=1)
    assert not logs.directories()[0].offline


def test_deleted_log_is_removed_after_a_restart(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    logs.delete(logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS), NOW_MS)
    again = crash(disk)
    assert list(again.logs()) == []
    again.tick(NOW_MS)
    again.tick(NOW_MS + 1000)
    assert not [name for name in disk.names("/a") if name.startswith("t-0")]


def test_recreated_topic_has_no_checkpoints_of_the_deleted_one(disk: MemoryDisk) -> None:
    """The new log's appends count as recoverable once the checkpoints have no entry of the deleted topic."""
    logs, host = open_manager(disk), VirtualHost()
    held = host.hold_work()
    old = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(old, b"a", b"b")
    old.delete_records_before(2)
    logs.write_checkpoints()
    logs.delete(old, NOW_MS)
    new = logs.create("t", 0, Uuid(b"\1" * 16), CONFIG, NOW_MS)
    new.append(batch(b"new"), leader_epoch=0, now_ms=NOW_MS)
    new.commit()
    placed: list[bool] = []
    logs.pending_logs.when_recoverable(new, host, lambda: placed.append(new.is_recoverable))
    for _ in ("written beside", "synced in their places", "named"):
        assert (placed, read_topic_id(disk, "/a/t-0")) == ([], None)
        held.pop(0).deliver()
        host.run_pending()
    assert (placed, held) == ([True], [])
    again = crash(disk).get("t", 0)
    assert again is not None
    assert offsets_and_values(again) == [(0, b"new")]


def test_pending_checkpoint_does_not_affect_a_recreated_topic(disk: MemoryDisk) -> None:
    logs, host = open_manager(disk), VirtualHost()
    old = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(old, b"a", b"b")
    old.delete_records_before(2)
    held = host.hold_work()
    logs.checkpoint(host)
    logs.delete(old, NOW_MS)
    new = logs.create("t", 0, Uuid(b"\1" * 16), CONFIG, NOW_MS)
    append_when_named(logs, new, host, held, b"new")
    again = crash(disk).get("t", 0)
    assert again is not None
    assert offsets_and_values(again) == [(0, b"new")]


def append_when_named(
    logs: LogManager, log: Log, host: VirtualHost, held: list[WorkerTask], value: bytes
) -> None:
    logs.pending_logs.when_recoverable(log, host, lambda: append(log, value))
    while held:
        held.pop(0).deliver()
        host.run_pending()
    assert log.log_end_offset == 1


def test_partially_created_metadata_log_is_completed_when_opened(disk: MemoryDisk) -> None:
    logs = manager(disk)
    logs.lock()
    disk.make_directory("/a/__cluster_metadata-0")
    log = logs.open_metadata_log(CONFIG, NOW_MS)
    assert log.is_recoverable
    assert read_topic_id(disk, log.directory) == log.topic_id


def test_changed_or_missing_checkpoints_are_written_again(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(log, b"a")
    log.high_watermark = 1
    logs.write_checkpoints()
    recovery_points, high_watermarks = f"/a/{RECOVERY_POINTS}", f"/a/{HIGH_WATERMARKS}"
    for path in recovery_points, high_watermarks:
        disk.write(path, b"not ours", sync=True)
    logs.write_checkpoints()
    assert disk.read(recovery_points) == disk.read(high_watermarks) == b"not ours"
    log.flush()
    logs.write_checkpoints()
    assert read_offsets(disk, recovery_points) == {("t", 0): 1}
    assert disk.read(high_watermarks) == b"not ours"
    disk.remove(high_watermarks)
    logs.write_checkpoints()
    assert read_offsets(disk, high_watermarks) == {("t", 0): 1}


def test_stray_log_is_kept_but_not_opened(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(log, b"a")
    logs.mark_stray(log)
    again = crash(disk)
    again.tick(NOW_MS)
    again.tick(NOW_MS + HOUR_MS)
    assert again.get("t", 0) is None
    stray = [name for name in disk.names("/a") if re.fullmatch(r"t-0\.[0-9a-f]{32}-stray", name)]
    assert disk.size(f"/a/{stray[0]}/00000000000000000000.log") > 0


# --- in the course of time


def test_retention_applies_to_all_logs_except_the_metadata_log(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    metadata = logs.open_metadata_log(CONFIG, NOW_MS)
    for log in (metadata, logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)):
        append(log, b"a")
        log.roll(NOW_MS)
        log.config = CONFIG._replace(retention_ms=1)
    assert logs.delete_old_segments(NOW_MS + HOUR_MS) == 1
    assert metadata.segment_base_offsets == [0, 1]


def test_logs_due_for_a_flush(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    rolled = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    eager = logs.create("t", 1, TOPIC_ID, CONFIG._replace(flush_messages=2), NOW_MS)
    patient = logs.create("t", 2, TOPIC_ID, CONFIG, NOW_MS)
    for log in (rolled, eager, patient):
        append(log, b"a", b"b")
    rolled.roll(NOW_MS)
    assert logs.due_for_flush(NOW_MS) == [rolled, eager]
    for log in rolled, eager:
        log.flush()
    assert [log.recovery_point for log in (rolled, eager, patient)] == [2, 2, 0]
    assert logs.due_for_flush(NOW_MS) == []


def test_expired_producers_are_removed(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    log.append(batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    logs.expire_producers(NOW_MS + 23 * HOUR_MS, 0)
    assert len(log.producers) == 1
    logs.expire_producers(NOW_MS + 24 * HOUR_MS, 0)
    assert len(log.producers) == 0


# --- failure


def test_failed_directory_takes_only_its_logs_offline(disk: MemoryDisk) -> None:
    logs = open_manager(disk, "/a", "/b")
    for partition in range(4):
        append(logs.create("t", partition, TOPIC_ID, CONFIG, NOW_MS), b"a")
    failing, fine = logs.logs_in("/a"), logs.logs_in("/b")
    failing[0].append(batch(b"x"), leader_epoch=0, now_ms=NOW_MS)
    disk.fails_after = 0
    with pytest.raises(StorageError):
        failing[0].commit()
    disk.fails_after = None
    assert [directory.offline for directory in logs.directories()] == [True, False]
    assert all(log.failure is not None for log in failing)
    assert all(log.failure is None for log in fine)
    assert logs.create("t", 9, TOPIC_ID, CONFIG, NOW_MS).directory.startswith("/b/")
    logs.shutdown(NOW_MS)
    # A failed log is not in the checkpoint.
    assert not disk.exists("/a/.kafka_cleanshutdown")
    assert disk.exists("/b/.kafka_cleanshutdown")
    again = open_manager(disk, "/a", "/b")
    assert [values(log) for log in again.logs_in("/a")] == [[b"a"], [b"a"]]


def test_no_log_is_created_without_an_online_directory(disk: MemoryDisk) -> None:
    logs = open_manager(disk)
    disk.fails_after = 0
    with pytest.raises(StorageError):
        logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
    disk.fails_after = None
    with pytest.raises(StorageError, match="all log directories"):
        logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)


def run_broker(disk: MemoryDisk, guaranteed: dict[str, int]) -> None:
    """Run a broker: a topic, appends, checkpoints, a deleted topic and a clean shutdown."""
    logs = open_manager(disk)
    log = logs.create("t", 0, TOPIC_ID, CONFIG._replace(segment_bytes=200), NOW_MS)
    for number in range(6):
        append(log, b"%d" % number)
        guaranteed["acknowledged"] = number + 1
        if number == 3:
            log.flush()
            guaranteed["flushed"] = number + 1
            logs.write_checkpoints()
    gone = logs.create("gone", 0, TOPIC_ID, CONFIG, NOW_MS)
    append(gone, b"x")
    logs.delete(gone, NOW_MS)
    logs.tick(NOW_MS)
    logs.tick(NOW_MS + HOUR_MS)
    logs.shutdown(NOW_MS)
    if not disk.exists("/a/.kafka_cleanshutdown"):
        raise StorageError("not shut down cleanly")
    guaranteed["flushed"] = 6


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_crash_at_every_disk_operation_keeps_guaranteed_records(power: bool) -> None:
    for operations in range(2000):
        disk = MemoryDisk()
        disk.fails_after = operations
        guaranteed = {"acknowledged": 0, "flushed": 0}
        try:
            run_broker(disk, guaranteed)
        except (StorageError, ApiError):
            finished = False
        else:
            finished = True
        if power:
            disk.power_cut(random.Random(operations))
        else:
            disk.kill()
        logs = open_manager(disk)
        log = logs.get("t", 0)
        found = [] if log is None else offsets_and_values(log)
        assert all(value == b"%d" % offset for offset, value in found), operations
        offsets = {offset for offset, _ in found}
        assert offsets >= set(range(guaranteed["flushed" if power else "acknowledged"])), operations
        assert power or offsets == set(range(len(offsets)))
        logs.shutdown(NOW_MS)
        if finished:
            return
    pytest.fail("never done")
