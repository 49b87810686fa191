"""What a node has answered: how often, how long it took, and the last requests one by one.

One note a request, when its reply leaves; no histogram is kept. Quantiles are taken from the last times of an
API when somebody asks for them: that costs the request an append to a ring, and the asker a sort. A note
takes 0.35 µs, where the request takes 15 µs at least.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.wire.registry import RequestHeader

Fields = tuple["RequestHeader", str, int, int, int, float, float]
"""Those of `Answer`, in their order."""
KEPT_TIMES: Final = 1_000
"""So many times of an API are kept for its quantiles. Kafka's reservoir has about as many."""
KEPT_REQUESTS: Final = 1_000

FROM_FOLLOWERS: Final = -1
"""As an API key: Fetch of followers, whose waits say nothing about consumers."""
WAITS: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, FROM_FOLLOWERS})
"""Requests that are meant to wait, for records or for other members: that they took long says nothing."""


class Answer(NamedTuple):
    """One request that was answered."""

    header: RequestHeader
    peer_host: str
    connection: int
    size_bytes: int
    reply_bytes: int
    began: float
    """When it came in, in seconds of the clock that the node counts by."""
    seconds: float
    """From then until its reply was handed over to be sent; what it waited for is in that."""

    @property
    def request_id(self) -> str:
        """See `request_id`."""
        return request_id(self.connection, self.header)


def request_id(connection: int, header: RequestHeader) -> str:
    """By what the log and the flight recorder name a request: its connection and its correlation id."""
    return f"{connection}-{header.correlation_id}"


class Times:
    """The times of one version of an API."""

    __slots__ = ("count", "recent")

    def __init__(self) -> None:
        self.count = 0
        """How many requests were answered."""
        self.recent: deque[float] = deque(maxlen=KEPT_TIMES)
        """How many seconds the last ones took."""


class Answered:
    """The answers of one node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, of whatever beginning."""
        self.clock = clock
        self.apis: dict[tuple[int, int], Times] = {}
        """By API key and version; fetches of followers under `FROM_FOLLOWERS`."""
        self.last: deque[Fields] = deque(maxlen=KEPT_REQUESTS)
        """The fields of `Answer`, the last one at the end. Plain tuples: they are made for each request."""

        self.take_up: Callable[[RequestHeader, str, int, int, float], int] | None = None
        """Who numbers each request before it is handled, where that outlives the process: its header, its
        peer, connection and bytes, and when it came in.
        """
        self.keep: Callable[[int, int, float], None] | None = None
        """Who keeps, by these numbers, the bytes of replies and how many seconds they took."""
        self.unkept: list[tuple[int, int, float]] = []
        """Those that were noted since the last `hand_on`."""
        self._slow_seconds = math.inf
        self._on_slow: Callable[[Answer], None] = lambda answer: None

    def watch_slow(self, seconds: float, on_slow: Callable[[Answer], None]) -> None:
        """Call `on_slow` with each request that took longer, but for those that are meant to wait."""
        self._slow_seconds, self._on_slow = seconds, on_slow

    def note(
        self,
        header: RequestHeader,
        peer_host: str,
        connection: int,
        size_bytes: int,
        reply_bytes: int,
        began: float,
        by_follower: bool,
        number: int = 0,
    ) -> None:
        """A request is answered, or has come to its end without an answer. `number`: see `take_up`."""
        seconds = self.clock() - began
        fields = (header, peer_host, connection, size_bytes, reply_bytes, began, seconds)
        self.last.append(fields)
        if number:
            self.unkept.append((number, reply_bytes, seconds))
        key = FROM_FOLLOWERS if by_follower else header[0], header[1]
        times = self.apis.get(key)
        if times is None:
            times = self.apis[key] = Times()
        times.count += 1
        times.recent.append(seconds)
        if seconds > self._slow_seconds and key[0] not in WAITS:
            self._on_slow(Answer(*self.last[-1]))

    def hand_on(self) -> None:
        """Have the answers kept that were noted: once they are sent, so that no client waits for it."""
        unkept, self.unkept = self.unkept, []
        keep = self.keep
        if keep is not None:
            for number, reply_bytes, seconds in unkept:
                keep(number, reply_bytes, seconds)

    def last_answers(self) -> list[Answer]:
        """The last requests, the newest one at the end."""
        return [Answer(*fields) for fields in self.last]
