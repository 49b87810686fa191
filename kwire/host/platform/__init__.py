"""The operating systems on which a broker runs, and what differs between them.

`events` has pollers, timers and wake-ups of an event loop, `files` has operations on files, `sockets` has
options of sockets, and `processes` has the CPU time, arguments, priorities and limits of processes. Each
module chooses an implementation once, on import. All other modules use only functions that both systems have.
"""

from __future__ import annotations

import sys
from typing import Any, Final

SENTENCE: Final = (
    "kwire's broker runs only on Linux and macOS: on other systems, use the container image "
    "(docker/README.md), or WSL on Windows"
)
IS_SUPPORTED: Final = sys.platform in ("linux", "darwin")


class UnsupportedPlatform(RuntimeError):
    """A broker cannot run on this operating system."""

    def __init__(self) -> None:
        super().__init__(SENTENCE)


def check_platform() -> None:
    """Raise UnsupportedPlatform if a broker cannot run on this operating system."""
    if not IS_SUPPORTED:
        raise UnsupportedPlatform


class Unavailable:
    """A class in place of one that a broker needs. It can be imported, but has no objects."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedPlatform
