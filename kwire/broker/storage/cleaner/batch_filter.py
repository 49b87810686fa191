"""Decisions about the batches of a log, in offset order: a cleaning keeps, changes or removes each batch.

This module has the rules for transactions, empty batches and tombstones. The subclasses in `offset_map` and
`backward_key_scan` decide which records are the last ones with their keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from kwire.broker.storage.cleaner.batch_reader import TRANSACTIONAL_OR_CONTROL
from kwire.broker.storage.cleaner.batch_rebuild import (
    REMOVED,
    decompressed_records,
    empty_batch,
    ranges_of,
    with_delete_horizon,
    with_records,
)
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata, marker_kind
from kwire.broker.storage.cleaner.key_reader import KeyReader
from kwire.broker.storage.cleaner.record_keys import RecordKeys
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import BatchHeader
from kwire.wire.named_tuple import NamedTuple


class LastRecord(NamedTuple):
    """The offset and epoch of an active producer's last data batch. Kafka's LastRecord."""

    last_offset: int | None
    """The last offset of the producer's data; None if the log has only a marker of the producer."""
    epoch: int


class CleaningRules(NamedTuple):
    """The parameters of one cleaning, except for the records' keys. `last_records` is by producer id."""

    now_ms: int
    delete_retention_ms: int
    first_dirty_offset: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord]


class BatchFilter(ABC):
    """Base class that decides which records of each batch are kept. Batches must be in offset order."""

    def __init__(
        self,
        rules: CleaningRules,
        transactions_of_log: Callable[[], CleanedTransactionMetadata],
    ) -> None:
        """`transactions_of_log` is called once, at the first transactional or control batch."""
        self._rules = rules
        self._horizon_ms = rules.now_ms + rules.delete_retention_ms
        self._transactions_of_log = transactions_of_log
        self._transactions: CleanedTransactionMetadata | None = None
        self._keys_of = KeyReader().keys_of
        self.records_read = 0
        self.records_kept = 0

    def filter_batch(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        """Return None to keep the batch unchanged, REMOVED, or a replacement. Raises CorruptBatch."""
        count = header.records_count
        self.records_read += count
        if header.attributes & TRANSACTIONAL_OR_CONTROL:
            return self._filter_transactional(data, at, header)
        if not count:
            return None if self._retains_empty(header) else REMOVED
        return self._filter_data(data, at, header)

    def take_kept_transactions(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were kept since the last call."""
        if self._transactions is None:
            return []
        kept, self._transactions.kept = self._transactions.kept, []
        return kept

    def _filter_transactional(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        transactions = self._transactions
        if transactions is None:
            transactions = self._transactions = self._transactions_of_log()
        if header.is_control:
            return self._filter_control(data, at, header, transactions)
        if transactions.on_batch_read(header):
            return self._emptied_or_removed(header)
        if not header.records_count:
            return None if self._retains_empty(header) else REMOVED
        return self._filter_data(data, at, header)

    def _filter_control(
        self, data: bytes, at: int, header: BatchHeader, transactions: CleanedTransactionMetadata
    ) -> bytes | bytearray | None:
        needless = transactions.on_control_batch_read(header, marker_kind(data, at, header))
        if not header.records_count:
            return None if self._retains_empty(header) else REMOVED
        if needless and header.has_delete_horizon and header.base_timestamp <= self._rules.now_ms:
            return self._emptied_or_removed(header)
        self.records_kept += header.records_count
        if needless and not header.has_delete_horizon:
            payload, start, end = decompressed_records(data, at, header)
            return with_delete_horizon(
                payload, [(start, end)], header, header.records_count, self._horizon_ms
            )
        return None

    def _retains_empty(self, header: BatchHeader) -> bool:
        """Return whether a batch is kept even though it has no records left."""
        if header.next_offset == self._rules.upper_bound_offset:
            return True
        if not header.has_producer_id:
            return False
        last = self._rules.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    # --- data batches

    @abstractmethod
    def _filter_data(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        """Filter a data batch that was not aborted. The result is as for `filter_batch`."""

    def _emptied_or_removed(self, header: BatchHeader) -> bytes | bytearray:
        return empty_batch(header) if self._retains_empty(header) else REMOVED

    def _without_old_tombstones(
        self, records: RecordKeys, chosen: list[int], header: BatchHeader
    ) -> list[int]:
        """Return the chosen record indexes without the tombstones that are past their delete horizon."""
        if records.tombstones and header.has_delete_horizon and header.base_timestamp <= self._rules.now_ms:
            tombstones = set(records.tombstones)
            return [index for index in chosen if index not in tombstones]
        return chosen

    def _with_chosen(
        self, payload: bytes, records: RecordKeys, chosen: list[int], header: BatchHeader
    ) -> bytes | bytearray | None:
        """Return the result of `filter_batch` for a batch that keeps the records at the chosen indexes.

        `payload` has the uncompressed records of the batch.
        """
        if not chosen:
            return self._emptied_or_removed(header)
        kept = len(chosen)
        self.records_kept += kept
        ranges = ranges_of(records.starts, chosen)
        if not header.has_delete_horizon and not set(records.tombstones).isdisjoint(chosen):
            return with_delete_horizon(payload, ranges, header, kept, self._horizon_ms)
        if kept == header.records_count:
            return None
        return with_records(b"".join([payload[begin:stop] for begin, stop in ranges]), header, kept)
