"""Transactions that span the log start: their outcome still applies to the remaining records.

KIP-98, KIP-107: a log start above the first offset of an open transaction does not decide its outcome.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage import log_harness
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, end_transaction

ABORT, COMMIT = 0, 1
HOUR_MS = 3_600_000


def transactional_batch(producer_id: int, sequence: int, value: bytes = b"open") -> memoryview:
    return batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def end(log: Log, producer_id: int, kind: int) -> None:
    end_transaction(log, producer_id, kind)


def committed_records(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log_harness.committed_records(log)]


@pytest.fixture
def log_in_transaction(harness: LogHarness) -> Log:
    """Return a log with one segment per record: plain, transactional, plain, transactional, plain."""
    harness.config = harness.config._replace(segment_bytes=100)
    log = harness.open()
    harness.append(log, b"0")
    harness.send(log, transactional_batch(9, 0))
    harness.append(log, b"2")
    harness.send(log, transactional_batch(9, 1))
    harness.append(log, b"4")
    return log


def move_log_start(log: Log, how: str) -> None:
    """Move the log start above the first record of the transaction."""
    if how == "asked for":
        log.delete_records_before(2)
    else:
        size_bytes = sum(segment.size_bytes for segment in log.segments[2:])
        log.config = log.config._replace(retention_bytes=size_bytes)
        assert log.delete_old_segments(NOW_MS) == 2
    assert log.log_start_offset == 2


def test_last_stable_offset_with_the_log_start_within_an_open_transaction(
    harness: LogHarness,
) -> None:
    log = harness.open()
    harness.append(log, b"0", b"1")
    open_batch = batch(b"2", b"3", b"4", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    harness.send(log, open_batch)
    harness.append(log, b"5", b"6", b"7")
    found = []
    for offset in range(1, 9):
        log.delete_records_before(offset)
        found.append(log.last_stable_offset)
    assert found == [2, 2, 2, 2, 5, 5, 5, 8]
    end(log, 9, ABORT)
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == 9


WAYS = ("asked for", "by retention")


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("how", WAYS)
def test_a_transaction_stays_open_when_the_log_start_passes_its_first_record(
    log_in_transaction: Log, how: str, kind: int
) -> None:
    move_log_start(log_in_transaction, how)
    assert (log_in_transaction.last_stable_offset, log_in_transaction.high_watermark) == (2, 5)
    assert log_in_transaction.producers.producers[9].txn_first_offset == 1
    assert committed_records(log_in_transaction) == []
    end(log_in_transaction, 9, kind)
    assert log_in_transaction.last_stable_offset == 6
    assert (3 in dict(committed_records(log_in_transaction))) == (kind == COMMIT)
    assert [offset for offset, _ in committed_records(log_in_transaction) if offset != 3] == [2, 4]


def test_abort_is_indexed_from_the_deleted_first_offset(log_in_transaction: Log) -> None:
    move_log_start(log_in_transaction, "asked for")
    end(log_in_transaction, 9, ABORT)
    region = log_in_transaction.read(3, max_bytes=1 << 20, up_to_offset=6)
    assert [tuple(one) for one in log_in_transaction.aborted_transactions(3, region)] == [(9, 1, 5, 6)]


@pytest.mark.parametrize(("offset", "count"), [(3, 1), (5, 1), (6, 0)])
def test_read_without_bytes_returns_aborted_transactions(
    log_in_transaction: Log, offset: int, count: int
) -> None:
    end(log_in_transaction, 9, ABORT)
    region = log_in_transaction.read(offset, max_bytes=0, up_to_offset=6, at_least_one=False)
    assert not region.size_bytes
    assert len(log_in_transaction.aborted_transactions(offset, region)) == count


def test_open_transaction_before_the_log_start_blocks_other_batches(log_in_transaction: Log) -> None:
    move_log_start(log_in_transaction, "asked for")
    with pytest.raises(ApiError) as refused:
        log_in_transaction.append(
            batch(b"plain", producer_id=9, producer_epoch=0, base_sequence=2), leader_epoch=0, now_ms=NOW_MS
        )
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("is_checkpointed", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 3, 5])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", WAYS)
def test_restart_restores_the_open_transaction(
    log_in_transaction: Log,
    harness: LogHarness,
    *,
    how: str,
    clean: bool,
    recovery_point: int,
    is_checkpointed: bool,
) -> None:
    move_log_start(log_in_transaction, how)
    if clean:
        harness.close(log_in_transaction)
    # A log start at a segment's first offset is not checkpointed, so 0 is mostly known.
    start = 2 if is_checkpointed or how == "asked for" else 0
    log = harness.open(clean=clean, recovery_point=recovery_point, log_start_offset=start)
    log.high_watermark = 5
    # Records before the log start are known from a snapshot, or from another read.
    first = log.producers.producers[9].txn_first_offset
    assert first == 1 or (not clean and first == 3)
    assert log.last_stable_offset == max(2, first)
    end(log, 9, ABORT)
    assert dict(committed_records(log)).keys() == {2, 4}


@pytest.mark.parametrize("how", WAYS)
def test_a_truncation_keeps_the_transaction_open(log_in_transaction: Log, how: str) -> None:
    move_log_start(log_in_transaction, how)
    log_in_transaction.truncate_to(4)
    log_in_transaction.high_watermark = 4
    assert log_in_transaction.last_stable_offset == 2
    log_in_transaction.truncate_to(3)
    log_in_transaction.high_watermark = 3
    assert log_in_transaction.last_stable_offset == 2


@pytest.mark.parametrize("clean", [True, False])
def test_restart_of_an_empty_log_has_no_producers(
    log_in_transaction: Log, harness: LogHarness, *, clean: bool
) -> None:
    log_in_transaction.delete_records_before(5)
    assert set(log_in_transaction.producers.producers) == {9}
    if clean:
        harness.close(log_in_transaction)
    log = harness.open(clean=clean, log_start_offset=5)
    log.high_watermark = 5
    assert not log.producers.producers
    assert (log.log_end_offset, log.last_stable_offset) == (5, 5)


def test_expired_producer_is_unknown_after_a_crash(harness: LogHarness) -> None:
    log = harness.open()
    harness.send(log, batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))
    harness.send(log, transactional_batch(2, 0))
    harness.now_ms += 25 * HOUR_MS
    assert set(harness.open().producers.producers) == {2}


PRODUCERS = (7, 8)
STEPS = st.one_of(
    st.tuples(st.just("plain"), st.just(0), st.just(0)),
    st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.sampled_from((ABORT, COMMIT))),
    st.tuples(st.sampled_from(("delete", "truncate", "crash")), st.integers(0, 40), st.just(0)),
    st.tuples(st.sampled_from(("roll", "retain", "restart")), st.just(0), st.just(0)),
)


class Model:
    """The written records and markers."""

    def __init__(self) -> None:
        self.harness = LogHarness(MemoryDisk())
        self.log = self.harness.open()
        self.transactional_batch: dict[int, int | None] = {}
        """Records by offset, with the producer of transactional ones."""
        self.ended: list[tuple[int, int, int]] = []
        """Markers: offset, producer and type."""
        self.is_exact = True
        """Whether the log must know the first offsets of its open transactions."""

    def outcome(self, offset: int, producer_id: int | None) -> int | None:
        """Return the marker type that ended the transaction of a record, or None while it is open."""
        if producer_id is None:
            return COMMIT
        return next((kind for at, who, kind in self.ended if who == producer_id and at > offset), None)

    def step(self, name: str, number: int, kind: int) -> None:
        log, harness = self.log, self.harness
        if name == "plain":
            self.transactional_batch[log.log_end_offset] = None
            harness.append(log, b"plain")
        elif name == "write":
            state = log.producers.producers.get(number)
            sent = harness.send(log, transactional_batch(number, state.last_sequence + 1 if state else 0))
            # An expired producer restarts at sequence 0, which may match remembered batches of both runs.
            if not sent.is_duplicate:
                self.transactional_batch[sent.first_offset] = number
        elif name == "end":
            self.ended.append((log.log_end_offset, number, kind))
            end(log, number, kind)
        elif name == "delete":
            log.delete_records_before(min(number, log.high_watermark))
        elif name == "truncate":
            log.truncate_to(number)
            log.flush()
            self.transactional_batch = {
                offset: who for offset, who in self.transactional_batch.items() if offset < number
            }
            self.ended = [marker for marker in self.ended if marker[0] < number]
            self.is_exact = False
        elif name == "roll":
            log.roll(NOW_MS)
        elif name == "retain":
            log.delete_old_segments(NOW_MS)
        else:
            start, high_watermark = log.log_start_offset, log.high_watermark
            clean = name == "restart"
            if clean:
                harness.close(log)
            self.log = harness.open(
                clean=clean, recovery_point=min(number, log.recovery_point), log_start_offset=start
            )
            self.log.high_watermark = high_watermark
            self.is_exact = self.is_exact and clean and start < high_watermark

    def check(self) -> None:
        log = self.log
        start, stable = log.log_start_offset, log.last_stable_offset
        assert start <= stable <= log.high_watermark
        still_open = [
            offset for offset, who in self.transactional_batch.items() if self.outcome(offset, who) is None
        ]
        assert stable <= min((offset for offset in still_open if offset >= start), default=stable)
        if self.is_exact:
            assert stable == max(start, min(still_open, default=log.high_watermark))
        assert [offset for offset, _ in committed_records(log)] == [
            offset
            for offset, who in sorted(self.transactional_batch.items())
            if start <= offset < stable and self.outcome(offset, who) == COMMIT
        ]


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_read_committed_returns_only_committed_records(steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()


def test_transaction_state_survives_repeated_crashes(log_in_transaction: Log, harness: LogHarness) -> None:
    move_log_start(log_in_transaction, "by retention")
    for _ in range(3):
        assert harness.open().producers.producers[9].txn_first_offset == 1


def test_aborted_transaction_is_returned_once_after_a_truncation(harness: LogHarness) -> None:
    log = harness.open()
    harness.send(log, transactional_batch(9, 0, b"aborted"))
    end(log, 9, ABORT)
    harness.append(log, b"2")
    log.truncate_to(2)
    log.flush()
    harness.send(log, transactional_batch(9, 1, b"good"))
    end(log, 9, COMMIT)
    log.high_watermark = log.log_end_offset
    assert committed_records(log) == [(2, b"good")]
    assert [tuple(one) for one in log.segments[0].aborted()] == [(9, 0, 1, 2)]
