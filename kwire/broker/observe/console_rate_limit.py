"""When pages of the console are read, so that a program that reads on and on is not noticed by others.

Each page takes the broker some milliseconds, and so one of a hundred of others' requests would meet one. Who
reads a page now and then has it as it is asked for. Who asks again as soon as he was
request_metrics has his first
ones at once, and then one a second, while others are served.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from kwire.broker.observe.ports import RunningNode

READER_ID: Final = "kwire-console"
"""What the console calls itself to the broker."""
BURST: Final = 10
SECONDS_PER_PAGE: Final = 1.0
MAX_WAITING: Final = 10
"""Pages that wait for their turn, perhaps for a reader who has gone; who asks for more is told."""
RECENT_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 0.5
"""How often who waits looks whether there is still somebody to wait for."""


class ConsoleRateLimit:
    """Whose turn it is to read a page: so many at once, and then one each time that so long has passed."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._next_s = -math.inf
        """When the next page would come, were none given in advance."""

    async def acquire(self) -> bool:
        """Return when one more page may be read; False, at once, where that would be long from now."""
        begins_s = max(self._next_s, trio.current_time() - (BURST - 1) * SECONDS_PER_PAGE)
        if begins_s - trio.current_time() > MAX_WAITING * SECONDS_PER_PAGE and self._serves_others():
            return False
        self._next_s = begins_s + SECONDS_PER_PAGE
        while self._serves_others():
            left_s = begins_s - trio.current_time()
            if left_s <= 0:
                return True
            await trio.sleep(min(left_s, CHECK_SECONDS))
        # Whom others follow is not to wait for all that was read while there were none.
        self._next_s = min(self._next_s, trio.current_time() + SECONDS_PER_PAGE)
        return True

    def _serves_others(self) -> bool:
        """Whether anybody but the console has asked something lately."""
        request_metrics = self._running.server.request_metrics
        return request_metrics.log.has_requests_of_others(READER_ID, request_metrics.clock() - RECENT_SECONDS)
