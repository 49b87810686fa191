"""Which transactions in a log were aborted, and which markers nobody needs any more. KIP-98, KIP-534.

What was aborted is told by the log's transaction indexes, as Apache Kafka's cleaner is told. An entry goes
from index to index as it is: to say it anew from what is left would make it begin later each time.
"""

from __future__ import annotations

from collections.abc import Iterable

from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import ABORT, COMMIT, BatchHeader, control_type, records


def marker_kind(data: bytes, at: int, header: BatchHeader) -> int | None:
    """ABORT or COMMIT; None for a control batch that was emptied, or is about something else."""
    for record in records(data, at, header):
        _, kind = control_type(record)
        return kind if kind in (ABORT, COMMIT) else None
    return None


class CleanedTransactionMetadata:
    """Follows the transactions of a log from batch to batch, and says what may be discarded.

    It goes by Apache Kafka's rules also where these are peculiar, so that both leave the same to whoever
    reads: a commit marker stays after data that an abort marker ended before the log start, and an abort
    marker that is not met, for reading began behind it, has the producer's next transaction taken for
    aborted. Only an abort marker whose data stays, because nothing tells that it was aborted, stays here as
    well. Without it the transaction would be open for ever once the state of producers is made anew.
    """

    def __init__(self, aborted: Iterable[AbortedTxn], log_start_offset: int) -> None:
        """`aborted`: what the indexes tell. Transactions that ended before the log start are no more."""
        self._log_start_offset = log_start_offset
        known = (entry for entry in aborted if entry.last_offset >= log_start_offset)
        self._aborted = sorted(known, key=lambda entry: entry.first_offset, reverse=True)
        """Those that did not begin yet, the next one last."""
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._seen_aborted: set[int] = set()
        """Producers whose ongoing transaction is aborted, and has left data."""
        self._ongoing_committed: set[int] = set()
        self._unended: dict[int, int] = {}
        """Where data that is not known to be aborted, and that no marker followed, ends; by its producer."""
        self.kept: list[AbortedTxn] = []
        """The aborted transactions whose marker stays because data was met, for the transaction index."""

    def _start_transactions(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            entry = self._aborted.pop()
            self._ongoing_aborted.setdefault(entry.producer_id, entry)

    def on_batch_read(self, header: BatchHeader) -> bool:
        """A transactional batch of data: whether it was aborted."""
        self._start_transactions(header.last_offset)
        producer_id = header.producer_id
        if producer_id in self._ongoing_aborted:
            self._seen_aborted.add(producer_id)
            return True
        self._ongoing_committed.add(producer_id)
        self._unended[producer_id] = header.last_offset
        return False

    def on_control_batch_read(self, header: BatchHeader, kind: int | None) -> bool:
        """A control batch: whether nothing is left that it says anything about."""
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
        # Behind the log start, what lies before it is of another transaction, whose marker is gone already.
        start = self._log_start_offset
        return data_offset < start <= header.last_offset
