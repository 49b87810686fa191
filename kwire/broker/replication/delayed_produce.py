"""Acknowledgements that a partition owes to its producers."""

from __future__ import annotations

from collections.abc import Callable

from kwire.host.host import Timer
from kwire.wire.errors import ApiError

AppendCallback = Callable[[ApiError | None], None]
"""A callback for an append: called once, with None or with the error."""

NO_REPLICATION = 0
"""The required offset of an append that need not be replicated."""

PendingAcknowledgement = tuple[int, AppendCallback, int | None]
"""The high watermark that an append requires, its callback, and the timeout for replication in ms."""


class DelayedProduce:
    """An append in purgatory: it is written, and waits until other replicas have it."""

    __slots__ = ("callback", "required_offset", "timer")

    def __init__(self, required_offset: int, callback: AppendCallback) -> None:
        self.required_offset = required_offset
        self.callback = callback
        self.timer: Timer | None = None
