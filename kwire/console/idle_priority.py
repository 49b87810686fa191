"""Work that waits for processors that nobody else wants."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def run_at_idle_priority(work: Callable[[], T]) -> T:
    """What `work` returns or raises, done when a processor has nothing else to do.

    In a thread of its own, which cannot become a busier one again. Who is merely nice keeps a processor to
    the end of its slice, some milliseconds, when a broker there has a request to answer; who is idle does
    not.
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

    thread = threading.Thread(target=run, name="at leisure", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
