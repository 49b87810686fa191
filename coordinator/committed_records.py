"""Which records of a stored log count: those of transactions from their commit marker on (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from kwire import batch

ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1

R = TypeVar("R")


class CommittedRecords(Generic[R]):
    """Holds back what transactions have written and not ended yet."""

    def __init__(
        self,
        records_of: Callable[[memoryview], Iterator[R]],
        on_held: Callable[[R], None] = lambda record: None,
        takes_back: Callable[[R], Callable[[R], bool] | None] = lambda record: None,
    ) -> None:
        """`records_of` decodes the records of one batch; `on_held` is told of each that is held back.

        `takes_back` gives, for a record written outside of transactions, which of those that are held it does
        away with; None, as mostly, where with none.
        """
        self._records_of = records_of
        self._on_held = on_held
        self._takes_back = takes_back
        self._open: dict[int, list[R]] = {}
        """What each producer's open transaction has written so far."""

    def of(self, data: memoryview) -> Iterator[R]:
        """The records that take effect with this batch. CorruptBatch, and what `records_of` raises."""
        header = batch.read_header(data)
        if not header.is_transactional:
            if not header.is_control:
                for record in self._records_of(data):
                    self.take_back(record)
                    yield record
            return
        if not header.is_control:
            self.hold(header.producer_id, self._records_of(data))
            return
        for marker in batch.records(data, 0, header):
            _, kind = batch.control_type(marker)
            if kind in (ABORT_MARKER, COMMIT_MARKER):
                yield from self.end(header.producer_id, commit=kind == COMMIT_MARKER)

    def hold(self, producer_id: int, records: Iterable[R]) -> None:
        """Records that count if the producer's transaction commits."""
        open_records = self._open.setdefault(producer_id, [])
        for record in records:
            open_records.append(record)
            self._on_held(record)

    def take_back(self, record: R) -> None:
        """A record was written outside of transactions: what it does away with never counts."""
        gone = self._takes_back(record) if self._open else None
        if gone is None:
            return
        for producer_id, held in self._open.items():
            self._open[producer_id] = [one for one in held if not gone(one)]

    def end(self, producer_id: int, *, commit: bool) -> list[R]:
        """The producer's transaction ends: the records that take effect now."""
        held = self._open.pop(producer_id, [])
        return held if commit else []

    def held(self) -> Iterator[R]:
        """Everything that waits for a transaction to end."""
        for records in self._open.values():
            yield from records
