"""The jobs `profile` and `windows`, and the audit page, on 20,000 departures with duplicate and late records.

The jobs run in the Python that has PySpark. The driver of `windows` is killed twice.
"""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.brokers import Broker
from interop.pipeline.job_runs import JOB_SECONDS, Jobs, kafka
from interop.pipeline_kills.reading import read_topics
from interop.reference import HERE, spark_python
from interop.scenarios.clients_confluent import consume, consumer_of, producer_of

FLIGHTS = 20_000
PARTITIONS = 4
AGAIN_EVERY = 40
LATE = 25


@pytest.fixture(scope="module")
def flights(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Write departures to the topic `flights`, and return them as a consumer reads them."""
    directory = tmp_path_factory.mktemp("replay")
    replay = {"topic": "flights", "partitions": PARTITIONS, "limit": FLIGHTS, "client": client(broker)}
    assert f"{FLIGHTS} events into flights\n" in jobs_in(directory).run("replay", {"replay": replay})
    consumer = consumer_of(broker, "flights-reader")
    consumer.assign([TopicPartition("flights", partition, 0) for partition in range(PARTITIONS)])
    found = consume(consumer, FLIGHTS)
    consumer.close()
    return found


def client(broker: Broker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap}


def jobs_in(directory: Path) -> Jobs:
    return Jobs(directory, TZ="America/New_York")  # the time zone must have no effect


def make(broker: Broker, topic: str) -> None:
    """Create a topic with one partition that accepts any timestamp."""
    admin = AdminClient(client(broker))
    settings = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(1 << 62)}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)


def send(broker: Broker, topic: str, records: list[dict[str, Any]]) -> None:
    producer = producer_of(broker)
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(30) == 0


def expected() -> dict[str, dict[str, Any]]:
    """Return the expected results, which were computed without Spark."""
    command = [spark_python(), "-m", "interop.pipeline.flights", str(FLIGHTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=HERE.parent)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def latest(broker: Broker, topic: str) -> tuple[dict[str, Any], int]:
    """Return the last value of each key, and the number of records in the topic."""
    records = list(chain.from_iterable(read_topics(broker.bootstrap, [topic]).values()))
    found = {}
    for record in records:
        key, value = json.loads(record.key or b""), json.loads(record.value or b"")
        assert list(key) == ["window_start", "carrier"]
        assert {name: value[name] for name in key} == key
        found[f"{key['window_start']} {key['carrier']}"] = value
    return found, len(records)


def check(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, figures in wanted.items():
        for name, value in figures.items():
            seen = found[key][name]
            assert seen == value or (
                value is not None and seen is not None and math.isclose(seen, value, rel_tol=1e-9)
            ), (key, name, seen, value)


def counted(checkpoint: Path) -> dict[str, int]:
    """Return the counts in the checkpoint of the job `windows`, by name, summed over all micro-batches."""
    found: dict[str, int] = {}
    for path in (checkpoint / "counts").glob("*.json"):
        for name, count in json.loads(path.read_text()).items():
            found[name] = found.get(name, 0) + count
    return found


def steps_in(directory: Path) -> int:
    """Return the number of micro-batches that have a file in this part of the checkpoint."""
    return sum(path.stem.isdigit() for path in directory.glob("*")) if directory.exists() else 0


def test_windows_equal_plain_python_despite_duplicates_and_kills(
    broker: Broker, flights: list[Any], tmp_path: Path
) -> None:
    make(broker, "flights.again")
    jobs = jobs_in(tmp_path)
    flights = sorted(flights, key=lambda message: message.timestamp()[1])
    again = [
        {"key": message.key(), "value": message.value(), "timestamp": message.timestamp()[1]}
        for message in flights[::AGAIN_EVERY]
    ]
    # The job must count each of these invalid events once.
    junk = [{"value": value, "timestamp": 1_357_100_000_000} for value in (b"{torn", b"\xff", b"[1]", b"")]
    send(broker, "flights.again", [*junk, *again])
    checkpoint = tmp_path / "checkpoint"
    tables = {
        "input": kafka(broker, "flights", "flights.again", maxOffsetsPerTrigger=3_000),
        "windows": {
            "topic": "flights.hourly",
            "checkpoint": str(checkpoint),
            "group": "carrier",
            "watermark": "5 days",
            "aggregates": {
                "flights": "count",
                "mean_arrival_delay": "avg:arr_delay",
                "cancelled": "nulls:dep_time",
            },
            "client": client(broker),
        },
    }
    for steps in (1, 3):
        process = jobs.start("windows", tables)
        try:
            deadline = time.monotonic() + JOB_SECONDS
            # Kill the job in the middle of a micro-batch, once the previous micro-batches were counted.
            while steps_in(checkpoint / "counts") < steps or steps_in(checkpoint / "offsets") <= steps:
                assert not process.has_ended, process.tail()
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.end()
    output = jobs.run("windows", tables)
    wanted = expected()
    found, results = latest(broker, "flights.hourly")
    check(found, wanted)
    assert results > len(wanted), "a window was sent whenever it had changed"
    counts = counted(checkpoint)
    assert f"{counts['records']} records, {counts['duplicates']} duplicates" in output
    if "without counts" not in output:
        assert counts["records"] == FLIGHTS + len(again) + len(junk)
        assert counts["duplicates"] == len(again)
        assert counts["not_json"] == len(junk)
        assert counts["late"] == counts["without_time"] == 0
    # An event is late if its window has ended. Late events are counted, but do not change any result.
    send(
        broker,
        "flights.again",
        [
            {
                "key": b"UA1",
                "value": b'{"carrier": "UA", "number": %d}' % number,
                "timestamp": 1_357_050_000_000,
            }
            for number in range(LATE)
        ],
    )
    jobs.run("windows", tables)
    assert counted(checkpoint)["late"] == LATE
    assert latest(broker, "flights.hourly")[0] == found
    # Another run without new records must change nothing.
    before = counted(checkpoint), latest(broker, "flights.hourly")
    jobs.run("windows", tables)
    assert (counted(checkpoint), latest(broker, "flights.hourly")) == before
    changed = {**tables, "windows": {**tables["windows"], "window": "2 hours"}}
    assert "was written with a different window" in jobs.run("windows", changed, status=1)


MIXED: list[dict[str, Any]] = [
    {"key": b"a", "value": b'{"n": 1}', "headers": [("h", b"12"), ("h", b"3"), ("g", None)]},
    {"key": b"a", "value": b'[1, "x"]', "headers": [("h", b"")]},
    {"key": b"a", "value": b'{"n": "torn'},
    {"key": b"b", "value": b"plain text, \xc3\xa9"},
    {"key": b"\x00\x01", "value": b"\xff\xfe\x00"},
    {"key": b"x" * 300, "value": b"\x01\x02"},
    {"value": b"\x00\x00\x00\x00\x07\x02a"},
    {"value": b"\x00\x00\x00\x00\x07"},
    {"value": b"\x00\x00\x00\x01\x00\x02a"},
    {"key": b"a", "value": None},
    {"key": b"a", "value": b""},
]
MIXED_MS = 1_400_000_000_000
FUTURE_MS = 4_000_000_000_000


def figures_of(directory: Path) -> dict[str, Any]:
    report = (directory / "profile.html").read_text()
    assert report.startswith("<!doctype html>")
    assert report.count("<svg") >= 6
    assert "src=" not in report.replace('xlink:href="data:', "")
    return {one["topic"]: one for one in json.loads((directory / "profile.json").read_text())["topics"]}


def test_profile_is_correct_and_the_same_from_every_source(
    broker: Broker, flights: list[Any], tmp_path: Path
) -> None:
    make(broker, "mixed")
    # The third record is 50 s late and the fourth is in the future, so all later records are older than the
    # fourth.
    shifts = {2: -50_000, 3: FUTURE_MS - MIXED_MS}
    send(
        broker,
        "mixed",
        [
            {**record, "partition": 0, "timestamp": MIXED_MS + number * 1000 + shifts.get(number, 0)}
            for number, record in enumerate(MIXED)
        ],
    )
    consumer = consumer_of(broker, "profile-lag")
    consumer.commit(offsets=[TopicPartition("flights", 0, 1000)], asynchronous=False)
    consumer.close()
    directory = str(tmp_path / "archived")
    archive = {"input": kafka(broker, "flights", "mixed"), "archive": {"directory": directory}}
    jobs_in(tmp_path).run("archive", archive)
    files = {"path": str(broker.log_dir), "subscribe": "flights,mixed"}
    sides = {
        "kafka": kafka(broker, "flights", "mixed"),
        "kwire": {"format": "kwire", "options": files},
        "archive": {"format": "archive", "directory": directory},
    }
    seen = {}
    for name, side in sides.items():
        (tmp_path / name).mkdir()
        jobs_in(tmp_path / name).run("profile", {"profile": {}, "side": side})
        seen[name] = figures_of(tmp_path / name)
    groups = seen["kafka"]["flights"].pop("groups")
    [lag] = [group for group in groups if group["group"] == "profile-lag"]
    ends = [0] * PARTITIONS
    for message in flights:
        ends[message.partition()] += 1
    assert lag["partitions"] == {"0": ends[0] - 1000}
    for figures in seen.values():
        of_flights(figures["flights"], flights, ends)
        of_mixed(figures["mixed"])
        for topic in figures.values():
            make_exact(topic)
    assert seen["kafka"] == seen["kwire"] == seen["archive"]


def make_exact(figures: dict[str, Any]) -> None:
    """Remove values that only one profile has, and values that depend on how sketches are merged."""
    for name in ("side", "profiled_at", "groups"):
        figures.pop(name, None)
    figures["keys"].pop("distinct_estimate")
    figures["keys"]["top"] = [one["records"] for one in figures["keys"]["top"]]
    for quantiles in [
        figures["timestamps"]["behind_ms"],
        *(one["quantiles"] for one in figures["sizes"].values()),
    ]:
        for name in ("p50", "p90", "p99"):
            (quantiles or {}).pop(name, None)


def of_flights(found: dict[str, Any], flights: list[Any], ends: list[int]) -> None:
    keys: dict[bytes, int] = {}
    for message in flights:
        keys[message.key()] = keys.get(message.key(), 0) + 1
    sizes = sorted(len(message.value()) for message in flights)
    assert found["records"] == FLIGHTS
    assert [one["records"] for one in found["partitions"]] == ends
    assert sum(point["records"] for point in found["rates"]["points"]) == FLIGHTS
    assert abs(found["keys"]["distinct_estimate"] - len(keys)) <= 0.03 * len(keys)
    # Keys with the same frequency are reported in random order.
    top_keys = [(one["key"].encode(), one["records"]) for one in found["keys"]["top"]]
    assert [count for _, count in top_keys] == sorted(keys.values(), reverse=True)[: len(top_keys)]
    assert all(keys[key] == count for key, count in top_keys)
    assert found["sizes"]["value"]["bytes"] == sum(sizes)
    quantiles = found["sizes"]["value"]["quantiles"]
    assert (quantiles["min"], quantiles["max"]) == (sizes[0], sizes[-1])
    assert abs(quantiles["p50"] - sizes[FLIGHTS // 2]) <= 1
    assert found["headers"]["names"] == [{"name": "origin", "records": FLIGHTS, "share": 1.0}]
    assert found["values"]["kinds"] == [{"kind": "json", "records": FLIGHTS, "share": 1.0}]
    schema = found["values"]["json"]["schema"]
    assert schema["properties"]["carrier"] == {"type": "string"}
    assert schema["properties"]["distance"] == {"type": "integer"}
    assert set(schema["required"]) == json.loads(flights[0].value()).keys()
    assert found["timestamps"]["types"] == {"CreateTime": FLIGHTS}
    assert found["timestamps"]["out_of_order"] == 0


def of_mixed(found: dict[str, Any]) -> None:
    kinds = {one["kind"]: one["records"] for one in found["values"]["kinds"]}
    assert kinds == {"json": 2, "framed": 3, "text": 2, "binary": 2, "tombstone": 1, "empty": 1}
    assert [(one["id"], one["records"]) for one in found["values"]["schema_ids"]] == [(7, 2), (256, 1)]
    assert found["keys"]["without"] == 3
    top = found["keys"]["top"]
    assert (top[0]["key"], top[0]["records"]) == ("a", 5)
    assert {"b", "0x0001"} < {one["key"] for one in top}
    assert sum(one["key"].startswith("long key") for one in top) == 1
    assert sum(one["records"] for one in top) == len(MIXED) - 3
    assert [(one["name"], one["records"]) for one in found["headers"]["names"]] == [("h", 2), ("g", 1)]
    assert found["sizes"]["headers"]["bytes"] == 7
    times = found["timestamps"]
    assert times["from_the_future"] == 1
    assert times["out_of_order"] == 1 + len(MIXED) - 4
    assert times["behind_ms"]["min"] == 49_000
    assert times["behind_ms"]["max"] == FUTURE_MS - MIXED_MS - 1_000
    assert found["tombstones"] == 1


def test_audit_page_lists_the_differences(broker: Broker, flights: list[Any], tmp_path: Path) -> None:
    report = tmp_path / "audit.html"
    less = json.dumps({"flights": dict.fromkeys(map(str, range(1, PARTITIONS)), -1) | {"0": 100}})
    tables = {
        "audit": {"window": "1 day", "report": str(report)},
        "left": kafka(broker, "flights"),
        "right": kafka(broker, "flights", endingOffsets=less),
    }
    jobs = jobs_in(tmp_path)
    output = jobs.run("audit", tables, status=3)
    text = report.read_text()
    differing = sum(line.startswith("flights-0 ") for line in output.splitlines())
    assert differing > 10
    assert f"Audit: {differing} of " in text
    assert "flights-0 2013-01-02 00:00: missing" in text
    assert text.count("<svg") == 1
    del tables["right"]["options"]["endingOffsets"]
    assert f"clean: both sides have the same {FLIGHTS} records" in jobs.run("audit", tables)
    assert "Audit: clean" in report.read_text()
