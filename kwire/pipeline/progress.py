"""What a running stream tells after each of its batches: a line for people, and metrics for a collector.

The metrics are a file in Prometheus' text format, replaced as a whole, as the
textfile collector of the node exporter reads it.
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

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

OFFSETS_BEHIND_METRIC: Final = "maxOffsetsBehindLatest"
"""Spark's Kafka source tells it of the partition that is most behind, and so do ours."""


class Metrics:
    """What a collector gets to know of the streams of one session."""

    def __init__(self, path: Path) -> None:
        """ConfigError where nothing can be written there, which nobody would be told of later."""
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"metrics cannot be written to {path}: name a file in a directory that is there"
            )
        self._path = path
        self._registry = CollectorRegistry()

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"kwire_pipeline_{name}", documentation, ["query"], registry=self._registry)

        self._batches = Counter(
            "kwire_pipeline_batches", "Batches that are done", ["query"], registry=self._registry
        )
        self._records = Counter(
            "kwire_pipeline_records", "Records that came in", ["query"], registry=self._registry
        )
        self._input_rate = gauge("input_records_per_second", "Records that come in each second")
        self._rate = gauge("processed_records_per_second", "Records that are dealt with each second")
        self._seconds = gauge("batch_seconds", "How long the last batch took")
        self._behind = gauge("offsets_behind", "How far the partition that is most behind has to go")
        self._state = gauge("state_rows", "What the stream remembers")
        self._watermark = gauge("watermark_seconds", "Events before this time are late")
        self._active = gauge("active", "Whether the stream runs")

    def on_started(self, query: str) -> None:
        """A stream runs."""
        self._active.labels(query).set(1)
        self._write()

    def on_terminated(self, query: str) -> None:
        """It does not any more."""
        self._active.labels(query).set(0)
        self._write()

    def on_progress(self, query: str, progress: StreamingQueryProgress) -> None:
        """A batch is done."""
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
"""So many a listener may be late by; where there is none, nobody ever asks for a batch again."""
_record_counts: OrderedDict[tuple[str, int], int] = OrderedDict()
_last_started: dict[str, datetime] = {}


def set_record_count(stream: str, batch_id: int, records: int) -> None:
    """Tell how many records a batch has that Spark's own plan does not see, before it is done."""
    _record_counts[stream, batch_id] = records
    if len(_record_counts) > MAX_PENDING_BATCHES:
        _record_counts.popitem(last=False)


def add_record_count(progress: StreamingQueryProgress) -> None:
    """Put in how many records there were, where that was told, and the rates that follow from it."""
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
    """One batch, for people."""
    text = (
        f"{name}: batch {progress.batchId}, {progress.numInputRows:,} records in "
        f"{progress.batchDuration / 1000:.1f} s, {_number(progress.processedRowsPerSecond):,.0f} a second"
    )
    lag = offsets_behind(progress)
    return text if lag is None else f"{text}, {lag:,} behind"


def offsets_behind(progress: StreamingQueryProgress) -> int | None:
    """How many offsets the partition that is most behind has to go; None where no source knows."""
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
    """What may be NaN, infinite or missing in Spark's reports is 0 here."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if abs(number) < float("inf") else 0.0
