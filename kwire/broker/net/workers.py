"""Worker threads for blocking work, such as disk I/O. They start on demand and end with the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

from kwire.broker.storage.disk import ResourceShortage

DELAY_SECONDS: Final = 0.1

T = TypeVar("T")


class Workers:
    """A pool of threads that start pieces of work in the order of their submission."""

    def __init__(
        self,
        max_threads: int,
        deliver: Callable[[Callable[[Any], None], Any], None],
        *,
        retry: Callable[[Callable[[], None]], None],
    ) -> None:
        """`deliver` is called once per piece of work, in the worker thread, with `done` and the result.

        `retry` calls a function later, in the thread of the event loop, if work has no thread because the
        system permits none. `start_first_thread` prevents this.
        """
        self._retry = retry
        self._is_retrying = False
        self._max_threads = max_threads
        self._deliver = deliver
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self.in_progress = 0
        """The number of undelivered results. The code that delivers a result decrements it."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in a thread, then deliver its result or exception to `done`."""
        self.in_progress += 1
        self._queue.put((work, done))
        if len(self._threads) < min(self.in_progress, self._max_threads):
            self._start_thread()

    def start_first_thread(self) -> None:
        """Start a thread, so that no later work is without one. Raises ResourceShortage."""
        thread = start_thread(self._work)
        if thread is None:
            raise ResourceShortage(
                "the system permits no thread for disk I/O (see `ulimit -u`, and pids.max of the cgroup)"
            )
        self._threads.append(thread)

    def _start_thread(self) -> None:
        thread = start_thread(self._work)
        if thread is not None:
            self._threads.append(thread)
        elif not self._threads and not self._is_retrying:
            # With a thread, the work only waits longer.
            self._is_retrying = True
            self._retry(self._start_first_thread)

    def _start_first_thread(self) -> None:
        self._is_retrying = False
        if self.in_progress and not self._threads:
            self._start_thread()

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
        """Let the threads end after the queued work. Wait for them only if no work is in progress."""
        for _ in self._threads:
            self._queue.put(None)
        if not self.in_progress:
            for thread in self._threads:
                thread.join()


def start_thread(target: Callable[[], None]) -> Thread | None:
    """Start a worker thread; return None if the system has no memory or no id for another thread."""
    try:
        # A daemon thread, because a thread that hangs on a disk must not keep the process alive.
        thread = Thread(target=target, name="kwire worker", daemon=True)
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread


def run_all(
    works: Iterable[Callable[[], None]],
    max_threads: int,
    on_delay: Callable[[], object] = lambda: None,
) -> None:
    """Run all functions in threads. Return when all have ended, or raise the first exception of a function.

    The next function is taken from `works`, in this thread, when a thread is about to become free. At most
    two functions per thread are taken and not done. If the system permits no thread, this thread runs them.
    While this thread waits, it calls `on_delay` every `DELAY_SECONDS`.
    """
    waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    free: SimpleQueue[None] = SimpleQueue()
    threads: list[Thread] = []
    failures: list[BaseException] = []

    def work_through() -> None:
        while (work := waiting.get()) is not None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
            del work
            free.put(None)

    running = 0
    for work in works:
        if len(threads) < max_threads:
            thread = start_thread(work_through)
            if thread is not None:
                threads.append(thread)
        if not threads:
            work()
            continue
        if running >= 2 * max_threads:
            _get(free, on_delay)
        else:
            running += 1
        waiting.put(work)
        del work
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        while thread.is_alive():
            thread.join(DELAY_SECONDS)
            on_delay()
    if failures:
        raise failures[0]


def _get(queue: SimpleQueue[T], on_delay: Callable[[], object]) -> T:
    while True:
        try:
            return queue.get(timeout=DELAY_SECONDS)
        except Empty:
            on_delay()
