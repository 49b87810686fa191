"""The job `windows` with unusual event times: missing, out of Spark's range, before 1970, or in the future.

One test checks that the job rejects recreated topics, and topics that contain the results of the job.
"""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from interop.brokers import Broker
from interop.pipeline.job_runs import Jobs, kafka
from interop.scenarios.clients_confluent import consume, consumer_of, make_topic, producer_of, until

DAY = "2023-11-14T00:00:00.000Z"
GOOD_AND_BAD = {
    "epoch_ms": (
        ["1700000000000", "1699920000000"],
        ["9223372036854775807", "-9223372036854775808", "1700000000000000000", "1e400", '"x"', "null"],
    ),
    "epoch_s": (["1700000000.5", "1699920000"], ["1e300", "-1e300", '"NaN"', "253402300800"]),
    "iso": (
        ['"2023-11-14T22:13:20Z"', '"2023-11-15T07:13:20+09:00"', '"2023-11-14T00:00:00"'],
        ['"+294247-01-10T04:00:54.775807Z"', '"+999999-01-01"', '"now"', '"2023-13-01"'],
    ),
}


@pytest.mark.parametrize("format_", GOOD_AND_BAD)
def test_invalid_event_times_are_counted_and_skipped(broker: Broker, format_: str, tmp_path: Path) -> None:
    good, bad = GOOD_AND_BAD[format_]
    name = f"times-{format_}"
    send(broker, name, *bad, *good)
    output = Jobs(tmp_path).run("windows", windows(broker, name, tmp_path, event_time_format=format_))
    assert f"{len(bad)} " in output.splitlines()[-1], output
    assert counted(broker, name, 1) == {DAY: len(good)}


def test_events_before_1970_get_their_windows(broker: Broker, tmp_path: Path) -> None:
    name, first = "times-old", datetime(1, 1, 2, tzinfo=UTC)
    moments = [first, *(datetime(1969, 12, 31, hour, 59, 59, 999_000, tzinfo=UTC) for hour in (0, 9, 23))]
    moments += [datetime(1970, 1, 1, tzinfo=UTC), datetime(2013, 6, 1, 12, tzinfo=UTC)]
    send(broker, name, *(f'"{moment.isoformat()}"' for moment in moments))
    job = windows(broker, name, tmp_path, window="7 hours", slide="5 hours", watermark="1000000 days")
    output = Jobs(tmp_path).run("windows", job)
    assert " 0 late, " in output.splitlines()[-1], output
    expected = sliding(moments, timedelta(hours=7), timedelta(hours=5))
    assert counted(broker, name, len(expected)) == expected


def sliding(moments: list[datetime], window: timedelta, slide: timedelta) -> dict[str, int]:
    """Return the number of events in each window. Windows are aligned so that one starts with 1970."""
    found: Counter[str] = Counter()
    for moment in moments:
        start = moment - (moment - datetime(1970, 1, 1, tzinfo=UTC)) % slide
        while start > moment - window:
            found[start.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"] += 1
            start -= slide
    return dict(found)


def test_event_too_far_ahead_does_not_move_the_watermark(broker: Broker, tmp_path: Path) -> None:
    name, job = "times-ahead", windows(broker, "times-ahead", tmp_path, watermark="1 day", ahead="100 days")
    for times in (['"9999-01-01"', '"2023-11-14"'], ['"2023-11-14T05:00"']):
        send(broker, name, *times)
        output = Jobs(tmp_path).run("windows", job)
    assert " 0 late, 0 not JSON, 1 without event time;" in output.splitlines()[-1], output
    assert counted(broker, name, 2) == {DAY: 2}


def test_windows_reject_a_recreated_topic(broker: Broker, tmp_path: Path) -> None:
    name, job = "times-anew", windows(broker, "times-anew", tmp_path)
    send(broker, name, '"2023-11-14"')
    Jobs(tmp_path).run("windows", job)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)
    until(lambda: name not in admin.list_topics(timeout=30).topics)
    make_topic(broker, name)
    send(broker, name, *['"2023-11-14"'] * 3)
    output = Jobs(tmp_path).run("windows", job, status=1)
    assert f"topic {name} was deleted and recreated after the checkpoint {tmp_path}" in output
    other = {**job, "input": kafka(broker, "times-anew-counted")}
    output = Jobs(tmp_path).run("windows", other, status=1)
    assert "is also a topic of the input, so the job would count its results as events" in output
    make_topic(broker, "times-other")
    output = Jobs(tmp_path).run("windows", {**job, "input": kafka(broker, "times-other")}, status=1)
    assert f"belongs to {name}, and the input is times-other: choose another checkpoint" in output
    assert counted(broker, name, 1) == {DAY: 1}


def windows(broker: Broker, name: str, directory: Path, **changed: Any) -> dict[str, Any]:
    """Return the configuration of a job that counts the events of a topic per day."""
    table = {
        "topic": f"{name}-counted",
        "checkpoint": str(directory / "checkpoint"),
        "event_time": "at",
        "window": "1 day",
        "watermark": "3650 days",
        "aggregates": {"events": "count"},
        "client": {"bootstrap.servers": broker.bootstrap},
    }
    return {"input": kafka(broker, name), "windows": {**table, **changed}}


def send(broker: Broker, topic: str, *times: str) -> None:
    producer = producer_of(broker)
    for number, time in enumerate(times):
        producer.produce(topic, f'{{"at": {time}, "number": {number}}}'.encode())
    assert producer.flush(30) == 0


def counted(broker: Broker, name: str, results: int) -> dict[str, int]:
    """Wait for this many results. Return the last count of each window, by the start of the window."""
    consumer = consumer_of(broker, f"{name}-reader")
    consumer.subscribe([f"{name}-counted"])
    found = [json.loads(message.value()) for message in consume(consumer, results)]
    consumer.close()
    return {result["window_start"]: result["events"] for result in found}
