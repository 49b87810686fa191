"""The room on the disk of an embedded broker, which may be none."""

from __future__ import annotations


class DiskSpace:
    """Whether there is room: for any thread to say, and to look at."""

    def __init__(self) -> None:
        self.is_full = False
