"""Aborted transactions in a log, and the markers that a cleaning can remove. KIP-98, KIP-534.

The log's transaction indexes show which transactions were aborted, as for Kafka's cleaner. Index entries are
copied unchanged. If they were computed from the remaining records, each cleaning would raise their first
offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import ABORT, COMMIT, BatchHeader, control_type, records


def marker_kind(data: bytes, at: int, header: BatchHeader) -> int | None:
    """Return ABORT or COMMIT, or None for an empty control batch and for other control records."""
    for record in records(data, at, header):
        _, kind = control_type(record)
        return kind if kind in (ABORT, COMMIT) else None
    return None


class CleanedTransactionMetadata:
    """The transactions of a log, read batch by batch, to decide which batches and markers to remove.

    Two rules are Kafka's, although they are peculiar, so that consumers read the same records as from Kafka:
    - A commit marker is kept even without data of its transaction, if the log still has data of an earlier
      transaction of the producer, which was aborted before the log start offset.
    - If reading starts after an abort marker that is in the index, its producer's next transaction counts as
      aborted.

    One rule is added. If no index entry shows that data was aborted, the data is kept, and then its abort
    marker is kept, too. Without the marker, the transaction would stay open forever after producer state is
    rebuilt.
    """

    def __init__(self, aborted: Iterable[AbortedTxn], log_start_offset: int) -> None:
        """Start with transaction index entries. Transactions that ended before the log start are ignored."""
        self._log_start_offset = log_start_offset
        known = (entry for entry in aborted if entry.last_offset >= log_start_offset)
        self._aborted = sorted(known, key=lambda entry: entry.first_offset, reverse=True)
        """Aborted transactions that have not started yet; the next one to start is last in the list."""
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._seen_aborted: set[int] = set()
        """Producers with an aborted transaction whose data was read."""
        self._ongoing_committed: set[int] = set()
        self._unended: dict[int, int] = {}
        """The last offset of data that is not known to be aborted and has no marker yet, by producer id."""
        self.kept: list[AbortedTxn] = []
        """Aborted transactions whose markers are kept because their data was read; written to the index."""

    def _start_transactions(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            entry = self._aborted.pop()
            self._ongoing_aborted.setdefault(entry.producer_id, entry)

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Process a transactional data batch and return whether it was aborted."""
        self._start_transactions(header.last_offset)
        producer_id = header.producer_id
        if producer_id in self._ongoing_aborted:
            self._seen_aborted.add(producer_id)
            return True
        self._ongoing_committed.add(producer_id)
        self._unended[producer_id] = header.last_offset
        return False

    def on_control_batch_read(self, header: BatchHeader, kind: int | None) -> bool:
        """Process a control batch and return whether the batch is no longer needed.

        `kind` is the result of `marker_kind`.
        """
        self._start_transactions(header.last_offset)
        if kind not in (ABORT, COMMIT):
            return not header.records_count
        producer_id = header.producer_id
        data_offset = self._unended.pop(producer_id, None)
        if kind == COMMIT:
            had_data = producer_id in self._ongoing_committed
            self._ongoing_committed.discard(producer_id)
            return not had_data
        entry = self._ongoing_aborted.pop(producer_id, None)
        if producer_id in self._seen_aborted:
            self._seen_aborted.discard(producer_id)
            assert entry is not None
            self.kept.append(entry)
            return False
        if data_offset is None:
            return True
        # Data before the log start offset belongs to an earlier transaction, whose marker no longer exists.
        start = self._log_start_offset
        return data_offset < start <= header.last_offset
