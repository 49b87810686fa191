"""A process that has no free file descriptor."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUSY_SECONDS, PAUSE_SECONDS = 0.2, 0.05
FREED = 50


class Hog:
    """All descriptors of this process that were free."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def take_all(self) -> None:
        """Take every free descriptor."""
        while True:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Take free descriptors all the time in another thread, except for short pauses."""
        is_over = threading.Event()

        def take_turns() -> None:
            while not is_over.wait(PAUSE_SECONDS):
                deadline = time.monotonic() + BUSY_SECONDS
                while time.monotonic() < deadline and not is_over.wait(0.001):
                    self.take_all()
                self.free(FREED)

        thread = threading.Thread(target=take_turns)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def free(self, count: int | None = None) -> None:
        """Free some descriptors, or all of them."""
        for _ in range(len(self._held) if count is None else min(count, len(self._held))):
            os.close(self._held.pop())


@contextmanager
def open_file_limit(more: int = 200) -> Iterator[None]:
    """Lower the limit of this process to a few descriptors more than it uses."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(used + more, before[0]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def no_free_descriptors() -> Iterator[Hog]:
    """Take every descriptor of this process during the block."""
    hog = Hog()
    with open_file_limit():
        try:
            hog.take_all()
            yield hog
        finally:
            hog.free()
