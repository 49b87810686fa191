"""The protocol between the broker and a worker process: jobs and reports, each one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kwire.wire.named_tuple import NamedTuple


class Job(NamedTuple):
    """The cleaning of one log up to an offset."""

    directory: str
    segments: list[tuple[int, int]]
    """Base offset and size of each segment, oldest first. Segments from `upper_bound_offset` on are not
    cleaned; only their transaction indexes are read."""
    log_start_offset: int
    first_dirty_offset: int
    upper_bound_offset: int
    """The base offset of the first segment that is not cleaned."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """The memory limit for keys, in bytes."""
    read_bytes: int
    """The size of a read in bytes."""
    bytes_per_second: float
    last_records: Sequence[tuple[int, int | None, int]] = ()
    """Producer id, last data offset (None if there is none) and epoch of each active producer."""
    scan_backward: bool = True
    """Whether to try a backward scan for the keys."""

    def to_line(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Parse the result of `to_line`."""
        return cls(**json.loads(line))


class Cleaned(NamedTuple):
    """A complete `.cleaned` segment, which replaces one or more old segments."""

    base_offset: int
    replaced: list[int]
    """The base offsets of the replaced segments."""
    size_bytes: int
    max_timestamp: int
    offset_of_max_timestamp: int


class Done(NamedTuple):
    """The end of a cleaning. Records before `end_offset` are clean."""

    end_offset: int
    bytes_before: int
    """The size of all segments that were read to be rewritten, in bytes."""
    bytes_kept: int
    """The size of the batches that remain, in new or unchanged segments, in bytes."""
    records_read: int
    records_kept: int
    keys: int
    """The number of different keys that were read."""
    scan_backward: bool = False
    """Whether the keys were read by a backward scan."""


class Failed(NamedTuple):
    """The end of a cleaning that has failed."""

    reason: str
    is_permanent: bool
    """Whether the log is damaged, so that another attempt would fail too."""
    is_disk_error: bool = False
    """Whether the disk has failed or is full."""


Report = Cleaned | Done | Failed
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Cleaned, Done, Failed)}


def report_line(report: Report) -> str:
    """Return a report as a line of JSON."""
    return json.dumps([type(report).__name__, *report], separators=(",", ":"))


def report_from_line(line: str | bytes) -> Report:
    """Parse the result of `report_line`. Any other line is a Failed report."""
    try:
        kind, *fields = json.loads(line)
        report: Report = _KINDS[kind](*fields)
    except (ValueError, KeyError, TypeError):
        reason = f"the cleaner process wrote {line!r}" if line else "the cleaner process exited early"
        return Failed(reason, is_permanent=False)
    return report
