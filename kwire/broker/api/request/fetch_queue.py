"""The delayed Fetch requests of one connection: the first one waits for records, the others for their turn.

Responses are sent in the order of the requests, so a Fetch behind a delayed Fetch could not respond sooner
anyway. Its wait begins when it is first in line, as in Apache Kafka. Decision 0001.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.host.host import Host

StartFetch = Callable[[bool], None]
"""A function that starts a queued Fetch. The argument is whether the Fetch may wait for records."""

SLICE_MS: Final = 2
"""The time in ms for which one turn of the event loop starts queued Fetches of a connection."""


class FetchQueue:
    __slots__ = ("_host", "_is_ending", "complete", "is_muted", "is_slicing", "queued")

    def __init__(self) -> None:
        self.complete: Callable[[], None] | None = None
        """The function that completes the Fetch that waits for records; None if no Fetch does."""
        self.queued: list[StartFetch] = []
        """The Fetches behind it, in order."""
        self._host: Host | None = None
        self.is_slicing = False
        """Whether a large request is being handled in slices, and later requests of the connection wait."""
        self.is_muted = False
        """Whether the connection is muted, because its client has exceeded a quota. KIP-219."""
        self._is_ending = False
        """Whether the queued Fetches start without waiting, because another request follows them."""

    def begin_wait(self, complete: Callable[[], None]) -> None:
        """Register a Fetch that waits for records.

        `complete` sends the response, at once or without a further wait for records. It must call `end_wait`.
        """
        self.complete = complete

    def end_wait(self, complete: Callable[[], None]) -> None:
        """End the wait of the Fetch with this function, if it waits. Start the next Fetch soon.

        The next Fetch does not start at once, because the caller may be completing the delayed fetches of a
        partition.
        """
        if self.complete == complete:
            self.complete = None
            self._start_next_soon()

    def append(self, start: StartFetch, host: Host) -> None:
        """Queue a Fetch behind the delayed one. The event loop of `host` starts it."""
        self.queued.append(start)
        self._host = host

    def begin_slices(self) -> None:
        """Begin to handle a large Fetch or Produce. Call `end_slices` after it."""
        assert not self.is_slicing
        self.is_slicing = True

    def end_slices(self) -> None:
        """Start the next Fetch soon, unless the Fetch that was handled in slices waits for records."""
        self.is_slicing = False
        self._continue()

    def unmute(self) -> None:
        """Start the next Fetch soon if the connection was muted."""
        if self.is_muted:
            self.is_muted = False
            self._continue()

    def _continue(self) -> None:
        if self._is_ending:
            assert self._host is not None
            self._host.call_soon(self._start_some)
        elif self.complete is None:
            self._start_next_soon()

    def _start_next_soon(self) -> None:
        if self.queued and not self._is_ending:
            assert self._host is not None
            self._host.call_soon(self._start_next)

    def _start_next(self) -> None:
        if self.queued and self.complete is None and not self._is_ending and not self._is_held:
            self.queued.pop(0)(True)
            if self.complete is None and not self._is_held:
                self._start_next_soon()

    @property
    def _is_held(self) -> bool:
        return self.is_slicing or self.is_muted

    def complete_all(self) -> bool:
        """Complete every Fetch with the records that are available, because another request follows.

        Returns whether all Fetches have started. Otherwise this turn of the event loop has no more time for
        this connection, and the next turns start the other Fetches.
        """
        if self.complete is not None:
            self.complete()
        if self.queued and not self._is_ending:
            self._start_some()
        return not self.queued and not self.is_slicing

    def _start_some(self) -> None:
        """Start queued Fetches, which may not wait for records, for up to `SLICE_MS`."""
        host = self._host
        assert host is not None
        until_ms = host.monotonic_ms() + SLICE_MS
        self._is_ending = False  # also if a start fails
        while self.queued and not self._is_held:
            self.queued.pop(0)(False)
            if host.monotonic_ms() >= until_ms:
                break
        if self.queued:
            self._is_ending = True
            if not self._is_held:
                host.call_soon(self._start_some)

    def clear(self) -> None:
        """Forget every Fetch, because the connection sends no more responses."""
        self.complete = None
        self.queued.clear()
