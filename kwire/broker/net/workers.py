"""Threads for work that waits for a disk. They start when there is something to do, and end with the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Workers:
    """At most so many threads, which take work in order."""

    def __init__(self, max_threads: int, deliver: Callable[[Callable[[Any], None], Any], None]) -> None:
        """`deliver` is called in a thread with `done` and its argument, once for each work."""
        self._max_threads = max_threads
        self._deliver = deliver
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.in_progress = 0
        """How much work is not delivered yet; the loop counts it down."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have `work` done, and `done` delivered with what it returned, or the exception that it raised."""
        self.in_progress += 1
        self._queue.put((work, done))
        if len(self._threads) < min(self.in_progress, self._max_threads):
            # Whoever hangs on a disk must not keep the process from ending.
            thread = threading.Thread(target=self._work, name="kwire worker", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            work, done = task
            result: Any
            try:
                result = work()
            except BaseException as error:
                result = error
            self._deliver(done, result)
            del task, work, done, result

    def close(self) -> None:
        """End the threads, if none of them is busy any more."""
        for _ in self._threads:
            self._queue.put(None)
        if not self.in_progress:
            for thread in self._threads:
                thread.join()
