"""How much of a processor a console takes: who writes to its broker should not notice who reads in it.

What was not taken for a while may be taken at once: somebody who looks around does not wait. A program
that asks for page after page does, and so does a search that somebody repeats without looking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

SHARE: Final = 1 / 8
"""Of one processor, in the long run: a search for a key, of 8 MiB, takes about an eighth of a second."""
BURST_SECONDS: Final = 1.0
"""Of processor time, after a quiet while: a hundred pages."""
MAX_REST_SECONDS: Final = 2.0


class Pace:
    """Processor time that was taken, and is given back as time passes. For several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, of whatever beginning."""
        self._clock = clock
        self._left_seconds = BURST_SECONDS
        self._seen = clock()
        self._changing = threading.Lock()

    def take(self, seconds: float) -> None:
        """So much processor time was taken."""
        with self._changing:
            self._left_seconds = max(self._now() - seconds, -MAX_REST_SECONDS * SHARE)

    def rest_seconds(self) -> float:
        """How long to wait before the next page."""
        with self._changing:
            return max(0.0, -self._now() / SHARE)

    def _now(self) -> float:
        now = self._clock()
        self._left_seconds = min(BURST_SECONDS, self._left_seconds + (now - self._seen) * SHARE)
        self._seen = now
        return self._left_seconds
