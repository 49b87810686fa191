"""JSON log lines, and the log of slow requests."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest

from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER, RequestMetrics
from kwire.broker.observe.json_logs import JsonFormatter
from kwire.broker.observe.slow_requests import MAX_PER_SECOND, SlowRequests
from kwire.cli.main import main
from kwire.host.loggers import NodeLogger
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader


def test_a_json_line_contains_node_request_and_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = NodeLogger("kwire.dispatch", "node 7")
    try:
        raise ZeroDivisionError("made\nup")
    except ZeroDivisionError:
        logger.exception("it %s", 'was\n"so"', extra={"request": "3-17"})
    NodeLogger("kwire.net", "").info("plain")
    with caplog.at_level(logging.INFO, "kwire"):
        NodeLogger("kwire.net", "").info("plain")
    first, second = (JsonFormatter().format(record) for record in caplog.records)
    assert "\n" not in first
    output = json.loads(first)
    error = output.pop("error")
    assert error.startswith("Traceback")
    assert error.endswith("ZeroDivisionError: made\nup")
    time = output.pop("time")
    assert time.endswith("Z")
    assert len(time) == len("2026-11-25T15:16:17.123Z")
    assert output == {
        "level": "ERROR",
        "logger": "kwire.dispatch",
        "node": "node 7",
        "request": "3-17",
        "message": 'it was\n"so"',
    }
    assert json.loads(second).keys() == {"time", "level", "logger", "message"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(request_metrics: RequestMetrics, api: ApiKey, *, by_follower: bool = False) -> None:
    channel = SimpleNamespace(id=3, peer_host="10.0.0.9")
    counted_as = (FETCH_FOLLOWER, 9) if by_follower else None
    request_metrics.record(1, RequestHeader(api, 9, 17, "shop"), channel, 100, 20, 0.0, counted_as)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def request_metrics(clock: Clock) -> RequestMetrics:
    """Metrics that count a request as slow from 500 ms of the test's clock."""
    request_metrics = RequestMetrics(clock)
    request_metrics.watch_slow(0.5, SlowRequests(NodeLogger("kwire.dispatch", "node 7"), clock))
    return request_metrics


def test_a_slow_request_is_logged_with_its_client_and_id(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 0.4
    record(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages == []
    clock.now = 0.6
    record(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages == [
        "[node 7] Slow request: Produce v9 from client shop at 10.0.0.9 took 600.0 ms "
        "(100 bytes in, 20 bytes out)"
    ]
    assert vars(caplog.records[0])["request"] == "3-17"


def test_requests_that_may_wait_are_not_logged_as_slow(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 30
    for api in (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
        record(request_metrics, api)
    record(request_metrics, ApiKey.FETCH, by_follower=True)
    assert caplog.messages == []
    record(request_metrics, ApiKey.METADATA)
    assert len(caplog.messages) == 1


def test_slow_requests_beyond_the_limit_are_counted(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 1.5
    for _ in range(MAX_PER_SECOND + 7):
        record(request_metrics, ApiKey.PRODUCE)
    assert len(caplog.messages) == MAX_PER_SECOND
    clock.now = 2.5
    record(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages[MAX_PER_SECOND] == (
        "[node 7] Slow requests: 7 more were not logged in an earlier second (limit: 10 per second)"
    )
    assert len(caplog.messages) == MAX_PER_SECOND + 2


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--slow-request-ms", "soon"], {}, "--slow-request-ms is 'soon': expected milliseconds, like 500"),
        ([], {"KWIRE_SLOW_REQUEST_MS": "-1"}, "expected milliseconds, like 500"),
        ([], {"KWIRE_LOG_FORMAT": "xml"}, "KWIRE_LOG_FORMAT is 'xml': expected one of text, json"),
    ],
)
def test_an_invalid_logging_option_is_a_one_line_error(
    arguments: list[str],
    environ: dict[str, str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gc.disable", lambda: None)
    assert main(["serve", *arguments]) == 2
    output = capsys.readouterr().err
    assert output.startswith("kwire: ")
    assert expected in output
    assert output.count("\n") == 1
    assert "kwire.broker.observe.json_logs" in sys.modules
