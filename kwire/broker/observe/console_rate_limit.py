"""A rate limit for console pages, so that a program that reads pages in a loop does not slow down the broker.

A page takes the broker a few milliseconds, in which other clients wait. While other clients send requests,
the broker serves a burst of `BURST` pages at once, and then one page per second. Without other clients there
is no limit.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from kwire.broker.observe.ports import RunningNode

READER_ID: Final = "kwire-console"
"""The client id with which the console connects to the broker."""
BURST: Final = 10
SECONDS_PER_PAGE: Final = 1.0
MAX_WAITING: Final = 10
"""The limit for waiting page requests; more are rejected. Requests of disconnected clients count, too."""
RECENT_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 0.5
"""The interval at which a waiting request checks whether the broker still serves other clients."""


class ConsoleRateLimit:
    """A token bucket: a burst of pages, then one page per interval."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._next_s = -math.inf
        """The time at which the next page would be due if bursts were not allowed."""

    async def acquire(self) -> bool:
        """Wait until a page may be served; return True. If too many requests wait, return False at once."""
        begins_s = max(self._next_s, trio.current_time() - (BURST - 1) * SECONDS_PER_PAGE)
        if begins_s - trio.current_time() > MAX_WAITING * SECONDS_PER_PAGE and self._serves_others():
            return False
        self._next_s = begins_s + SECONDS_PER_PAGE
        while self._serves_others():
            left_s = begins_s - trio.current_time()
            if left_s <= 0:
                return True
            await trio.sleep(min(left_s, CHECK_SECONDS))
        # Pages that were served while there were no other clients do not count against the limit.
        self._next_s = min(self._next_s, trio.current_time() + SECONDS_PER_PAGE)
        return True

    def _serves_others(self) -> bool:
        """Return whether any client other than the console has sent a request recently."""
        request_metrics = self._running.server.request_metrics
        return request_metrics.log.has_requests_of_others(READER_ID, request_metrics.clock() - RECENT_SECONDS)
