"""A pool of cluster clients, so that pages reuse connections without sharing them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from kwire.cli.shared.client_settings import ClientSettings
from kwire.console.console_client import ConsoleClient

MAX_AGE_SECONDS: Final = 60.0
"""Clients are closed at this age, since they may keep connections to removed brokers."""

T = TypeVar("T")


class _PooledClient(NamedTuple):
    cluster: ConsoleClient
    until: float


class ClientPool:
    """A thread-safe pool of clients of one cluster."""

    def __init__(
        self, settings: ClientSettings, max_idle: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep at most `max_idle` idle clients; `now` returns the time in seconds."""
        self._settings = settings
        self._max_idle = max_idle
        self._now = now
        self._idle: list[_PooledClient] = []
        self._changing = threading.Lock()

    def connect(self) -> ConsoleClient:
        """Return a new client, which belongs to the caller and not to the pool."""
        return ConsoleClient(self._settings)

    def run(self, query: Callable[[ConsoleClient], T]) -> T:
        """Call a read-only query with a client and return its result.

        The query is repeated with a new client if a reused connection failed, for example because the broker
        restarted. Other errors of the query are raised.
        """
        if (pooled := self._take()) is not None:
            try:
                response = self._run(pooled, query)
            except Exception:
                if not pooled.cluster.has_failed:
                    raise
            else:
                if not pooled.cluster.has_failed:  # the page may have ignored the error
                    return response
            self.close()
        return self._run(_PooledClient(self.connect(), self._now() + MAX_AGE_SECONDS), query)

    def close(self) -> None:
        """Close the idle clients."""
        with self._changing:
            idle, self._idle = self._idle, []
        for one in idle:
            one.cluster.close()

    def retire(self) -> None:
        """Close the idle clients, and each other client once its page is complete."""
        with self._changing:
            self._max_idle = 0
        self.close()

    def _run(self, one: _PooledClient, query: Callable[[ConsoleClient], T]) -> T:
        try:
            response = query(one.cluster)
        except BaseException:
            one.cluster.close()
            raise
        self._put_back(one)
        return response

    def _take(self) -> _PooledClient | None:
        while True:
            with self._changing:
                if not self._idle:
                    return None
                one = self._idle.pop()
            if self._now() < one.until:
                return one
            one.cluster.close()

    def _put_back(self, one: _PooledClient) -> None:
        one.cluster.forget_metadata()  # each page starts with fresh metadata
        with self._changing:
            if len(self._idle) < self._max_idle and not one.cluster.has_failed:
                self._idle.append(one)
                return
        one.cluster.close()
