"""Segments of a log that are not on this disk. KIP-405.

Tiered storage is not implemented: no log has remote segments yet. A log reads them as described here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kwire.broker.storage.file_region import CopiedRegion
from kwire.broker.storage.log.segment import TimestampOffset
from kwire.broker.storage.log.transaction_index import AbortedTxn


class RemoteRegion(CopiedRegion):
    """Batches of a remote segment, and the aborted transactions that read_committed consumers skip."""

    __slots__ = ("aborted",)

    def __init__(self, data: bytes, aborted: Sequence[AbortedTxn] = ()) -> None:
        super().__init__(data)
        self.aborted = list(aborted)


class RemoteSegment(Protocol):
    """A segment that is not on this disk. All its records are below the last stable offset.

    `read` and `find_timestamp` are called in worker threads, possibly in several at the same time. They raise
    StorageError if the remote storage fails; clients then retry.
    """

    @property
    def end_offset(self) -> int:
        """The offset after the last record. It is at most the base offset of the next remote segment."""

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the records."""

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> RemoteRegion:
        """Return the bytes from the batch that contains `offset`, with the limits of `ReadableLog.read`."""

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """Return the first record from `start_offset` on with this timestamp or a later one, or None."""
