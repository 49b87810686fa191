"""The free space on the disk of an embedded broker."""

from __future__ import annotations


class DiskSpace:
    """A flag that simulates a full disk. Tests set the flag, and the broker reads it, from any thread."""

    def __init__(self) -> None:
        self.is_full = False
