"""Windows over events whose times are none, or are beyond what Spark can count with: each is only counted."""

# The client's own annotations are partial.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interop.brokers import Broker
from interop.pipeline.running import Jobs, kafka
from interop.scenarios.clients_confluent import consumer_of, producer_of, take

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
def test_an_event_time_that_is_none_stops_nothing(broker: Broker, format_: str, tmp_path: Path) -> None:
    good, bad = GOOD_AND_BAD[format_]
    name = f"times-{format_}"
    producer = producer_of(broker)
    for time in [*bad, *good]:
        producer.produce(name, f'{{"at": {time}}}'.encode())
    assert producer.flush(30) == 0
    table = {
        "topic": f"{name}-counted",
        "checkpoint": str(tmp_path / "checkpoint"),
        "event_time": "at",
        "event_time_format": format_,
        "window": "1 day",
        "watermark": "3650 days",
        "aggregates": {"events": "count"},
        "client": {"bootstrap.servers": broker.bootstrap},
    }
    said = Jobs(tmp_path).run("windows", {"input": kafka(broker, name), "windows": table})
    assert f"{len(bad)} " in said.splitlines()[-1], said
    consumer = consumer_of(broker, f"{name}-reader")
    consumer.subscribe([f"{name}-counted"])
    (result,) = take(consumer, 1)
    consumer.close()
    found = json.loads(result.value())
    assert (found["window_start"], found["events"]) == (DAY, len(good))
