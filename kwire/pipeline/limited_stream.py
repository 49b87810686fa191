"""A stream reader of the segment source that limits micro-batches. Its interface is new in Spark 4.2."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kwire.pipeline.readers import SegmentStreamReader
from kwire.pipeline.segments.options import Options
from kwire.pipeline.segments.stream import Offsets, latest_offsets, limit_offsets, micro_batch_starts


class LimitedStreamReader(SegmentStreamReader, SupportsTriggerAvailableNow):
    """A reader to which Spark passes the start offsets and the limit of the next micro-batch."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        super().__init__(options, columns)
        self._last: Offsets | None = None
        """The end offsets of a query with the trigger availableNow; None for other triggers."""

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = latest_offsets(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        found = latest_offsets(self.options) if self._last is None else self._last
        if isinstance(limit, ReadMaxRows):
            return limit_offsets(micro_batch_starts(self.options, start, found), found, limit.max_rows)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return latest_offsets(self.options)
