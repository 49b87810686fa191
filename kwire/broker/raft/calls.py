"""What a node has asked others and was not answered yet: one request at a time of each of them."""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.raft.outputs import Send
from kwire.broker.raft.terms import Terms
from kwire.host.host import PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

FETCH: Final = -1
"""In the place of a voter's id: what follows the log, of which one request is under way, whoever is asked."""
MAX_BACKOFF_MS: Final = 200
JITTER: Final = 0.2


class Call(NamedTuple):
    """A request under way."""

    key: int
    """The id of the voter that is asked, or FETCH."""
    to: PeerAddress
    request: Message
    deadline_ms: int


class Calls:
    """The requests under way, and who is to be left alone for a while."""

    def __init__(self, terms: Terms, rng: random.Random) -> None:
        self._terms = terms
        self._rng = rng
        self._last = 0
        self._open: dict[int, Call] = {}
        self._failures: dict[int, int] = {}
        self._rests_until_ms: dict[int, int] = {}

    def send(self, key: int, to: PeerAddress, request: Message, now_ms: int) -> Send:
        """Ask somebody; whatever else it was asked is of no interest any more."""
        self._open = {number: call for number, call in self._open.items() if call.key != key}
        self._last += 1
        deadline_ms = now_ms + self._terms.request_timeout_ms
        self._open[self._last] = Call(key, to, request, deadline_ms)
        self._rests_until_ms.pop(key, None)
        return Send(self._last, to, request, deadline_ms)

    def close(self, number: int) -> Call | None:
        """What was asked, now that it is answered; None if nobody waits for that any more."""
        return self._open.pop(number, None)

    def succeeded(self, key: int) -> None:
        """It has answered well: the next failure is the first one."""
        self._failures.pop(key, None)

    def rest(self, key: int, now_ms: int) -> None:
        """Leave it alone for a while, which doubles with each failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff_ms = min(self._terms.retry_backoff_ms << min(failures, 16), MAX_BACKOFF_MS)
        varied_ms = round(backoff_ms * self._rng.uniform(1 - JITTER, 1 + JITTER))
        self._rests_until_ms[key] = now_ms + max(1, varied_ms)

    def ready_ms(self, key: int) -> int:
        """When it may be asked; 0 for at once."""
        for call in self._open.values():
            if call.key == key:
                return call.deadline_ms  # nobody answers later
        return self._rests_until_ms.get(key, 0)

    def forget(self) -> None:
        """Nothing that was asked is of interest any more, and everybody may be asked again."""
        self._open.clear()
        self._failures.clear()
        self._rests_until_ms.clear()
