"""Progress reports of a stream after each micro-batch: a line for people, and metrics.

The metrics are written to a file in Prometheus text format, for the textfile collector of the node exporter.
The file is replaced atomically.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile

from kwire.pipeline.config import ConfigError
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

OFFSETS_BEHIND_METRIC: Final = "maxOffsetsBehindLatest"
"""The name of a source's metric for the lag of its slowest partition, in offsets."""


class Metrics:
    """The metrics of the streams of a session."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if the file cannot be written, because later failures are not reported."""
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"metrics cannot be written to {path}: name a file in an existing, writable directory"
            )
        self._path = path
        self._registry = CollectorRegistry()

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"kwire_pipeline_{name}", documentation, ["query"], registry=self._registry)

        self._batches = Counter(
            "kwire_pipeline_batches", "Completed micro-batches", ["query"], registry=self._registry
        )
        self._records = Counter("kwire_pipeline_records", "Records read", ["query"], registry=self._registry)
        self._input_rate = gauge("input_records_per_second", "Records that arrived per second")
        self._rate = gauge("processed_records_per_second", "Records processed per second")
        self._seconds = gauge("batch_seconds", "Duration of the last micro-batch in seconds")
        self._behind = gauge("offsets_behind", "Offsets that the slowest partition is behind its end")
        self._state = gauge("state_rows", "Rows in the stream's state store")
        self._watermark = gauge("watermark_seconds", "Watermark of event time as a Unix timestamp")
        self._active = gauge("active", "1 while the stream runs, else 0")

    def on_started(self, query: str) -> None:
        self._active.labels(query).set(1)
        self._write()

    def on_terminated(self, query: str) -> None:
        self._active.labels(query).set(0)
        self._write()

    def on_progress(self, query: str, progress: StreamingQueryProgress) -> None:
        self._batches.labels(query).inc()
        self._records.labels(query).inc(progress.numInputRows)
        self._input_rate.labels(query).set(_number(progress.inputRowsPerSecond))
        self._rate.labels(query).set(_number(progress.processedRowsPerSecond))
        self._seconds.labels(query).set(progress.batchDuration / 1000)
        lag = offsets_behind(progress)
        if lag is not None:
            self._behind.labels(query).set(lag)
        if progress.stateOperators:
            self._state.labels(query).set(sum(state.numRowsTotal for state in progress.stateOperators))
        watermark = (progress.eventTime or {}).get("watermark")
        if watermark:
            self._watermark.labels(query).set(datetime.fromisoformat(watermark).timestamp())
        self._write()

    def _write(self) -> None:
        write_to_textfile(str(self._path), self._registry)


MAX_PENDING_BATCHES: Final = 1_000
"""The maximum number of record counts that are kept. A session without a listener never removes them."""
_record_counts: OrderedDict[tuple[str, int], int] = OrderedDict()
_last_started: dict[str, datetime] = {}


def set_record_count(stream: str, batch_id: int, records: int) -> None:
    """Set the record count of a running micro-batch whose records bypass Spark, so that Spark counts none.

    `stream` is Spark's id of the stream.
    """
    _record_counts[stream, batch_id] = records
    if len(_record_counts) > MAX_PENDING_BATCHES:
        _record_counts.popitem(last=False)


def add_record_count(progress: StreamingQueryProgress) -> None:
    """Add to Spark's report the count from `set_record_count` for its micro-batch, and the resulting rates.

    Without such a count, the report is not changed.
    """
    stream = str(progress.id)
    records = _record_counts.pop((stream, progress.batchId), None)
    if records is None:
        return
    began = datetime.fromisoformat(progress.timestamp)
    since_s = (began - _last_started.get(stream, began)).total_seconds()
    _last_started[stream] = began
    progress["numInputRows"] = records
    progress["processedRowsPerSecond"] = records * 1000 / max(1, progress.batchDuration)
    progress["inputRowsPerSecond"] = records / since_s if since_s > 0 else 0.0


def format_progress(name: str, progress: StreamingQueryProgress) -> str:
    """Describe a micro-batch in one line."""
    text = (
        f"{name}: batch {progress.batchId}, {plural(progress.numInputRows, 'record', ',')} in "
        f"{progress.batchDuration / 1000:.1f} s, {_number(progress.processedRowsPerSecond):,.0f} per second"
    )
    lag = offsets_behind(progress)
    return text if lag is None else f"{text}, {plural(lag, 'offset', ',')} behind"


def offsets_behind(progress: StreamingQueryProgress) -> int | None:
    """Return the lag of the slowest partition in offsets, or None if no source reports a lag."""
    found = [
        int(_number(metrics[OFFSETS_BEHIND_METRIC]))
        for metrics in (_metrics_of(source) for source in progress.sources)
        if OFFSETS_BEHIND_METRIC in metrics
    ]
    return max(found, default=None)


def _metrics_of(source: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = source.metrics or {}
    return found


def _number(value: Any) -> float:
    """Convert a number in Spark's reports to a float. NaN, infinite and missing numbers become 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if abs(number) < float("inf") else 0.0
