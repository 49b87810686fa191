"""Work in a thread with idle priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def run_at_idle_priority(work: Callable[[], T]) -> T:
    """Run `work` in a thread with SCHED_IDLE. Return the result of `work`, or raise its exception.

    A process with high niceness keeps a processor until the end of its time slice, some milliseconds, even if
    a broker waits for the processor. A SCHED_IDLE thread yields at once. The thread cannot return to normal
    priority, so each call starts its own thread.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        if hasattr(os, "SCHED_IDLE"):
            with suppress(OSError):  # a container may forbid it
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
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
