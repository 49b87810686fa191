"""Produce requests of a partition that wait for their acknowledgement."""

from __future__ import annotations

from collections.abc import Callable

from kwire.host.host import Timer
from kwire.wire.errors import ApiError

AppendCallback = Callable[[ApiError | None], None]
"""A callback for an append. It is called once, with None after success or with the error."""

NO_REPLICATION = 0
"""The required offset of an append that does not wait for replication."""

PendingAcknowledgement = tuple[int, AppendCallback, int | None]
"""The high watermark that an append requires, its callback, and the replication timeout in ms (None: no
limit)."""


class DelayedProduce:
    """An append in purgatory. The leader has written the records; the high watermark has not passed them."""

    __slots__ = ("callback", "required_offset", "timer")

    def __init__(self, required_offset: int, callback: AppendCallback) -> None:
        self.required_offset = required_offset
        self.callback = callback
        self.timer: Timer | None = None
