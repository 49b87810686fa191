"""What a console takes of a processor."""

from __future__ import annotations

import time

import httpx
import pytest

from kwire.console.app import Console
from kwire.console.asked import Place
from kwire.console.pace import BURST_SECONDS, MAX_REST_SECONDS, SHARE, Pace
from kwire.testing import Broker
from tests.console.conftest import BASE, TOKEN


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_looks_around_does_not_wait() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(10):
        assert pace.rest_seconds() == 0
        pace.take(BURST_SECONDS / 10)
    assert pace.rest_seconds() == 0


def test_in_the_long_run_it_is_a_share() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.take(BURST_SECONDS)
    taken, begun = 0.0, clock.now
    for _ in range(100):
        clock.now += pace.rest_seconds()
        pace.take(0.125)
        taken += 0.125
        clock.now += 0.125
    clock.now += pace.rest_seconds()
    assert taken / (clock.now - begun) == pytest.approx(SHARE)


def test_a_rest_is_bounded() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.take(60.0)
    assert pace.rest_seconds() == pytest.approx(MAX_REST_SECONDS)
    clock.now += MAX_REST_SECONDS
    assert pace.rest_seconds() == 0


def test_quiet_gives_back_no_more_than_a_burst() -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now += 3600
    pace.take(BURST_SECONDS + SHARE)
    assert pace.rest_seconds() == pytest.approx(1.0)


async def test_pages_rest() -> None:
    with (
        Broker() as broker,
        Console(Place(broker.bootstrap_servers, 1, (), may_write=True), TOKEN) as console,
    ):
        transport = httpx.ASGITransport(console.app())
        async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=60) as client:
            assert (await client.get("/console/")).status_code == 200
            console.pace.take(60.0)
            begun = time.monotonic()
            assert (await client.get("/console/")).status_code == 200
            assert time.monotonic() - begun > MAX_REST_SECONDS / 2
