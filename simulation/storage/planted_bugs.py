"""Planted bugs of storage. Each removes one safeguard, and a test checks that the simulation finds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import kwire.broker.storage.log.recovery as recovery
from kwire.broker.storage import checkpoints
from kwire.broker.storage.cleaner import offset_map
from kwire.broker.storage.cleaner.offset_map import OffsetMap
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.flush import Durability, FlushTicket
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.broker.storage.log.segment import LogSegment
from kwire.testing.disk import MemoryDisk, MemoryFile

SetAttribute = Callable[[Any, str, Any], None]


class PlantedBug(NamedTuple):
    """A removed safeguard."""

    name: str
    plant: Callable[[SetAttribute], None]
    seed: int = 0
    """The seed to try first, because it found this bug before."""


def _do_nothing(*arguments: object, **named: object) -> None:
    return None


def _files_are_not_synced(replace: SetAttribute) -> None:
    replace(MemoryFile, "sync", _do_nothing)


def _directories_are_not_synced(replace: SetAttribute) -> None:
    replace(MemoryDisk, "sync_directory", _do_nothing)


def _flush_syncs_nothing(replace: SetAttribute) -> None:
    replace(FlushTicket, "work", _do_nothing)


def _recovery_ignores_crcs(replace: SetAttribute) -> None:
    replace(recovery, "crc_is_valid", lambda *arguments: True)


def _log_files_are_not_truncated(replace: SetAttribute) -> None:
    original = MemoryFile.truncate

    def truncate(file: MemoryFile, size: int) -> None:
        if not file.path.endswith(".log"):
            original(file, size)

    replace(MemoryFile, "truncate", truncate)


def _recovery_keeps_later_segments(replace: SetAttribute) -> None:
    replace(recovery._LogLoader, "_delete_segments", _do_nothing)


def _truncation_keeps_the_recovery_point(replace: SetAttribute) -> None:
    replace(Durability, "on_truncated", _do_nothing)


def _truncation_writes_no_checkpoint(replace: SetAttribute) -> None:
    replace(Log, "is_recoverable", property(lambda self: self._durability.is_recoverable))


def _operations_reserve_no_descriptors(replace: SetAttribute) -> None:
    replace(MemoryDisk, "reserved", lambda self: nullcontext())


def _indexes_are_not_checked(replace: SetAttribute) -> None:
    replace(recovery._LogLoader, "_check_indexes", _do_nothing)


def _time_index_lacks_its_last_entry(replace: SetAttribute) -> None:
    def become_inactive(segment: LogSegment) -> None:
        segment.index.finish()
        segment.time_index.finish()

    replace(LogSegment, "become_inactive", become_inactive)


def _truncation_keeps_producer_snapshots(replace: SetAttribute) -> None:
    replace(ProducerStateManager, "_remove_snapshot", _do_nothing)


def _replaced_segments_are_not_renamed(replace: SetAttribute) -> None:
    replace(DelayedDeletion, "rename_files", _do_nothing)


def _clean_shutdown_marker_is_not_removed(replace: SetAttribute) -> None:
    import kwire.broker.storage.dirs.log_dir as log_dir

    def read_marker(disk: MemoryDisk, directory: str) -> int | None:
        return 0 if disk.exists(f"{directory}/{checkpoints.CLEAN_SHUTDOWN}") else None

    replace(log_dir, "consume_clean_shutdown", read_marker)


def _full_offset_map_claims_every_record(replace: SetAttribute) -> None:
    original = OffsetMap.add

    def add(self: OffsetMap, data: bytes, at: int, end: int, base: int, count: int, start: int) -> None:
        original(self, data, at, end, base, count, start)
        if self.is_full:
            self.latest_offset = base + count - 1

    replace(OffsetMap, "add", add)


def _cleaner_drops_records_beyond_the_map(replace: SetAttribute) -> None:
    replace(offset_map, "bisect_right", lambda offsets, latest_offset: len(offsets))


def _new_logs_acknowledge_before_their_names_are_synced(replace: SetAttribute) -> None:
    replace(Log, "is_recoverable", property(lambda self: True))
    replace(Durability, "begin_flush", lambda self: self._ticket(closes=False))


PLANTED_BUGS = [
    PlantedBug("files are not synced", _files_are_not_synced),
    PlantedBug("directories are not synced", _directories_are_not_synced, 1),
    PlantedBug("flushes do not sync", _flush_syncs_nothing, 1),
    PlantedBug("recovery ignores CRCs", _recovery_ignores_crcs, 1),
    PlantedBug("log files are not truncated", _log_files_are_not_truncated, seed=2),
    PlantedBug("recovery keeps segments after a truncated one", _recovery_keeps_later_segments, 1),
    PlantedBug("a truncation keeps the recovery point", _truncation_keeps_the_recovery_point, seed=2),
    PlantedBug("a truncation writes no checkpoint", _truncation_writes_no_checkpoint, 176),
    PlantedBug("operations reserve no descriptors", _operations_reserve_no_descriptors, 23),
    PlantedBug("indexes are not checked", _indexes_are_not_checked, 167),
    PlantedBug("the time index lacks its last entry", _time_index_lacks_its_last_entry),
    PlantedBug("a truncation keeps producer snapshots", _truncation_keeps_producer_snapshots, 114),
    PlantedBug("replaced segments are not renamed", _replaced_segments_are_not_renamed, 1),
    PlantedBug("the clean-shutdown marker is not removed", _clean_shutdown_marker_is_not_removed, 5),
    PlantedBug("a full offset map claims every record", _full_offset_map_claims_every_record, 1),
    PlantedBug("the cleaner drops records beyond the map", _cleaner_drops_records_beyond_the_map, 486),
    PlantedBug(
        "new logs acknowledge before their names are synced",
        _new_logs_acknowledge_before_their_names_are_synced,
        119,
    ),
]
