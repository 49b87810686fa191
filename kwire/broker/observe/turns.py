"""When pages of the console are read, so that a program that reads on and on is not noticed by others.

Each page takes the broker some milliseconds, and so one of a hundred of others' requests would meet one. Who
reads a page now and then has it as it is asked for. Who asks again as soon as he was answered has his first
ones at once, and then one a second, while others are served.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from kwire.broker.observe.ports import Running

READER_ID: Final = "kwire-console"
"""What the console calls itself to the broker."""
AT_ONCE: Final = 10
SECONDS_A_PAGE: Final = 1.0
MOST_WAITING: Final = 10
"""Pages that wait for their turn, perhaps for a reader who has gone; who asks for more is told."""
LATELY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.5
"""How often who waits looks whether there is still somebody to wait for."""


class Turns:
    """Whose turn it is to read a page: so many at once, and then one each time that so long has passed."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._next_s = -math.inf
        """When the next page would come, were none given in advance."""

    async def wait(self) -> bool:
        """Return when one more page may be read; False, at once, where that would be long from now."""
        begins_s = max(self._next_s, trio.current_time() - (AT_ONCE - 1) * SECONDS_A_PAGE)
        if begins_s - trio.current_time() > MOST_WAITING * SECONDS_A_PAGE and self._serves_others():
            return False
        self._next_s = begins_s + SECONDS_A_PAGE
        while self._serves_others():
            left_s = begins_s - trio.current_time()
            if left_s <= 0:
                return True
            await trio.sleep(min(left_s, LOOK_SECONDS))
        # Whom others follow is not to wait for all that was read while there were none.
        self._next_s = min(self._next_s, trio.current_time() + SECONDS_A_PAGE)
        return True

    def _serves_others(self) -> bool:
        """Whether anybody but the console has asked something lately."""
        answered = self._running.server.answered
        return answered.last.has_of_others(READER_ID, answered.clock() - LATELY_SECONDS)
