"""Windows, as far as they go without Spark: configuration, whose a checkpoint is, counts of its steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ConfigError, JobConfig
from pipeline.jobs import windows
from pipeline.jobs.windows import Aggregate, Counts, WindowsConfig, claim, note, total


def config(tmp_path: Path, **changes: Any) -> WindowsConfig:
    table = {
        "topic": "flights.hourly",
        "checkpoint": str(tmp_path / "checkpoint"),
        "group": "carrier, origin.airport",
        "id": "flight,carrier",
        "aggregates": {"flights": "count", "mean": "avg:arr_delay", "cancelled": "nulls:dep_time"},
        "client": {"bootstrap.servers": "h:1"},
        **changes,
    }
    return WindowsConfig.of(JobConfig({"input": {"options": {"subscribe": "flights"}}, "windows": table}))


def test_configuration(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert found.group == ("carrier", "origin.airport")
    assert found.aggregates == (
        Aggregate("flights", "count", ""),
        Aggregate("mean", "avg", "arr_delay"),
        Aggregate("cancelled", "nulls", "dep_time"),
    )
    assert found.fields == ["arr_delay", "carrier", "dep_time", "flight", "origin.airport"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aggregates": {}}, r"windows\.aggregates is empty"),
        ({"aggregates": {"a": "median:b"}}, r"windows\.aggregates\.a is count or one of"),
        ({"aggregates": {"a": "sum"}}, r"with a field, like sum:distance, not 'sum'"),
        ({"aggregates": {"carrier": "count"}}, "'carrier' twice"),
        ({"group": "window_start"}, "'window_start' twice"),
        ({"window": "1 fortnight"}, r"windows\.window is a length of time"),
        ({"watermark": ""}, r"windows\.watermark is a length of time"),
        ({"slide": "soon"}, r"windows\.slide is a length of time"),
        ({"emit": "often"}, r"windows\.emit is one of update, final"),
        ({"client": {}}, r"bootstrap\.servers"),
        ({"speed": 1}, r"there is no windows\.speed"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(tmp_path, **changes)


def test_a_checkpoint_is_for_one_set_of_windows(tmp_path: Path) -> None:
    claim(config(tmp_path))
    claim(config(tmp_path, trigger="10 seconds", partitions=9))
    with pytest.raises(ConfigError, match="with another group, watermark"):
        claim(config(tmp_path, group="carrier", watermark="3 hours"))
    # A slide as long as the window is none.
    claim(config(tmp_path, slide="1 hour"))


def test_the_checkpoint_of_another_job_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "x"}')
    with pytest.raises(ConfigError, match="is another job's"):
        claim(config(tmp_path))
    assert not (tmp_path / "checkpoint" / windows.PLAN).exists()


def progress(batch: int, records: int, *, duplicates: int = 0, late: int = 0) -> dict[str, Any]:
    """As Spark tells it, shortened."""
    return {
        "batchId": batch,
        "stateOperators": [
            {
                "operatorName": "stateStoreSave",
                "numRowsDroppedByWatermark": 0,
                "customMetrics": {"loadedMapCacheHitCount": 4},
            },
            {
                "operatorName": "dedupeWithinWatermark",
                "numRowsDroppedByWatermark": late,
                "customMetrics": {"numDroppedDuplicateRows": duplicates},
            },
        ],
        "observedMetrics": {
            "read": {"records": records, "not_json": 1, "without_time": 0},
            "sent": {"results": 5},
        },
    }


def commit(checkpoint: Path, *steps: int) -> None:
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    for step in steps:
        (checkpoint / "commits" / str(step)).write_text("v1\n{}")
        (checkpoint / "commits" / f".{step}.crc").write_text("")


def test_counts_are_those_of_the_steps_that_came_to_their_end(tmp_path: Path) -> None:
    assert total(tmp_path) == (Counts(), 0, [])
    for step in (0, 1, 3):
        note(tmp_path, progress(step, 100, duplicates=step, late=1))
    note(tmp_path, {"batchId": 9, "stateOperators": []})
    commit(tmp_path, 0, 1, 2)
    # The third was killed after its end; the fourth has been counted, but its end is not written down yet.
    assert total(tmp_path) == (Counts(200, 2, 0, 1, 2, 10), 3, [2])
    note(tmp_path, progress(3, 70, duplicates=2))
    commit(tmp_path, 3)
    assert total(tmp_path) == (Counts(270, 3, 0, 3, 2, 15), 4, [2])


def test_steps_that_spark_has_forgotten_still_count(tmp_path: Path) -> None:
    for step in range(5):
        note(tmp_path, progress(step, 10))
    commit(tmp_path, 3, 4)
    found = total(tmp_path)
    assert (found.counts.records, found.steps, found.uncounted) == (50, 5, [])


def test_a_note_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    note(tmp_path, progress(0, 10))
    (tmp_path / windows.COUNTS / "0.json").write_text(json.dumps({"flights": 1}))
    with pytest.raises(ConfigError, match=r"0\.json holds no counts"):
        total(tmp_path)
