"""Compaction of logs with transactions: committed records are kept, aborted records are removed."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, write_offsets
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import ABORT, COMMIT, BatchHeader, build, read_header
from tests.broker.storage.cleaner.test_log_cleaner import COMPACT, CleanerHarness
from tests.broker.storage.log_harness import committed_records, end_transaction


class TransactionHarness(CleanerHarness):
    """A log with small segments, and the records that a reader must find at the end."""

    def __init__(self) -> None:
        super().__init__(config=COMPACT._replace(segment_bytes=250))
        self.create()
        self.sequences: dict[int, int] = {}

    def write(self, key: bytes, value: bytes, producer_id: int | None = None) -> int:
        """Append a record, in a transaction if a producer is given, and return its offset."""
        offset = self.log.log_end_offset
        if producer_id is None:
            self.send((key, value))
            return offset
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        self.send(
            (key, value),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return offset

    def end(self, producer_id: int, kind: int) -> None:
        end_transaction(self.log, producer_id, kind, now_ms=self.host.now_ms())

    def roll(self) -> None:
        before = len(self.log.segments)
        while len(self.log.segments) == before:
            self.write(b"filler", bytes(100))

    def committed_records(self) -> dict[bytes | None, bytes | None]:
        """Return the last value of each key except fillers, as a read_committed consumer reads it."""
        found = {record.key: record.value for record in committed_records(self.log)}
        found.pop(b"filler", None)
        return found


def indexed_aborts(log: Log) -> list[AbortedTxn]:
    return [entry for segment in log.segments for entry in segment.aborted()]


@pytest.mark.parametrize("cleaned_while_open", [True, False])
def test_aborted_transaction_beside_an_open_one_supersedes_nothing(*, cleaned_while_open: bool) -> None:
    """The abort marker is above the last stable offset, which is the upper bound of the cleaning."""
    harness = TransactionHarness()
    harness.write(b"K", b"committed_records")
    harness.write(b"K", b"aborted", producer_id=1)
    harness.roll()
    harness.write(b"Y", b"y", producer_id=2)
    harness.end(1, ABORT)
    harness.roll()
    if cleaned_while_open:
        harness.run_cleaner()
        assert harness.cleaner.completed_cleanings
        assert harness.log.segments[0].base_offset < harness.log.last_stable_offset
    harness.end(2, COMMIT)
    assert harness.committed_records() == {b"K": b"committed_records", b"Y": b"y"}
    harness.roll()
    harness.run_cleaner()
    assert harness.committed_records() == {b"K": b"committed_records", b"Y": b"y"}


def test_index_entry_is_unchanged_when_its_first_records_are_removed() -> None:
    harness = TransactionHarness()
    first = harness.write(b"a", b"1", producer_id=1)
    harness.roll()
    harness.write(b"b", b"1", producer_id=1)
    harness.end(1, ABORT)
    (entry,) = indexed_aborts(harness.log)
    assert entry.first_offset == first
    harness.roll()
    harness.run_cleaner()
    assert indexed_aborts(harness.log) == [entry]
    # The last batch is kept without records until the producer writes another one.
    harness.write(b"c", b"1", producer_id=1)
    harness.end(1, COMMIT)
    for _ in range(2):
        harness.roll()
        harness.run_cleaner()
    assert indexed_aborts(harness.log) == []
    assert harness.committed_records() == {b"c": b"1"}


@pytest.mark.parametrize("seed", range(60))
def test_cleaning_does_not_change_committed_reads(seed: int) -> None:
    draw = random.Random(seed)
    harness = TransactionHarness()
    expected: dict[bytes | None, bytes | None] = {}
    open_ones: dict[int, list[tuple[int, bytes, bytes]]] = {}
    last: dict[bytes | None, int] = {}

    def settle(written: list[tuple[int, bytes, bytes]]) -> None:
        for offset, key, value in written:
            # In offset order, independent of the order in which transactions end.
            if offset > last.get(key, -1):
                last[key], expected[key] = offset, value

    def finish(producer_id: int) -> None:
        kind = draw.choice([ABORT, COMMIT])
        harness.end(producer_id, kind)
        written = open_ones.pop(producer_id)
        if kind == COMMIT:
            settle(written)

    for number in range(120):
        key, value = b"k%d" % draw.randrange(5), b"v%d" % number
        producer_id = draw.choice([None, 1, 2, 3])
        offset = harness.write(key, value, producer_id)
        if producer_id is None:
            settle([(offset, key, value)])
        else:
            open_ones.setdefault(producer_id, []).append((offset, key, value))
        if open_ones and draw.random() < 0.3:
            finish(draw.choice(sorted(open_ones)))
        if draw.random() < 0.1:
            harness.run_cleaner()
    for producer_id in sorted(open_ones):
        finish(producer_id)
    for _ in range(3):
        assert harness.committed_records() == expected
        harness.roll()
        harness.run_cleaner()
    assert harness.cleaner.completed_cleanings > 2
    assert harness.committed_records() == expected


def header_of(offset: int, producer_id: int, kind: int | None = None) -> BatchHeader:
    """Return the header of a transactional batch with one record, or of a marker."""
    record = (0, bytes(4), bytes(6), []) if kind is not None else (0, b"k", b"v", [])  # type: ignore[var-annotated]
    built = build(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1 if kind is not None else 0,
        transactional=True,
        control=kind is not None,
    )
    return read_header(built)


def test_transaction_that_ended_before_the_log_start_counts_as_committed() -> None:
    """The cleaner keeps the transaction's records and marker, but no entry in the transaction index."""
    followed = CleanedTransactionMetadata([AbortedTxn(1, 0, 1, 2)], log_start_offset=2)
    assert not followed.on_batch_read(header_of(0, 1))
    assert not followed.on_control_batch_read(header_of(1, 1, ABORT), ABORT)
    assert not followed.on_control_batch_read(header_of(5, 1, COMMIT), COMMIT)
    assert followed.kept == []


def test_records_before_the_log_start_have_no_later_marker() -> None:
    """Apache Kafka's cleaner has removed the marker and kept the records."""
    followed = CleanedTransactionMetadata([], log_start_offset=2)
    assert not followed.on_batch_read(header_of(0, 1))
    assert followed.on_control_batch_read(header_of(5, 1, ABORT), ABORT)


def test_transaction_ended_before_the_log_start_is_closed_after_a_crash() -> None:
    harness = TransactionHarness()
    harness.cleaner.stop()
    harness.write(b"a", b"aborted", producer_id=1)
    harness.end(1, ABORT)
    harness.log.delete_records_before(harness.log.log_end_offset)
    harness.config = harness.log.config = harness.config._replace(delete_retention_ms=0)
    harness.cleaner = LogCleaner(harness.manager, harness.settings, harness.host, harness.disk)
    harness.cleaner.start()
    for number in range(3):
        harness.write(b"k", b"%d" % number)
        harness.roll()
        harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 3
    assert harness.log.segments[0].base_offset == 0
    harness.manager.write_checkpoints()
    harness.cleaner.stop()
    harness.disk.kill()
    harness.open()
    assert not harness.log.producers.ongoing
    assert harness.log.last_stable_offset == harness.log.high_watermark > 0


def test_abort_marker_without_an_index_entry_is_kept_while_it_has_records() -> None:
    followed = CleanedTransactionMetadata([], log_start_offset=0)
    assert not followed.on_batch_read(header_of(0, 1))
    assert not followed.on_control_batch_read(header_of(1, 1, ABORT), ABORT)
    assert followed.on_control_batch_read(header_of(2, 1, ABORT), ABORT)


def test_abort_marker_before_the_first_dirty_offset_is_not_read() -> None:
    """As in Apache Kafka: the producer's next transaction supersedes nothing and loses nothing."""
    harness = TransactionHarness()
    harness.config = harness.config._replace(segment_bytes=1000)
    harness.log.config = harness.config
    harness.write(b"k", b"old")
    harness.write(b"a", b"aborted", producer_id=1)
    harness.end(1, ABORT)
    harness.write(b"other", b"old")
    middle = harness.log.log_end_offset
    harness.write(b"other", b"new")
    harness.write(b"k", b"new", producer_id=1)
    harness.end(1, COMMIT)
    harness.roll()
    write_offsets(harness.disk, f"/data/{CLEANED_OFFSETS}", {("t", 0): middle})
    harness.cleaner.stop()
    harness.cleaner = LogCleaner(harness.manager, harness.settings, harness.host, harness.disk)
    harness.cleaner.start()
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 1
    found = [
        (record.key, record.value) for record in committed_records(harness.log) if record.key != b"filler"
    ]
    assert found == [(b"k", b"old"), (b"other", b"new"), (b"k", b"new")]
