"""Transactions in which the log start comes to lie: their ends still decide about what is left of them.

KIP-98, KIP-107: a log start that passes the first offset of an open transaction says nothing of its outcome.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage import log_bench
from tests.broker.storage.log_bench import NOW_MS, LogBench, batch, end_transaction

ABORT, COMMIT = 0, 1
HOUR_MS = 3_600_000


def written(producer_id: int, sequence: int, value: bytes = b"open") -> memoryview:
    return batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def end(log: Log, producer_id: int, kind: int) -> None:
    end_transaction(log, producer_id, kind)


def committed(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log_bench.committed(log)]


@pytest.fixture
def entered(bench: LogBench) -> Log:
    """0 plain, 1 of a transaction, 2 plain, 3 of the transaction, 4 plain; a segment each."""
    bench.config = bench.config._replace(segment_bytes=100)
    log = bench.open()
    bench.append(log, b"0")
    bench.send(log, written(9, 0))
    bench.append(log, b"2")
    bench.send(log, written(9, 1))
    bench.append(log, b"4")
    return log


def enter(log: Log, how: str) -> None:
    """Bring the log start behind the first record of the transaction."""
    if how == "asked for":
        log.delete_records_before(2)
    else:
        size_bytes = sum(segment.size_bytes for segment in log.segments[2:])
        log.config = log.config._replace(retention_bytes=size_bytes)
        assert log.delete_old_segments(NOW_MS) == 2
    assert log.log_start_offset == 2


def test_within_a_batch_of_an_open_transaction_nothing_is_stable_from_its_first_offset_on(
    bench: LogBench,
) -> None:
    log = bench.open()
    bench.append(log, b"0", b"1")
    open_batch = batch(b"2", b"3", b"4", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    bench.send(log, open_batch)
    bench.append(log, b"5", b"6", b"7")
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
    entered: Log, how: str, kind: int
) -> None:
    enter(entered, how)
    assert (entered.last_stable_offset, entered.high_watermark) == (2, 5)
    assert entered.producers.producers[9].txn_first_offset == 1
    assert committed(entered) == []
    end(entered, 9, kind)
    assert entered.last_stable_offset == 6
    assert (3 in dict(committed(entered))) == (kind == COMMIT)
    assert [offset for offset, _ in committed(entered) if offset != 3] == [2, 4]


def test_the_abort_is_indexed_with_the_first_offset_that_is_gone(entered: Log) -> None:
    enter(entered, "asked for")
    end(entered, 9, ABORT)
    region = entered.read(3, max_bytes=1 << 20, up_to_offset=6)
    assert [tuple(one) for one in entered.aborted_transactions(3, region)] == [(9, 1, 5, 6)]


@pytest.mark.parametrize(("offset", "count"), [(3, 1), (5, 1), (6, 0)])
def test_a_reader_that_is_given_no_bytes_is_told_of_aborted_transactions(
    entered: Log, offset: int, count: int
) -> None:
    end(entered, 9, ABORT)
    region = entered.read(offset, max_bytes=0, up_to_offset=6, at_least_one=False)
    assert not region.size_bytes
    assert len(entered.aborted_transactions(offset, region)) == count


def test_a_producer_with_a_transaction_from_before_the_log_start_writes_nothing_else(entered: Log) -> None:
    enter(entered, "asked for")
    with pytest.raises(ApiError) as refused:
        entered.append(
            batch(b"plain", producer_id=9, producer_epoch=0, base_sequence=2), leader_epoch=0, now_ms=NOW_MS
        )
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("is_checkpointed", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 3, 5])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", WAYS)
def test_a_restart_knows_of_the_transaction(
    entered: Log, bench: LogBench, *, how: str, clean: bool, recovery_point: int, is_checkpointed: bool
) -> None:
    enter(entered, how)
    if clean:
        bench.close(entered)
    # Only a start that is no segment's first offset is checkpointed, so that most times 0 is known.
    start = 2 if is_checkpointed or how == "asked for" else 0
    log = bench.open(clean=clean, recovery_point=recovery_point, log_start_offset=start)
    log.high_watermark = 5
    # What lies before the log start is only known from a snapshot, or where it is read once more.
    first = log.producers.producers[9].txn_first_offset
    assert first == 1 or (not clean and first == 3)
    assert log.last_stable_offset == max(2, first)
    end(log, 9, ABORT)
    assert dict(committed(log)).keys() == {2, 4}


@pytest.mark.parametrize("how", WAYS)
def test_a_truncation_keeps_the_transaction_open(entered: Log, how: str) -> None:
    enter(entered, how)
    entered.truncate_to(4)
    entered.high_watermark = 4
    assert entered.last_stable_offset == 2
    entered.truncate_to(3)
    entered.high_watermark = 3
    assert entered.last_stable_offset == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_of_a_log_without_records_knows_no_producer(
    entered: Log, bench: LogBench, *, clean: bool
) -> None:
    entered.delete_records_before(5)
    assert set(entered.producers.producers) == {9}
    if clean:
        bench.close(entered)
    log = bench.open(clean=clean, log_start_offset=5)
    log.high_watermark = 5
    assert not log.producers.producers
    assert (log.log_end_offset, log.last_stable_offset) == (5, 5)


def test_a_silent_producer_is_not_known_after_a_crash(bench: LogBench) -> None:
    log = bench.open()
    bench.send(log, batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))
    bench.send(log, written(2, 0))
    bench.now_ms += 25 * HOUR_MS
    assert set(bench.open().producers.producers) == {2}


PRODUCERS = (7, 8)
STEPS = st.one_of(
    st.tuples(st.just("plain"), st.just(0), st.just(0)),
    st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.sampled_from((ABORT, COMMIT))),
    st.tuples(st.sampled_from(("delete", "truncate", "crash")), st.integers(0, 40), st.just(0)),
    st.tuples(st.sampled_from(("roll", "retain", "restart")), st.just(0), st.just(0)),
)


class Model:
    """What was written by whom, and how it ended."""

    def __init__(self) -> None:
        self.bench = LogBench(MemoryDisk())
        self.log = self.bench.open()
        self.written: dict[int, int | None] = {}
        """The data that there is, by offset; the producer for what is of a transaction."""
        self.ended: list[tuple[int, int, int]] = []
        """The markers: offset, producer, kind."""
        self.is_exact = True
        """Whether the log has to know the first offsets of its open transactions."""

    def outcome(self, offset: int, producer_id: int | None) -> int | None:
        """How the transaction ended that wrote this; None while it is open."""
        if producer_id is None:
            return COMMIT
        return next((kind for at, who, kind in self.ended if who == producer_id and at > offset), None)

    def step(self, name: str, number: int, kind: int) -> None:
        log, bench = self.log, self.bench
        if name == "plain":
            self.written[log.log_end_offset] = None
            bench.append(log, b"plain")
        elif name == "write":
            state = log.producers.producers.get(number)
            sent = bench.send(log, written(number, state.last_sequence + 1 if state else 0))
            # A producer that was forgotten began again at 0: what is remembered of both times may match.
            if not sent.is_duplicate:
                self.written[sent.first_offset] = number
        elif name == "end":
            self.ended.append((log.log_end_offset, number, kind))
            end(log, number, kind)
        elif name == "delete":
            log.delete_records_before(min(number, log.high_watermark))
        elif name == "truncate":
            log.truncate_to(number)
            log.flush()
            self.written = {offset: who for offset, who in self.written.items() if offset < number}
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
                bench.close(log)
            self.log = bench.open(
                clean=clean, recovery_point=min(number, log.recovery_point), log_start_offset=start
            )
            self.log.high_watermark = high_watermark
            self.is_exact = self.is_exact and clean and start < high_watermark

    def check(self) -> None:
        log = self.log
        start, stable = log.log_start_offset, log.last_stable_offset
        assert start <= stable <= log.high_watermark
        still_open = [offset for offset, who in self.written.items() if self.outcome(offset, who) is None]
        assert stable <= min((offset for offset in still_open if offset >= start), default=stable)
        if self.is_exact:
            assert stable == max(start, min(still_open, default=log.high_watermark))
        assert [offset for offset, _ in committed(log)] == [
            offset
            for offset, who in sorted(self.written.items())
            if start <= offset < stable and self.outcome(offset, who) == COMMIT
        ]


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_no_reader_of_committed_records_sees_another_one(steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()


def test_one_crash_after_another_leaves_what_is_known_of_the_transaction(
    entered: Log, bench: LogBench
) -> None:
    enter(entered, "by retention")
    for _ in range(3):
        assert bench.open().producers.producers[9].txn_first_offset == 1


def test_a_truncation_tells_readers_once_of_what_was_aborted_before_it(bench: LogBench) -> None:
    log = bench.open()
    bench.send(log, written(9, 0, b"aborted"))
    end(log, 9, ABORT)
    bench.append(log, b"2")
    log.truncate_to(2)
    log.flush()
    bench.send(log, written(9, 1, b"good"))
    end(log, 9, COMMIT)
    log.high_watermark = log.log_end_offset
    assert committed(log) == [(2, b"good")]
    assert [tuple(one) for one in log.segments[0].aborted()] == [(9, 0, 1, 2)]
