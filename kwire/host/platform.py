"""The operating systems on which a broker runs."""

from __future__ import annotations

import sys
from typing import Any, Final

SENTENCE: Final = (
    "kwire's broker runs on Linux only: on macOS, use the container image (docker/README.md), and on Windows "
    "the image or WSL"
)


class UnsupportedPlatform(RuntimeError):
    """A broker cannot run on this operating system."""

    def __init__(self) -> None:
        super().__init__(SENTENCE)


def check_platform() -> None:
    """Raise UnsupportedPlatform if a broker cannot run on this operating system."""
    if sys.platform != "linux":
        raise UnsupportedPlatform


class Unavailable:
    """A class in place of one that needs Linux. It can be imported, but has no objects."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedPlatform
