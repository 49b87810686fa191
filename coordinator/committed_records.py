"""Which records of a stored log count: those of transactions from their commit marker on (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from kwire import batch

ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1

R = TypeVar("R")


class CommittedRecords(Generic[R]):
    """Reads batch after batch, and holds back what transactions have written and not committed yet."""

    def __init__(self, records_of: Callable[[memoryview], Iterator[R]]) -> None:
        """`records_of` decodes the records of one batch."""
        self._records_of = records_of
        self._open: dict[int, list[R]] = {}
        """What each producer's open transaction has written so far."""

    def of(self, data: memoryview) -> Iterator[R]:
        """The records that take effect with this batch. CorruptBatch, and what `records_of` raises."""
        header = batch.read_header(data)
        if not header.is_transactional:
            if not header.is_control:
                yield from self._records_of(data)
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, []).extend(self._records_of(data))
            return
        for marker in batch.records(data, 0, header):
            _, kind = batch.control_type(marker)
            if kind in (ABORT_MARKER, COMMIT_MARKER):
                held = self._open.pop(header.producer_id, [])
                if kind == COMMIT_MARKER:
                    yield from held
