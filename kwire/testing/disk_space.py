"""The free space on the disk of an embedded broker."""

from __future__ import annotations


class DiskSpace:
    """Whether the disk is full. Tests set it, and the broker reads it, from any thread."""

    def __init__(self) -> None:
        self.is_full = False
