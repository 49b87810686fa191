"""Progress reports and metrics of a stream."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kwire.pipeline.config import ConfigError
from kwire.pipeline.progress import (
    MAX_PENDING_BATCHES,
    Metrics,
    add_record_count,
    format_progress,
    offsets_behind,
    set_record_count,
)


def progress(**changes: Any) -> Any:
    source = SimpleNamespace(metrics={"maxOffsetsBehindLatest": "1200", "minOffsetsBehindLatest": "0"})
    found = {
        "batchId": 7,
        "numInputRows": 40_000,
        "batchDuration": 3_210,
        "inputRowsPerSecond": 12_000.0,
        "processedRowsPerSecond": 12_461.0,
        "sources": [source],
        "stateOperators": [SimpleNamespace(numRowsTotal=30), SimpleNamespace(numRowsTotal=12)],
        "eventTime": {"watermark": "2013-01-31T10:00:00.000Z"},
    }
    return SimpleNamespace(**{**found, **changes})


def values(path: Path) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
        if sample.labels == {"query": "archive"} and not sample.name.endswith("_created")
    }


def test_a_batch_is_reported_in_one_line() -> None:
    assert format_progress("archive", progress()) == (
        "archive: batch 7, 40,000 records in 3.2 s, 12,461 per second, 1,200 offsets behind"
    )
    assert (
        format_progress("archive", progress(sources=[]))
        == "archive: batch 7, 40,000 records in 3.2 s, 12,461 per second"
    )


def test_values_that_spark_does_not_report_are_omitted() -> None:
    assert offsets_behind(progress(sources=[SimpleNamespace(metrics=None)])) is None
    assert "0 per second" in format_progress("archive", progress(processedRowsPerSecond=float("nan")))
    assert "0 per second" in format_progress("archive", progress(processedRowsPerSecond=None))


def test_metrics_are_a_prometheus_text_file(tmp_path: Path) -> None:
    path = tmp_path / "archive.prom"
    metrics = Metrics(path)
    metrics.on_started("archive")
    assert values(path)["kwire_pipeline_active"] == 1
    metrics.on_progress("archive", progress())
    metrics.on_progress("archive", progress(inputRowsPerSecond=float("inf"), sources=[], eventTime={}))
    metrics.on_terminated("archive")
    assert values(path) == {
        "kwire_pipeline_active": 0,
        "kwire_pipeline_batches_total": 2,
        "kwire_pipeline_records_total": 80_000,
        "kwire_pipeline_input_records_per_second": 0,
        "kwire_pipeline_processed_records_per_second": 12_461,
        "kwire_pipeline_batch_seconds": 3.21,
        "kwire_pipeline_offsets_behind": 1_200,
        "kwire_pipeline_state_rows": 42,
        "kwire_pipeline_watermark_seconds": 1359626400,
    }


def test_an_unwritable_metrics_file_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere" / "metrics.prom", tmp_path / "file" / "metrics.prom", tmp_path):
        with pytest.raises(ConfigError, match=f"metrics cannot be written to {path}: name a file"):
            Metrics(path)


class Told(dict[str, Any]):
    """A progress report of a batch without records in Spark's plan."""

    batchDuration = 500

    def __init__(
        self, batch_id: int, timestamp: str = "2026-01-31T10:00:00.000Z", stream: str = "a-stream"
    ) -> None:
        super().__init__(numInputRows=0)
        self.id = stream
        self.batchId = batch_id
        self.timestamp = timestamp


def test_records_outside_of_spark_plans_are_counted() -> None:
    untold = Told(0)
    add_record_count(untold)
    assert untold == {"numInputRows": 0}
    for batch_id, input_rate in ((1, 0.0), (2, 2000.0)):
        set_record_count("a-stream", batch_id, 4000)
        told = Told(batch_id, f"2026-01-31T10:00:0{2 * batch_id}.000Z")
        add_record_count(told)
        assert told == {
            "numInputRows": 4000,
            "processedRowsPerSecond": 8000.0,
            "inputRowsPerSecond": input_rate,
        }


def test_counts_without_a_listener_are_dropped() -> None:
    for batch_id in range(MAX_PENDING_BATCHES + 1):
        set_record_count("without a listener", batch_id, 7)
    batches = [Told(batch_id, stream="without a listener") for batch_id in (0, 1, MAX_PENDING_BATCHES)]
    for told in batches:
        add_record_count(told)
    assert [told["numInputRows"] for told in batches] == [0, 7, 7]
