"""Replacement of `time` and `random` for a simulated program, by the clock and seed of its cluster."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kwire.host.clock import Clock

TIME_FUNCTIONS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


@contextmanager
def patch_time_and_random(clock: Clock, rng: random.Random, sleep: Callable[[float], None]) -> Iterator[None]:
    """Patch `time` for this thread, and seed `random`. Other threads keep the real time.

    `sleep` replaces `time.sleep`. `datetime`, and code that has executed `from time import monotonic`, still
    use the real time. The state of `random`, which all threads share, is restored at the end.
    """
    thread, state = threading.get_ident(), random.getstate()
    real_sleep = time.sleep
    real: dict[str, Callable[[], float]] = {name: getattr(time, name) for name in TIME_FUNCTIONS}

    def simulated(name: str) -> Callable[[], float]:
        def now() -> float:
            if threading.get_ident() != thread:
                return real[name]()
            now_ms = clock.now_ms() if name.startswith("time") else clock.monotonic_ms()
            return now_ms * 1_000_000 if name.endswith("_ns") else now_ms / 1000

        return now

    def sleep_in_thread(delay_s: float) -> None:
        (sleep if threading.get_ident() == thread else real_sleep)(delay_s)

    random.seed(rng.getrandbits(64))
    for name in TIME_FUNCTIONS:
        setattr(time, name, simulated(name))
    time.sleep = sleep_in_thread  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in TIME_FUNCTIONS:
            setattr(time, name, real[name])
        time.sleep = real_sleep
        random.setstate(state)
