"""What a partition has promised to whom appends to it."""

from __future__ import annotations

from collections.abc import Callable

from kwire.host.host import Timer
from kwire.wire.errors import ApiError

AppendCallback = Callable[[ApiError | None], None]
"""AppendCallback once what was promised of an append is so (None), or that it failed."""

NO_REPLICATION = 0
"""As an offset that has to be replicated: none."""

PendingAcknowledgement = tuple[int, AppendCallback, int | None]
"""Whom to tell of an append once it is written and the high watermark is there; how long to wait for that."""


class DelayedProduce:
    """A promise of what is written, and waits for other replicas."""

    __slots__ = ("callback", "required_offset", "timer")

    def __init__(self, required_offset: int, callback: AppendCallback) -> None:
        self.required_offset = required_offset
        self.callback = callback
        self.timer: Timer | None = None
