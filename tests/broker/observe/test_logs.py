"""Log lines as JSON, and the log of slow requests."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest

from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.observe.json_logs import JsonFormatter
from kwire.broker.observe.slow_requests import MAX_PER_SECOND, SlowRequests
from kwire.cli.main import main
from kwire.host.loggers import NodeLogger
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader


def test_a_line_is_one_object_with_its_node_its_request_and_its_error(
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
    first, then = (JsonFormatter().format(record) for record in caplog.records)
    assert "\n" not in first
    told = json.loads(first)
    error = told.pop("error")
    assert error.startswith("Traceback")
    assert error.endswith("ZeroDivisionError: made\nup")
    time = told.pop("time")
    assert time.endswith("Z")
    assert len(time) == len("2026-11-25T15:16:17.123Z")
    assert told == {
        "level": "ERROR",
        "logger": "kwire.dispatch",
        "node": "node 7",
        "request": "3-17",
        "message": 'it was\n"so"',
    }
    assert json.loads(then).keys() == {"time", "level", "logger", "message"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def note(request_metrics: RequestMetrics, api: ApiKey, *, by_follower: bool = False) -> None:
    asker = SimpleNamespace(id=3, peer_host="10.0.0.9")
    request_metrics.record(1, RequestHeader(api, 9, 17, "shop"), asker, 100, 20, 0.0, by_follower)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def request_metrics(clock: Clock) -> RequestMetrics:
    """Requests are slow from 500 ms on, of the time that the clock says."""
    request_metrics = RequestMetrics(clock)
    request_metrics.watch_slow(0.5, SlowRequests(NodeLogger("kwire.dispatch", "node 7"), clock))
    return request_metrics


def test_a_slow_request_is_told_with_all_that_finds_it(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 0.4
    note(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages == []
    clock.now = 0.6
    note(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages == [
        "[node 7] slow request: Produce v9 from client shop at 10.0.0.9 took 600.0 ms "
        "(100 bytes in, 20 bytes out)"
    ]
    assert vars(caplog.records[0])["request"] == "3-17"


def test_requests_that_are_meant_to_wait_are_not_slow(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 30
    for api in (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
        note(request_metrics, api)
    note(request_metrics, ApiKey.FETCH, by_follower=True)
    assert caplog.messages == []
    note(request_metrics, ApiKey.METADATA)
    assert len(caplog.messages) == 1


def test_of_many_slow_requests_a_few_are_told_and_the_others_counted(
    request_metrics: RequestMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = 1.5
    for _ in range(MAX_PER_SECOND + 7):
        note(request_metrics, ApiKey.PRODUCE)
    assert len(caplog.messages) == MAX_PER_SECOND
    clock.now = 2.5
    note(request_metrics, ApiKey.PRODUCE)
    assert caplog.messages[MAX_PER_SECOND] == "[node 7] 7 more slow requests were not logged"
    assert len(caplog.messages) == MAX_PER_SECOND + 2


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--slow-request-ms", "soon"], {}, "--slow-request-ms is 'soon': expected milliseconds, like 500"),
        ([], {"KWIRE_SLOW_REQUEST_MS": "-1"}, "expected milliseconds, like 500"),
        ([], {"KWIRE_LOG_FORMAT": "xml"}, "KWIRE_LOG_FORMAT is 'xml': expected one of text, json"),
    ],
)
def test_what_is_wrong_with_logging_is_one_line(
    arguments: list[str],
    environ: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gc.disable", lambda: None)
    assert main(["serve", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kwire: ")
    assert said in told
    assert told.count("\n") == 1
    assert "kwire.broker.observe.json_logs" in sys.modules
