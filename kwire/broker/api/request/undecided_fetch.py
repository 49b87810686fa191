"""The place of a started Fetch in its connection's `FetchQueue`, before it is known whether the Fetch waits.

A controller syncs a new leader epoch to disk before it answers a Fetch. Meanwhile, later requests of the
connection must find the Fetch in the queue. A later Fetch waits behind it, and any other request forbids it
to wait for records. Decision 0001.
"""

from __future__ import annotations

from kwire.broker.api.request.fetch_queue import FetchQueue


class UndecidedFetch:
    """A Fetch that has started. Call `end` after it has responded or has begun to wait for records."""

    __slots__ = ("_queue", "may_wait")

    def __init__(self, queue: FetchQueue) -> None:
        self._queue = queue
        self.may_wait = True
        """Whether the Fetch may still wait for records."""
        queue.begin_wait(self._forbid_wait)

    def _forbid_wait(self) -> None:
        self.may_wait = False
        self.end()

    def end(self) -> None:
        """Leave the queue, unless the wait of this Fetch for records has taken its place."""
        self._queue.end_wait(self._forbid_wait)
