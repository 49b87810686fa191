"""Metrics of the runs of the log cleaner, as in Kafka's LogCleaner and LogCleanerManager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.storage.cleaner.job import Done, Failed

if TYPE_CHECKING:
    from kwire.broker.storage.log.log import Log


class CleanerMetrics:
    """The metrics of one broker's log cleaner since it started. Times are monotonic, in ms."""

    def __init__(self, now_ms: int) -> None:
        self.last_run_ms = now_ms
        """The last time at which the cleaner looked for a log to clean."""
        self.max_dirty_ratio = 0.0
        """The highest dirty ratio of a log at that time, from 0 to 1."""
        self.recopy_ratio = 0.0
        """The share of the bytes that the last completed cleaning has kept, from 0 to 1."""
        self.last_clean_ms = 0
        """The duration of the last completed cleaning."""
        self._began_ms: dict[Log, int] = {}

    def began(self, log: Log, now_ms: int) -> None:
        """Record the start of a cleaning."""
        self._began_ms[log] = now_ms

    def ended(self, log: Log, outcome: Done | Failed | None, now_ms: int) -> None:
        """Record the end of a cleaning."""
        began_ms = self._began_ms.pop(log, now_ms)
        if isinstance(outcome, Done):
            self.last_clean_ms = now_ms - began_ms
            self.recopy_ratio = outcome.bytes_kept / max(1, outcome.bytes_before)
