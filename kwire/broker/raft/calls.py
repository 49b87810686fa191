"""Requests to other nodes that are in flight: at most one per voter, and one with the key FETCH."""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.raft.outputs import Send
from kwire.broker.raft.terms import Terms
from kwire.host.host import InternodeTime, PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

FETCH: Final = -1
"""The key of Fetch, FetchSnapshot and a node's own voter changes, in place of a voter id."""
MAX_BACKOFF_MS: Final = 200
BACKOFF_SHARE: Final = 10
"""The time of failures divided by the backoff."""
JITTER: Final = 0.2


class Call(NamedTuple):
    """A request in flight."""

    key: int
    """The id of the voter, or FETCH."""
    to: PeerAddress
    request: Message
    deadline_ms: InternodeTime


class Calls:
    """The requests in flight, and the backoff after failed requests."""

    def __init__(self, terms: Terms, rng: random.Random) -> None:
        self._terms = terms
        self._rng = rng
        self._last = 0
        self._open: dict[int, Call] = {}
        self._failing_since_ms: dict[int, InternodeTime] = {}
        """The time of the first failure after the last success, by key."""
        self._rests_until_ms: dict[int, InternodeTime] = {}
        self._unreachable: set[int] = set()
        """The keys whose last request got no response."""

    def send(self, key: int, to: PeerAddress, request: Message, now_ms: InternodeTime) -> Send:
        """Return the output that sends a request. A response to an earlier request with `key` is ignored."""
        self._open = {number: call for number, call in self._open.items() if call.key != key}
        self._last += 1
        deadline_ms = now_ms + self._terms.request_timeout_ms
        self._open[self._last] = Call(key, to, request, deadline_ms)
        self._rests_until_ms.pop(key, None)
        return Send(self._last, to, request, deadline_ms)

    def close(self, number: int) -> Call | None:
        """Remove and return the request with this number; None if its response is to be ignored."""
        return self._open.pop(number, None)

    def succeeded(self, key: int) -> None:
        """Reset the backoff after a successful request with this key."""
        self._failing_since_ms.pop(key, None)
        self._unreachable.discard(key)

    def reached(self, key: int) -> None:
        """End the backoff after requests without a response, because the other node has sent a request.

        Backoffs after a response continue. Otherwise two nodes that reject each other's requests would send
        them without a pause.
        """
        if key in self._unreachable:
            self.succeeded(key)
            self._rests_until_ms.pop(key, None)

    def rest(self, key: int, now_ms: InternodeTime, *, is_unreachable: bool = False) -> None:
        """Delay the next request with this key by a tenth of the time of failures, within limits.

        So a node learns of a new leader soon after the election, also if the election took long.
        """
        if is_unreachable:
            self._unreachable.add(key)
        else:
            self._unreachable.discard(key)
        failing_ms = now_ms - self._failing_since_ms.setdefault(key, now_ms)
        backoff_ms = min(max(self._terms.retry_backoff_ms, failing_ms // BACKOFF_SHARE), MAX_BACKOFF_MS)
        varied_ms = round(backoff_ms * self._rng.uniform(1 - JITTER, 1 + JITTER))
        self._rests_until_ms[key] = now_ms + max(1, varied_ms)

    def ready_ms(self, key: int) -> InternodeTime:
        """Return the monotonic time (ms) from which the next request with `key` may be sent; 0 means now."""
        for call in self._open.values():
            if call.key == key:
                return call.deadline_ms  # the response or an error arrives by then
        return self._rests_until_ms.get(key, InternodeTime(0))

    def forget(self) -> None:
        """Forget all requests and all backoffs."""
        self._open.clear()
        self._failing_since_ms.clear()
        self._rests_until_ms.clear()
        self._unreachable.clear()
