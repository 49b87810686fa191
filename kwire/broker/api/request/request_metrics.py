"""Request metrics of a node: counts and durations per API version, and the log of the last requests.

There are no histograms. Quantiles are computed on demand from the last durations of an API, so a request only
appends its duration to a ring, and a scrape sorts the ring. Logging and counting a request takes 0.9 µs;
handling a request takes at least 15 µs.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.api.request.request_log import LoggedRequest, RequestLog, client_bytes
from kwire.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from kwire.wire.registry import RequestHeader

RESERVOIR_SIZE: Final = 1_000
"""The number of durations per API version that quantiles are computed from, about as many as in Kafka."""

FETCH_FOLLOWER: Final = -1
"""A pseudo API key for fetches of followers, whose waiting times would distort the figures of consumers."""
NEVER_SLOW: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        FETCH_FOLLOWER,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    }
)
"""Requests that are never logged as slow.

They may wait for records, for other members, or for the delay after a failed authentication.
"""


class Peer(Protocol):
    """The client that sent a request."""

    @property
    def id(self) -> int: ...
    @property
    def peer_host(self) -> str: ...


class ApiTimes:
    """The durations of the requests of one API version."""

    __slots__ = ("count", "recent", "recent_bytes", "recent_delays")

    def __init__(self) -> None:
        self.count = 0
        """The number of completed requests."""
        self.recent: deque[float] = deque(maxlen=RESERVOIR_SIZE)
        """The durations of the last requests in seconds."""
        self.recent_delays: deque[float] = deque(maxlen=RESERVOIR_SIZE)
        """The part of each duration after the handler had returned; 0 if the handler responded itself."""
        self.recent_bytes: deque[int] = deque(maxlen=RESERVOIR_SIZE)
        """The sizes of the last requests in bytes."""


class RequestMetrics:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since an arbitrary time."""
        self.clock = clock
        self.apis: dict[tuple[int, int], ApiTimes] = {}
        """The durations by API key and version. Fetches of followers have the API key `FETCH_FOLLOWER`."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """Errors in responses, by API key and error code. Each error in a response counts."""
        self.log = RequestLog()
        self._slow_seconds = math.inf
        self._on_slow: Callable[[LoggedRequest], None] = lambda logged: None

    def watch_slow(self, seconds: float, on_slow: Callable[[LoggedRequest], None]) -> None:
        """Call `on_slow` for each request that takes longer than `seconds`, except APIs in `NEVER_SLOW`."""
        self._slow_seconds, self._on_slow = seconds, on_slow

    def record_error(self, api_key: int, code: int, count: int = 1) -> None:
        """Count errors with the same code in a response."""
        self.errors[api_key, code] += count

    def record(
        self,
        number: int | None,
        header: RequestHeader,
        peer: Peer,
        size_bytes: int,
        response_bytes: int,
        received_s: float,
        counted_as: tuple[int, int] | None,
        handled_s: float = -1.0,
    ) -> None:
        """Record the end of a request, with or without a response. `number` is from the request log.

        If `number` is None, the connection was closed before the response, and the log keeps the request as
        pending.

        `counted_as` is the API key and version if they differ from the header's. A Fetch of a follower has
        the key `FETCH_FOLLOWER`. An Envelope counts as the request in it, as in Apache Kafka.

        `handled_s` is the time until the handler returned without a response; it is negative otherwise.
        """
        seconds = self.clock() - received_s
        if number is not None and not self.log.finish(number, response_bytes, seconds):
            # The slot was reused, because `SLOTS` later requests have arrived: log this request again.
            client = client_bytes(header.client_id, peer.peer_host)
            number = self.log.begin(header, client, peer.id, size_bytes, received_s)
            self.log.finish(number, response_bytes, seconds)
        key = counted_as or (header[0], header[1])
        times = self.apis.get(key)
        if times is None:
            times = self.apis[key] = ApiTimes()
        times.count += 1
        times.recent.append(seconds)
        times.recent_delays.append(seconds - handled_s if handled_s >= 0 else 0.0)
        times.recent_bytes.append(size_bytes)
        if seconds > self._slow_seconds and key[0] not in NEVER_SLOW:
            self._on_slow(logged_request(header, peer, size_bytes, response_bytes, received_s, seconds))


def logged_request(
    header: RequestHeader,
    peer: Peer,
    size_bytes: int,
    response_bytes: int,
    received_s: float,
    seconds: float | None,
) -> LoggedRequest:
    """Return the entry that `RequestLog` has for a request, but with the complete client id."""
    return LoggedRequest(
        received_s,
        seconds,
        peer.id,
        header.correlation_id,
        header.api_key,
        header.api_version,
        header.client_id,
        peer.peer_host,
        size_bytes,
        response_bytes,
    )
