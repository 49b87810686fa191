"""Work in a thread with idle priority."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from kwire.host.platform.processes import run_when_idle

T = TypeVar("T")


def run_at_idle_priority(work: Callable[[], T]) -> T:
    """Run `work` in a thread, and return its result or raise its exception.

    On Linux, the thread has the priority SCHED_IDLE.

    A process with high niceness keeps a processor until the end of its time slice, some milliseconds, even if
    a broker waits for the processor. A SCHED_IDLE thread yields at once. The thread cannot return to normal
    priority, so each call starts its own thread.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        run_when_idle()
        try:
            results.append(work())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="idle priority", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
