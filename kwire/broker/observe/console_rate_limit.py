"""A rate limit for console pages, which keeps a program that reads them in a loop from slowing down others.

A page takes the broker a few milliseconds, which delays requests of other clients. A few pages are served at
once. A client that keeps requesting pages gets one page per second after that, while the broker serves other
clients.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from kwire.broker.observe.ports import RunningNode

READER_ID: Final = "kwire-console"
"""The client id of the console."""
BURST: Final = 10
SECONDS_PER_PAGE: Final = 1.0
MAX_WAITING: Final = 10
"""The number of waiting requests, whose clients may be gone. Further requests are rejected."""
RECENT_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 0.5
"""The time after which a waiting request checks again whether the broker serves other clients."""


class ConsoleRateLimit:
    """A token bucket: a burst of pages, then one page per interval."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._next_s = -math.inf
        """When the next page is due without a burst."""

    async def acquire(self) -> bool:
        """Wait until a page may be served. Return False at once if that would take too long."""
        begins_s = max(self._next_s, trio.current_time() - (BURST - 1) * SECONDS_PER_PAGE)
        if begins_s - trio.current_time() > MAX_WAITING * SECONDS_PER_PAGE and self._serves_others():
            return False
        self._next_s = begins_s + SECONDS_PER_PAGE
        while self._serves_others():
            left_s = begins_s - trio.current_time()
            if left_s <= 0:
                return True
            await trio.sleep(min(left_s, CHECK_SECONDS))
        # Pages that were served while there were no other clients do not count.
        self._next_s = min(self._next_s, trio.current_time() + SECONDS_PER_PAGE)
        return True

    def _serves_others(self) -> bool:
        """Return whether any client other than the console has sent a request recently."""
        request_metrics = self._running.server.request_metrics
        return request_metrics.log.has_requests_of_others(READER_ID, request_metrics.clock() - RECENT_SECONDS)
