"""What a worker is told, and what it tells: lines of JSON between the broker and the process that cleans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kwire.wire.named_tuple import NamedTuple


class Job(NamedTuple):
    """One log to be cleaned, up to an offset."""

    directory: str
    segments: list[tuple[int, int]]
    """Base offset and size of each segment, oldest first. Those from `upper_bound_offset` on stay as they
    are: only their transaction indexes are read."""
    log_start_offset: int
    first_dirty_offset: int
    upper_bound_offset: int
    """Where the first segment starts that is not cleaned."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """How much memory the keys may take."""
    read_bytes: int
    """How much is read at once."""
    bytes_per_second: float
    last_records: Sequence[tuple[int, int | None, int]] = ()
    """Producer id, where its last data ends (if there is any), and its epoch."""
    scan_backward: bool = True
    """Whether it is worth trying to read the keys from the end of the log."""

    def to_line(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """The job that `line` made."""
        return cls(**json.loads(line))


class Cleaned(NamedTuple):
    """A segment is complete, under names that end in `.cleaned`, to take the place of others."""

    base_offset: int
    replaced: list[int]
    """The base offsets of those."""
    size_bytes: int
    max_timestamp: int
    offset_of_max_timestamp: int


class Done(NamedTuple):
    """All of the log is cleaned up to an offset."""

    end_offset: int
    bytes_before: int
    """Of the segments that were looked through for what may go."""
    bytes_kept: int
    """What is left of them, written anew or not."""
    records_read: int
    records_kept: int
    keys: int
    scan_backward: bool = False
    """Whether they were read from the end of the log."""


class Failed(NamedTuple):
    """The rest of the log could not be cleaned."""

    reason: str
    is_permanent: bool
    """Whether the log itself is damaged, so that trying again would not help."""
    is_disk_error: bool = False
    """Whether the disk failed: it is full, say, or does not give what was written."""


Report = Cleaned | Done | Failed
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Cleaned, Done, Failed)}


def report_line(report: Report) -> str:
    """A report as the worker prints it."""
    return json.dumps([type(report).__name__, *report], separators=(",", ":"))


def report_from_line(line: str | bytes) -> Report:
    """The report that `report_line` made; for a line that is none, what went wrong."""
    try:
        kind, *fields = json.loads(line)
        report: Report = _KINDS[kind](*fields)
    except (ValueError, KeyError, TypeError):
        return Failed(f"the worker said {line!r}" if line else "the worker ended early", is_permanent=False)
    return report
