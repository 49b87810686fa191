"""Transactional records in a coordinator's log. They take effect when their transaction commits (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from kwire.wire import batch

R = TypeVar("R")


class _HeldRecord(Generic[R]):
    """A record of an open transaction."""

    __slots__ = ("order", "record", "superseded")

    def __init__(self, record: R, order: int) -> None:
        self.record = record
        self.order = order
        self.superseded = False
        """Whether a later record of the same key is committed, so that this record never takes effect."""


class TransactionalRecords(Generic[R]):
    """The records that are held back until their transactions end.

    If several records have the same key, the last committed record in the log takes effect, in whatever order
    the transactions end. A tombstone outside of a transaction drops the held records with the same key.
    """

    def __init__(
        self,
        decode_batch: Callable[[memoryview], Iterator[R]],
        on_held: Callable[[R], None] = lambda record: None,
        key_of: Callable[[R], Hashable | None] = lambda record: None,
        is_tombstone: Callable[[R], bool] = lambda record: False,
    ) -> None:
        """`decode_batch` decodes the records of a batch. `on_held` is called for each record held back.

        `key_of` returns the key by which records supersede each other, or None for a record that no other
        record supersedes.
        """
        self._decode_batch = decode_batch
        self._on_held = on_held
        self._key_of = key_of
        self._is_tombstone = is_tombstone
        self._open: dict[int, dict[Hashable, _HeldRecord[R]]] = {}
        """The records of each producer's open transaction."""
        self._holders: dict[Hashable, set[int]] = {}
        """By key: the ids of the producers whose open transactions contain a record with the key."""
        self._order = 0

    def committed_by(self, data: memoryview) -> Iterator[R]:
        """Hold back the records of a stored batch, or yield the records that take effect with the batch.

        Raises CorruptBatch, and errors of `decode_batch`.
        """
        header = batch.read_header(data)
        if not header.is_transactional:
            if not header.is_control:
                for record in self._decode_batch(data):
                    self.supersede_held(record)
                    yield record
            return
        if not header.is_control:
            self.hold(header.producer_id, self._decode_batch(data))
            return
        for marker in batch.records(data, 0, header):
            _, kind = batch.control_type(marker)
            if kind in (batch.ABORT, batch.COMMIT):
                yield from self.end_transaction(header.producer_id, commit=kind == batch.COMMIT)

    def hold(self, producer_id: int, records: Iterable[R]) -> None:
        """Hold back records until the producer's transaction ends."""
        open_records = self._open.setdefault(producer_id, {})
        for record in records:
            self._order += 1
            key = self._key_of(record)
            if key is None:
                open_records[_UniqueKey()] = _HeldRecord(record, self._order)
            else:
                open_records[key] = _HeldRecord(record, self._order)
                self._holders.setdefault(key, set()).add(producer_id)
            self._on_held(record)

    def supersede_held(self, record: R) -> None:
        """Supersede held records by a record with the same key that was written outside of a transaction."""
        if not self._holders:
            return
        key = self._key_of(record)
        if key is None or key not in self._holders:
            return
        if self._is_tombstone(record):
            for producer_id in self._holders.pop(key):
                del self._open[producer_id][key]
        else:
            self._supersede(key, self._order + 1)

    def end_transaction(self, producer_id: int, *, commit: bool) -> list[R]:
        """End a producer's transaction and return its records that take effect now."""
        committed: list[R] = []
        for key, held in self._open.pop(producer_id, {}).items():
            holders = self._holders.get(key)
            if holders is not None:
                holders.discard(producer_id)
                if not holders:
                    del self._holders[key]
            if commit and not held.superseded:
                self._supersede(key, held.order)
                committed.append(held.record)
        return committed

    def _supersede(self, key: Hashable, order: int) -> None:
        for producer_id in self._holders.get(key, ()):
            held = self._open[producer_id][key]
            if held.order < order:
                held.superseded = True

    def held(self) -> Iterator[R]:
        """Yield all records of open transactions."""
        for records in self._open.values():
            for held in records.values():
                yield held.record


class _UniqueKey:
    """The key of a record that no other record supersedes."""

    __slots__ = ()
