"""The time and the chance that a program has while it is simulated: those of its cluster, and of its seed."""

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
    """Have `time` and `random` be the program's, for what runs in this thread; others have the real time.

    `sleep` is called in the place of `time.sleep`.
    Who has asked `from time import monotonic`, or `datetime`, has the real time, too.
    """
    thread, state = threading.get_ident(), random.getstate()
    really_sleep = time.sleep
    real: dict[str, Callable[[], float]] = {name: getattr(time, name) for name in TIME_FUNCTIONS}

    def of_program(name: str) -> Callable[[], float]:
        def now() -> float:
            if threading.get_ident() != thread:
                return real[name]()
            now_ms = clock.now_ms() if name.startswith("time") else clock.monotonic_ms()
            return now_ms * 1_000_000 if name.endswith("_ns") else now_ms / 1000

        return now

    def wait(delay_s: float) -> None:
        (sleep if threading.get_ident() == thread else really_sleep)(delay_s)

    random.seed(rng.getrandbits(64))
    for name in TIME_FUNCTIONS:
        setattr(time, name, of_program(name))
    time.sleep = wait  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in TIME_FUNCTIONS:
            setattr(time, name, real[name])
        time.sleep = really_sleep
        random.setstate(state)
