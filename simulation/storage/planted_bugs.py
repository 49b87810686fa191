"""Bugs made by hand, for the test that the simulation finds them. Each takes one safeguard out of storage."""

from __future__ import annotations

from collections.abc import Callable
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
    name: str
    plant: Callable[[SetAttribute], None]
    seed: int = 0
    """The one to try first: it found this bug once."""


def _nothing(*arguments: object, **named: object) -> None:
    return None


def _files_are_not_synced(replace: SetAttribute) -> None:
    replace(MemoryFile, "sync", _nothing)


def _directories_are_not_synced(replace: SetAttribute) -> None:
    replace(MemoryDisk, "sync_directory", _nothing)


def _flush_syncs_nothing(replace: SetAttribute) -> None:
    replace(FlushTicket, "work", _nothing)


def _crcs_are_ignored(replace: SetAttribute) -> None:
    replace(recovery, "crc_is_valid", lambda *arguments: True)


def _recovery_cuts_nothing(replace: SetAttribute) -> None:
    original = MemoryFile.truncate

    def truncate(file: MemoryFile, size: int) -> None:
        if not file.path.endswith(".log"):
            original(file, size)

    replace(MemoryFile, "truncate", truncate)


def _later_segments_stay(replace: SetAttribute) -> None:
    replace(recovery._LogLoader, "_delete_segments", _nothing)


def _truncation_keeps_the_recovery_point(replace: SetAttribute) -> None:
    replace(Durability, "on_truncated", _nothing)


def _indexes_are_not_rebuilt(replace: SetAttribute) -> None:
    replace(recovery._LogLoader, "_check_indexes", _nothing)


def _time_index_forgets_its_last_entry(replace: SetAttribute) -> None:
    def become_inactive(segment: LogSegment) -> None:
        segment.index.finish()
        segment.time_index.finish()

    replace(LogSegment, "become_inactive", become_inactive)


def _snapshots_stay_after_truncation(replace: SetAttribute) -> None:
    replace(ProducerStateManager, "_remove_snapshot", _nothing)


def _old_segments_stay_beside_the_new(replace: SetAttribute) -> None:
    replace(DelayedDeletion, "rename_files", _nothing)


def _the_marker_stays(replace: SetAttribute) -> None:
    import kwire.broker.storage.dirs.log_dir as log_dir

    def look(disk: MemoryDisk, directory: str) -> int | None:
        return 0 if disk.exists(f"{directory}/{checkpoints.CLEAN_SHUTDOWN}") else None

    replace(log_dir, "consume_clean_shutdown", look)


def _a_full_map_claims_everything(replace: SetAttribute) -> None:
    original = OffsetMap.add

    def add(self: OffsetMap, data: bytes, at: int, end: int, base: int, count: int, start: int) -> None:
        original(self, data, at, end, base, count, start)
        if self.is_full:
            self.latest_offset = base + count - 1

    replace(OffsetMap, "add", add)


def _what_the_map_does_not_know_goes(replace: SetAttribute) -> None:
    replace(offset_map, "bisect_right", lambda offsets, latest_offset: len(offsets))


def _logs_are_promised_of_before_they_have_names(replace: SetAttribute) -> None:
    replace(Log, "is_recoverable", property(lambda self: True))
    replace(Durability, "begin_flush", lambda self: self._ticket(closes=False))


PLANTED_BUGS = [
    PlantedBug("files are not synced", _files_are_not_synced),
    PlantedBug("directories are not synced", _directories_are_not_synced, 1),
    PlantedBug("a flush syncs nothing", _flush_syncs_nothing, 1),
    PlantedBug("recovery ignores CRCs", _crcs_are_ignored, 1),
    PlantedBug("log files are not truncated", _recovery_cuts_nothing, seed=2),
    PlantedBug("segments after a cut stay", _later_segments_stay, 1),
    PlantedBug("a truncation keeps the recovery point", _truncation_keeps_the_recovery_point, seed=2),
    PlantedBug("indexes are not checked", _indexes_are_not_rebuilt, 140),
    PlantedBug("the time index lacks its last entry", _time_index_forgets_its_last_entry),
    PlantedBug("snapshots stay after a truncation", _snapshots_stay_after_truncation, 71),
    PlantedBug("old segments stay beside the new", _old_segments_stay_beside_the_new, 1),
    PlantedBug("the marker of a clean shutdown stays", _the_marker_stays, 5),
    PlantedBug("a full offset map claims everything", _a_full_map_claims_everything, 1),
    PlantedBug("records beyond the map are dropped", _what_the_map_does_not_know_goes, 486),
    PlantedBug(
        "logs are promised of before they have names", _logs_are_promised_of_before_they_have_names, 119
    ),
]
