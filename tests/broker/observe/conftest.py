"""Nodes with an HTTP port, in the trio run of a test."""

from __future__ import annotations

import ssl
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


class ObservedNode(NamedTuple):
    """A node and a client of its HTTP port."""

    running: RunningNode
    http: httpx.AsyncClient

    async def text(self, path: str, status: int = 200) -> str:
        response = await self.http.get(path)
        assert response.status_code == status, response.text
        return response.text

    async def metrics(self) -> Series:
        """Return the series of /metrics, as Prometheus' own parser reads them."""
        return Series(await self.text("/metrics"))


class Series(dict[tuple[object, ...], float]):
    """Values by name and labels."""

    def __init__(self, page: str) -> None:
        super().__init__()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                self[(sample.name, *sorted(sample.labels.items()))] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one series."""
        return self[(name, *sorted(labels.items()))]

    @property
    def names(self) -> set[object]:
        return {name for name, *_ in self}


@asynccontextmanager
async def serve_observed(
    settings: dict[str, str] | None = None,
    address: str = "0",
    *,
    console: bool = False,
    console_writes: bool = False,
    tls_listener: str = "",
    client_context: ssl.SSLContext | None = None,
) -> AsyncIterator[ObservedNode]:
    """Run a broker with an HTTP port until the block ends. A client of HTTPS needs `client_context`."""
    with TemporaryDirectory(prefix="kwire-") as directory:
        logs = str(Path(directory) / "data")
        config = load(None, {}, {**SETTINGS, "log.dirs": logs, **(settings or {})})
        port = HttpPort(
            address,
            read_socket_settings(config),
            console=console,
            console_writes=console_writes,
            tls_listener=tls_listener,
        )
        verify = True if client_context is None else client_context
        async with (
            httpx.AsyncClient(base_url=port.url, trust_env=False, timeout=20, verify=verify) as client,
            serve(config, background=[port.serve]) as running,
        ):
            yield ObservedNode(running, client)
