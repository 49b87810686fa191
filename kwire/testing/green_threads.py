"""Detection of gevent and eventlet, which replace threads by green threads."""

from __future__ import annotations

import time
from collections.abc import Callable

LIBRARIES = {"gevent", "eventlet"}


def green_sleep() -> Callable[[float], None] | None:
    """Return the `time.sleep` of gevent or eventlet, which runs the other green threads meanwhile.

    Return None if neither library has patched this process.
    """
    sleep: Callable[[float], None] = time.sleep
    library = str(getattr(sleep, "__module__", None)).partition(".")[0]
    return sleep if library in LIBRARIES else None
