"""The connections of pages, which are kept from one page to the next: each page has some for itself alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.command_client import CommandClient

MAX_AGE_SECONDS: Final = 60.0
"""After which connections are made anew, so that those to brokers that have gone are not kept for ever."""

T = TypeVar("T")


class _PooledClient(NamedTuple):
    cluster: CommandClient
    until: float


class ClientPool:
    """The cluster of a console, as several threads ask it."""

    def __init__(
        self, settings: ClientSettings, max_idle: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` is how often connections are kept for a page, `now` gives seconds of whatever beginning."""
        self._settings = settings
        self._max_idle = max_idle
        self._now = now
        self._idle: list[_PooledClient] = []
        self._changing = threading.Lock()

    def connect(self) -> CommandClient:
        """One that is the caller's, and is not kept."""
        return CommandClient(self._settings)

    def run(self, query: Callable[[CommandClient], T]) -> T:
        """What a question comes to, which changes nothing: it may be asked twice.

        That is where a connection that was kept has ended: its broker closes those that are idle for long,
        or was started again. What the question raises otherwise is raised.
        """
        if (kept := self._take()) is not None:
            try:
                response = self._run(kept, query)
            except Exception:
                if not kept.cluster.has_failed:
                    raise
            else:
                if not kept.cluster.has_failed:  # which a page may have made the best of
                    return response
            self.close()
        return self._run(_PooledClient(self.connect(), self._now() + MAX_AGE_SECONDS), query)

    def close(self) -> None:
        """Keep none of those that nobody uses now."""
        with self._changing:
            idle, self._idle = self._idle, []
        for one in idle:
            one.cluster.close()

    def _run(self, one: _PooledClient, query: Callable[[CommandClient], T]) -> T:
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
        one.cluster.forget_metadata()  # who is there is learnt anew, as by a page that begins
        with self._changing:
            if len(self._idle) < self._max_idle and not one.cluster.has_failed:
                self._idle.append(one)
                return
        one.cluster.close()
