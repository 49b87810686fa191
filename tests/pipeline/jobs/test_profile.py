"""The parts of a profile that do not need Spark."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kwire.pipeline.config import ConfigError, JobConfig, MissingDependencyError
from kwire.pipeline.jobs.profile import ProfileConfig, command, select_topic, topics_of
from kwire.pipeline.report import profile_statistics as stats
from kwire.pipeline.report.lag import lag_of
from kwire.pipeline.report.order import behind_ms
from kwire.pipeline.report.page import render
from kwire.pipeline.report.profile_page import page_of
from kwire.pipeline.report.schemas import infer
from kwire.pipeline.report.times import END_MS
from kwire.pipeline.sides import Side

KAFKA = {
    "profile": {"report": "out/p.html", "client": {"security.protocol": "PLAINTEXT"}},
    "side": {
        "format": "kafka",
        "options": {
            "kafka.bootstrap.servers": "h:1",
            "kafka.fetch.max.bytes": 5,
            "subscribe": "b, a,b",
            "startingOffsets": '{"a": {"0": 3}, "b": {"0": 4}}',
        },
    },
}


def test_configuration() -> None:
    config = ProfileConfig.of(JobConfig(KAFKA))
    assert topics_of(config.side) == ["a", "b"]
    assert config.statistics_path == Path("out/p.json")
    assert config.client == {"bootstrap.servers": "h:1", "security.protocol": "PLAINTEXT"}
    options = select_topic(config.side, "b").options
    assert options["subscribe"] == "b"
    assert json.loads(options["startingOffsets"]) == {"b": {"0": 4}}
    with pytest.raises(ConfigError, match="name of an HTML page"):
        ProfileConfig.of(JobConfig({**KAFKA, "profile": {"report": "p.json"}}))


def test_a_side_must_name_its_topics() -> None:
    assigned = Side("kwire", {"path": "/d", "assign": '{"t": [0, 2], "u": [1]}'}, None, None)
    assert topics_of(assigned) == ["t", "u"]
    assert json.loads(select_topic(assigned, "t").options["assign"]) == {"t": [0, 2]}
    with pytest.raises(ConfigError, match="needs topic names"):
        topics_of(Side("kafka", {"subscribePattern": "a.*"}, None, None))
    with pytest.raises(ConfigError, match="JSON by topic"):
        topics_of(Side("kafka", {"assign": "a"}, None, None))
    archive = Side("archive", {}, Path("/a"), frozenset({"x", "y"}))
    assert topics_of(archive) == ["x", "y"]
    assert select_topic(archive, "x").topics == frozenset({"x"})


def test_a_schema_is_inferred_from_a_sample() -> None:
    values = [
        {"id": 1, "at": "2013-01-01T05:00:00Z", "tags": ["a"], "where": {"lat": 1.5, "lon": 2}},
        {"id": 2, "at": "2013-01-02T05:00:00Z", "tags": [], "where": {"lat": 2, "lon": 3}, "note": None},
    ]
    guess = infer([*(json.dumps(value).encode() for value in values), b"{torn", b"\xff"])
    assert (guess.sampled, guess.parsed) == (4, 2)
    assert guess.schema == {
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "id": {"type": "integer"},
            "note": {"type": "null"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "lon": {"type": "integer"}},
                "required": ["lat", "lon"],
            },
        },
        "required": ["at", "id", "tags", "where"],
    }
    fields = {field.path: field for field in guess.fields}
    assert list(fields) == ["at", "id", "note", "tags", "tags[]", "where", "where.lat", "where.lon"]
    assert fields["note"].share == 0.5
    assert fields["id"].example == "1"
    assert fields["at"].types == "string (date-time)"


def test_maps_and_deep_values_are_truncated() -> None:
    wide = infer([json.dumps({f"k{number}": 1 for number in range(1000)}).encode()]).schema
    assert len(wide["properties"]) == 200
    assert wide["additionalProperties"] is True
    deep = infer([b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"a":' * 20 + b"1" + b"}" * 20])
    text = json.dumps(deep.schema)
    assert text.count("properties") < 20


def behind(*batches: list[tuple[int, int, int]]) -> list[list[int]]:
    columns = [
        tuple(np.array([row[at] for row in batch], dtype=np.int64) for at in range(3)) for batch in batches
    ]
    return [found.tolist() for found in behind_ms(columns)]  # type: ignore[arg-type]


def test_out_of_order_records_are_measured_within_their_partition() -> None:
    first = [(0, 0, 100), (0, 1, 90), (0, 2, 100), (0, 3, 120), (1, 0, 50), (1, 1, 49)]
    second = [(1, 2, 10), (1, 3, -1), (1, 4, 60), (0, 9, 5)]
    assert behind(first, [], second) == [[0, 10, 0, 0, 0, 1], [], [40, 0, 0, 0]]
    # Decreasing offsets belong to another file.
    assert behind([(0, 5, 100)], [(0, 1, 50), (0, 2, 49)]) == [[0], [0, 1]]


def test_lag() -> None:
    assert lag_of({1: 5, 0: 10, 2: -1001, 7: 3}, {0: 10, 1: 12, 2: 8}) == {0: 0, 1: 7}
    assert lag_of({0: 20}, {0: 3}) == {0: 0}


def test_steps_of_a_rate() -> None:
    hour_ms, year_ms = 3_600_000, 365 * 86_400_000
    assert stats.step_s([]) == 60
    assert stats.step_s([(0, hour_ms), (hour_ms, 2 * hour_ms)]) == 60
    assert stats.step_s([(0, year_ms)]) == 86_400
    assert year_ms * 100 // 1000 // stats.step_s([(0, year_ms * 100)]) <= stats.MAX_RATE_STEPS
    points = [
        {"start": "1970-01-01T00:00:00.000+00:00", "records": 2, "bytes": 20},
        {"start": "1970-01-01T00:03:00.000+00:00", "records": 1, "bytes": 10},
    ]
    assert stats.filled(points, 60) == [
        (datetime.fromtimestamp(60 * at, UTC), records, 10 * records)
        for at, records in enumerate((2, 0, 0, 1))
    ]


def test_size_classes_have_no_gaps() -> None:
    bounds = [stats.size_class(number) for number in range(stats.SIZE_CLASSES)]
    assert bounds[:3] == [(0, 1), (1, 2), (2, 4)]
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    assert bounds[-1] == (1 << 20, None)


@pytest.mark.parametrize(
    ("key_hex", "text"),
    [("414132", "AA2"), ("00FF", "0x00ff"), ("", ""), ("C3A9", "é"), ("#00AB", "long key, hash 00ab")],
)
def test_keys_are_formatted_as_text_or_hexadecimal(key_hex: str, text: str) -> None:
    assert stats.key_text(key_hex) == text


PARTITION = {
    "partition": 0,
    "records": 8,
    "bytes": 80,
    "tombstones": 1,
    "out_of_order": 2,
    "from_the_future": 1,
    "first_offset": 10,
    "last_offset": 19,
    "first_ms": 0,
    "last_ms": 120_000,
    "furthest_behind_ms": 1500,
}
SKETCHED: dict[str, Any] = {
    "records": 10,
    "keys_null": 1,
    "keys_distinct": 3,
    "keys_top": [
        {"item": "3C623E", "count": 6},
        {"item": None, "count": 1},
        {"item": "00FF", "count": 3},
    ],
    "names_top": [
        {"item": '["a","b"]', "count": 4},
        {"item": None, "count": 5},
        {"item": '["a"]', "count": 1},
    ],
    "schema_ids_top": [{"item": "7", "count": 2}, {"item": None, "count": 8}],
    "behind_quantiles": [1, 2, 3, 4, 1500],
    "key_quantiles": [1, 2, 3, 3, 3],
    "value_quantiles": [0, 10, 20, 30, 30],
    "headers_quantiles": None,
    "key_bytes": 20,
    "value_bytes": 100,
    "headers_bytes": 0,
    "key_class_2": 9,
    "value_class_4": 9,
    "kind_json": 7,
    "kind_framed": 2,
    "kind_tombstone": 1,
    "sample": [b'{"n": 1}', bytearray(b'{"n": 2}')],
}


def example(*outside: tuple[int | None, int, int], **sketched: Any) -> dict[str, Any]:
    found = stats.profile_statistics(
        topic="t",
        side="kwire /d",
        now_ms=60_000,
        sketched={**SKETCHED, **sketched},
        partitions=[
            PARTITION,
            {**PARTITION, "partition": 1, "records": 2, "last_ms": None, "first_ms": None},
        ],
        types={0: 10},
        rates=[(0, 7, 70), (120, 3, 30), *outside],
        step_s=60,
        quantiles=(0.0, 0.5, 0.9, 0.99, 1.0),
        top=20,
    )
    found["groups"] = [{"group": "<g>", "state": "stable", "lag": 7, "partitions": {0: 7}}]
    return found


def test_profile_statistics() -> None:
    found = example()
    assert (found["records"], found["bytes"], found["tombstones"]) == (10, 160, 2)
    assert found["sketches_exact"]
    assert found["partitions"][0]["share"] == 0.8
    assert found["partitions"][0]["gaps"] == 2
    assert found["keys"]["top"] == [
        {"key": "<b>", "records": 6, "share": 0.6},
        {"key": "0x00ff", "records": 3, "share": 0.3},
    ]
    assert found["headers"] == {
        "records": 5,
        "share": 0.5,
        "names": [{"name": "a", "records": 5, "share": 0.5}, {"name": "b", "records": 4, "share": 0.4}],
    }
    assert [one["kind"] for one in found["values"]["kinds"]] == ["json", "framed", "tombstone"]
    assert found["values"]["schema_ids"] == [{"id": 7, "records": 2, "share": 0.2}]
    assert found["values"]["json"]["schema"]["properties"] == {"n": {"type": "integer"}}
    assert found["timestamps"]["last"] == "1970-01-01T00:02:00.000+00:00"
    assert found["timestamps"]["behind_ms"]["max"] == 1500
    assert found["sizes"]["value"]["quantiles"] == {"min": 0, "p50": 10, "p90": 20, "p99": 30, "max": 30}
    json.dumps(found)


@pytest.mark.parametrize(
    ("empty", "others", "distinct"), [(0, 3, 3), (5, 3, 4), (5, 0, 1), (5, None, 1), (0, None, 0)]
)
def test_empty_keys_count_as_one_distinct_key(empty: int, others: int | None, distinct: int) -> None:
    keys = example(keys_empty=empty, keys_distinct=others)["keys"]
    assert keys["distinct_estimate"] == distinct


def test_the_page_shows_the_statistics() -> None:
    found = example()
    text = render(page_of([found]))
    for told in ("&lt;b&gt;", "&lt;g&gt;", "0x00ff", "schema id", "1 s 500 ms", "busiest step", "80.0 %"):
        assert told in text, told
    assert "<b>" not in text
    two = render(page_of([found, {**found, "topic": "u", "groups": None, "sketches_exact": False}]))
    assert "u: Keys" in two
    assert "u: Consumer groups" not in two
    assert "Spark repeated a part" in two


def test_timestamps_outside_the_years_1_to_9999_are_counted_but_not_plotted() -> None:
    found = example((None, 4, 40), (END_MS // 1000, 1, 10))
    assert [point["records"] for point in found["rates"]["points"]] == [7, 3]
    assert found["rates"]["records_outside_years_1_to_9999"] == 5
    text = render(page_of([found]))
    assert "5 records with timestamps outside of the years 1 to 9999: not shown" in text
    assert "outside the years" not in render(page_of([example()]))
    assert [stats.iso(time_ms) for time_ms in (None, END_MS - 1, END_MS)] == [
        None,
        "9999-12-31T23:59:59.999+00:00",
        "253402300800000 ms",
    ]


def test_a_topic_without_records_has_a_page() -> None:
    found = stats.profile_statistics(
        topic="t",
        side="s",
        now_ms=0,
        sketched={},
        partitions=[],
        types={},
        rates=[],
        step_s=60,
        quantiles=(0.0, 0.5, 1.0),
        top=5,
    )
    assert "There are no records." in render(page_of([{**found, "groups": []}]))


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4"])
def test_spark_without_the_needed_aggregates_is_reported(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = ModuleType("pyspark")
    pyspark.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "pyspark", pyspark)
    with pytest.raises(
        MissingDependencyError, match=f"needs Spark 4.2 or newer, and this is Spark {version}"
    ):
        command(JobConfig(KAFKA), None)
