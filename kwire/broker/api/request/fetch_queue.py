"""The delayed Fetch requests of one connection: the first one waits for records, the others for their turn.

Responses are sent in the order of the requests, so a Fetch behind a delayed Fetch could not respond sooner
anyway. Its wait begins when it is first in line, as in Apache Kafka. Decision 0001.
"""

from __future__ import annotations

from collections.abc import Callable

StartFetch = Callable[[bool], None]
"""A function that starts a queued Fetch. The argument is whether the Fetch may wait for records."""


class FetchQueue:
    __slots__ = ("_call_soon", "complete", "queued")

    def __init__(self) -> None:
        self.complete: Callable[[], None] | None = None
        """The function that completes the Fetch that waits for records; None if no Fetch does."""
        self.queued: list[StartFetch] = []
        """The Fetches behind it, in order."""
        self._call_soon: Callable[[Callable[[], None]], None] | None = None

    def begin_wait(self, complete: Callable[[], None]) -> None:
        """Register a Fetch that waits for records. `complete` must call `end_wait` and send the response."""
        self.complete = complete

    def end_wait(self, complete: Callable[[], None]) -> None:
        """End the wait of the Fetch with this function, if it waits. Start the next Fetch soon.

        The next Fetch does not start at once, because the caller may be completing the delayed fetches of a
        partition.
        """
        if self.complete == complete:
            self.complete = None
            self._start_next_soon()

    def append(self, start: StartFetch, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """Queue a Fetch behind the delayed one. `call_soon` schedules a function for the event loop."""
        self.queued.append(start)
        self._call_soon = call_soon

    def _start_next_soon(self) -> None:
        if self.queued:
            assert self._call_soon is not None
            self._call_soon(self._start_next)

    def _start_next(self) -> None:
        if self.queued and self.complete is None:
            self.queued.pop(0)(True)
            if self.complete is None:
                self._start_next_soon()

    def complete_all(self) -> None:
        """Complete every Fetch with the records that are available, because another request follows."""
        if self.complete is not None:
            self.complete()
        while self.queued:
            self.queued.pop(0)(False)

    def clear(self) -> None:
        """Forget every Fetch, because the connection sends no more responses."""
        self.complete = None
        self.queued.clear()
