"""Nodes with their HTTP port, in the trio run of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kwire.broker.config import load
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import serve
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.observe.http import HttpPort

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data"}


class Observed(NamedTuple):
    """A node, and a client of its HTTP port."""

    running: RunningNode
    http: httpx.AsyncClient

    async def text(self, path: str, status: int = 200) -> str:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def metrics(self) -> Series:
        """What the page of metrics says, as Prometheus' own parser reads it."""
        return Series(await self.text("/metrics"))


class Series(dict[tuple[object, ...], float]):
    """Values by name and labels."""

    def __init__(self, page: str) -> None:
        super().__init__()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                # The parser has counters end in _total, and Kafka's exporter does not always.
                name = sample.name.replace("_count_total", "_count")
                self[(name, *sorted(sample.labels.items()))] = sample.value

    def of(self, name: str, **labels: str) -> float:
        """The value of one series."""
        return self[(name, *sorted(labels.items()))]

    @property
    def names(self) -> set[object]:
        return {name for name, *_ in self}


@asynccontextmanager
async def observed(
    settings: dict[str, str] | None = None,
    address: str = "0",
    *,
    console: bool = False,
    console_writes: bool = False,
) -> AsyncIterator[Observed]:
    """A broker, and its HTTP port until the block ends."""
    with TemporaryDirectory(prefix="kwire-") as place:
        logs = str(Path(place) / "data")
        config = load(None, {}, {**SETTINGS, "log.dirs": logs, **(settings or {})})
        port = HttpPort(address, read_socket_settings(config), console=console, console_writes=console_writes)
        async with (
            httpx.AsyncClient(base_url=port.url, trust_env=False, timeout=20) as client,
            serve(config, background=[port.serve]) as running,
        ):
            yield Observed(running, client)
