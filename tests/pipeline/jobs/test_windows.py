"""The parts of the windows job that do not need Spark."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kwire.pipeline.client_settings import librdkafka_settings
from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.jobs import windows
from kwire.pipeline.jobs.windows import (
    Aggregate,
    Counts,
    WindowsConfig,
    claim_checkpoint,
    path_of,
    record_counts,
    total,
)
from kwire.testing.tls import Certificates, Tls


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


def test_librdkafka_gets_the_stores_of_the_client(tmp_path: Path) -> None:
    given = Certificates(Tls()).client("windows", None)
    client = {"bootstrap.servers": "h:1", "security.protocol": "SSL", **given.java()}
    found = config(tmp_path, client=client)
    assert found.client == client, "Spark's sink is a Java client"
    assert found.admin_client == librdkafka_settings("windows.client", client)
    assert found.admin_client["ssl.ca.pem"] == given.authority


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aggregates": {}}, r"windows\.aggregates is empty"),
        ({"aggregates": {"a": "median:b"}}, r"windows\.aggregates\.a must be count, or one of"),
        ({"aggregates": {"a": "sum"}}, r"with a field, like sum:distance, not 'sum'"),
        ({"aggregates": {"carrier": "count"}}, "two fields 'carrier'"),
        ({"group": "window_start"}, "two fields 'window_start'"),
        ({"window": "1 fortnight"}, r"windows\.window must be an interval"),
        ({"watermark": ""}, r"windows\.watermark must be an interval"),
        ({"window": "0 seconds"}, r"windows\.window must be positive and at most 10,000 years"),
        ({"slide": "0 hours"}, r"windows\.slide must be positive"),
        ({"slide": "2 hours"}, r"windows\.slide must be at most windows\.window \(1 hour\), not 2 hours"),
        ({"window": "600000 weeks"}, r"at most 10,000 years, not '600000 weeks'"),
        ({"watermark": "9" * 30 + " weeks"}, r"windows\.watermark must be at most 10,000 years"),
        ({"trigger": "10 secs please"}, r"windows\.trigger must be availableNow or an interval"),
        ({"group": 'it\'s "it"'}, "both kinds of quotes"),
        ({"ahead": "a bit"}, r"windows\.ahead must be an interval"),
        ({"slide": "soon"}, r"windows\.slide must be an interval"),
        ({"emit": "often"}, r"windows\.emit must be one of update, final"),
        ({"client": {}}, r"bootstrap\.servers"),
        ({"speed": 1}, r"unknown key windows\.speed"),
    ],
)
def test_a_configuration_error_is_named(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(tmp_path, **changes)


def test_slides_are_no_longer_than_windows(tmp_path: Path) -> None:
    assert config(tmp_path, window="1 day", slide="24 hours", watermark="0 seconds").slide == "24 hours"


def test_fields_of_any_name_have_a_path() -> None:
    assert path_of("origin.airport") == "$['origin']['airport']"
    assert path_of("it's.a b") == "$[\"it's\"]['a b']"


@pytest.mark.parametrize(
    ("text", "is_zoneless", "is_dated"),
    [
        ("2013-01-31T05:06:07.008", True, True),
        (" 2013-01-31 05:06 ", True, True),
        ("2013-01-31", True, True),
        ("2013", True, False),
        ("2013-01-31T05:06:07Z", False, True),
        ("2013-01-31T05:06:07-05:00", False, True),
        ("2013-01-31 05:06:07 Europe/Berlin", False, True),
        ("+294247-01-10T04:00:54.775807Z", False, True),
        ("now", False, False),
        ("05:06", False, False),
        ("-0001-01-01T00:00:00Z", False, False),
    ],
)
def test_event_times_with_and_without_zone_match_their_patterns(
    text: str, is_zoneless: bool, is_dated: bool
) -> None:
    assert bool(re.search(windows.ZONELESS, text)) == is_zoneless
    assert bool(re.search(windows.DATED, text)) == is_dated


def test_event_times_are_limited_to_the_years_1_to_9999() -> None:
    assert datetime.fromtimestamp(windows.FIRST_S, UTC) == datetime(1, 1, 1, tzinfo=UTC)
    assert datetime.fromtimestamp(windows.END_S - 1, UTC) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_checkpoint_with_another_configuration_is_refused(tmp_path: Path) -> None:
    claim_checkpoint(config(tmp_path))
    claim_checkpoint(config(tmp_path, trigger="10 seconds", partitions=9))
    with pytest.raises(ConfigError, match="with a different group, watermark"):
        claim_checkpoint(config(tmp_path, group="carrier", watermark="3 hours"))
    # A slide of the window's length is the default.
    claim_checkpoint(config(tmp_path, slide="1 hour"))


def test_the_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "x"}')
    with pytest.raises(ConfigError, match="belongs to another job"):
        claim_checkpoint(config(tmp_path))
    assert not (tmp_path / "checkpoint" / windows.PLAN).exists()


def progress(batch: int, records: int, *, duplicates: int = 0, late: int = 0) -> dict[str, Any]:
    """Return a shortened progress report of Spark."""
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


def test_counts_include_completed_steps_only(tmp_path: Path) -> None:
    assert total(tmp_path) == (Counts(), 0, [])
    for step in (0, 1, 3):
        record_counts(tmp_path, progress(step, 100, duplicates=step, late=1))
    record_counts(tmp_path, {"batchId": 9, "stateOperators": []})
    commit(tmp_path, 0, 1, 2)
    # The third step was killed after its end. The fourth one has counts, but Spark has not recorded its end.
    assert total(tmp_path) == (Counts(200, 2, 0, 1, 2, 10), 3, [2])
    record_counts(tmp_path, progress(3, 70, duplicates=2))
    commit(tmp_path, 3)
    assert total(tmp_path) == (Counts(270, 3, 0, 3, 2, 15), 4, [2])


def test_counts_include_steps_that_spark_has_deleted(tmp_path: Path) -> None:
    for step in range(5):
        record_counts(tmp_path, progress(step, 10))
    commit(tmp_path, 3, 4)
    found = total(tmp_path)
    assert (found.counts.records, found.micro_batches, found.uncounted) == (50, 5, [])


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    record_counts(tmp_path, progress(0, 10))
    (tmp_path / windows.COUNTS / "0.json").write_text(json.dumps({"flights": 1}))
    with pytest.raises(ConfigError, match=r"0\.json does not contain counts"):
        total(tmp_path)
