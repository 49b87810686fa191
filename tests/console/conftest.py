"""One shared broker and its console; each test uses its own topics."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kwire.console.app import Console
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker

TOKEN = "a-token"
BASE = "http://127.0.0.1:8080"
SETTINGS = {
    "num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    # Some tests write records with old timestamps, so retention is off.
    "log.retention.hours": -1,
}


@pytest.fixture(autouse=True)
def _no_search_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limit of searches, so that results do not depend on the machine."""
    monkeypatch.setattr("kwire.console.key_search.SEARCH_SECONDS", 600.0)


class ConsoleClient(NamedTuple):
    """An HTTP client of a console."""

    http: httpx.AsyncClient

    async def page(self, path: str, status: int = 200) -> str:
        """Return the text of a page."""
        return text_of(await self.source(path, status))

    async def source(self, path: str, status: int = 200) -> str:
        response = await self.http.get(f"/console{path}")
        assert response.status_code == status, text_of(response.text)
        return response.text

    async def send(self, path: str, **fields: str) -> httpx.Response:
        """Submit a form as a page of the console does."""
        headers = {"origin": BASE, "sec-fetch-site": "same-origin"}
        return await self.http.post(f"/console{path}", data={"token": TOKEN, **fields}, headers=headers)

    async def submit(self, path: str, **fields: str) -> str:
        """Submit a form and return the location of its redirect."""
        response = await self.send(path, **fields)
        assert response.status_code == 303, text_of(response.text)
        return response.headers["location"].removeprefix("/console")


def text_of(page: str) -> str:
    """Return the text of an HTML page, separated by blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@asynccontextmanager
async def run_console(settings: ConsoleSettings) -> AsyncIterator[ConsoleClient]:
    """Run a console with these settings and yield a client of it."""
    with Console(settings, TOKEN) as console:
        transport = httpx.ASGITransport(console.app())
        async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=60) as client:
            yield ConsoleClient(client)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture(scope="session")
def producer(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})


@pytest.fixture
async def console(broker: Broker) -> AsyncIterator[ConsoleClient]:
    async with run_console(
        ConsoleSettings(broker.bootstrap_servers, 1, (str(broker.log_dir),), may_write=True)
    ) as asked:
        yield asked
