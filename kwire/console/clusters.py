"""The connections of pages, which are kept from one page to the next: each page has some for itself alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.cluster import Cluster

KEPT_SECONDS: Final = 60.0
"""After which connections are made anew, so that those to brokers that have gone are not kept for ever."""

T = TypeVar("T")


class _Kept(NamedTuple):
    cluster: Cluster
    until: float


class Clusters:
    """The cluster of a console, as several threads ask it."""

    def __init__(
        self, settings: ClientSettings, most: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` is how often connections are kept for a page, `now` gives seconds of whatever beginning."""
        self._settings = settings
        self._most = most
        self._now = now
        self._kept: list[_Kept] = []
        self._changing = threading.Lock()

    def fresh(self) -> Cluster:
        """One that is the caller's, and is not kept."""
        return Cluster(self._settings)

    def ask(self, question: Callable[[Cluster], T]) -> T:
        """What a question comes to, which changes nothing: it may be asked twice.

        That is where a connection that was kept has ended: its broker closes those that are idle for long,
        or was started again. What the question raises otherwise is raised.
        """
        if (kept := self._take()) is not None:
            try:
                answer = self._asked(kept, question)
            except Exception:
                if not kept.cluster.has_lost:
                    raise
            else:
                if not kept.cluster.has_lost:  # which a page may have made the best of
                    return answer
            self.close()
        return self._asked(_Kept(self.fresh(), self._now() + KEPT_SECONDS), question)

    def close(self) -> None:
        """Keep none of those that nobody uses now."""
        with self._changing:
            idle, self._kept = self._kept, []
        for one in idle:
            one.cluster.close()

    def _asked(self, one: _Kept, question: Callable[[Cluster], T]) -> T:
        try:
            answer = question(one.cluster)
        except BaseException:
            one.cluster.close()
            raise
        self._keep(one)
        return answer

    def _take(self) -> _Kept | None:
        while True:
            with self._changing:
                if not self._kept:
                    return None
                one = self._kept.pop()
            if self._now() < one.until:
                return one
            one.cluster.close()

    def _keep(self, one: _Kept) -> None:
        one.cluster.forget()  # who is there is learnt anew, as by a page that begins
        with self._changing:
            if len(self._kept) < self._most and not one.cluster.has_lost:
                self._kept.append(one)
                return
        one.cluster.close()
