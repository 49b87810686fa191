"""`History`: a correct history has no anomalies, and each kind of anomaly is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from kwire.testing.history import History, Outcome, Partition, ReadRecord
from kwire.testing.observations import UNKNOWN_TIME_S, Delivery, FinalRecord
from kwire.testing.results import TopicPartition

PARTITION: Partition = ("t", 0)
END = [(PARTITION, offset, b"%d" % offset) for offset in range(6)]


def example_history() -> History:
    """Return a history of six acknowledged records, the last two in a committed transaction."""
    times = iter(range(1000))
    history = History(clock=lambda: float(next(times)))
    for number in range(6):
        transaction = "payment 1" if number >= 4 else None
        history.on_send("p", PARTITION, b"%d" % number, transaction=transaction)
    for number in range(6):
        history.on_ack(b"%d" % number, number)
    history.on_transaction_end("payment 1", committed=True)
    return history


def anomalies(history: History) -> list[str]:
    return [str(finding) for finding in history.anomalies()]


def test_complete_history_has_no_anomalies() -> None:
    history = example_history()
    history.on_seek("r", PARTITION, 0)
    history.on_poll("r", END[:3])
    history.on_seek("r", PARTITION, 1)
    history.on_poll("r", END[1:])
    history.on_final_read("auditor", END)
    assert anomalies(history) == []
    assert history.acknowledged_count == 6


def test_records_without_a_known_outcome_cause_no_anomalies() -> None:
    history = example_history()
    history.on_send("p", PARTITION, b"timed out")
    history.on_send("q", PARTITION, b"again", is_idempotent=False)
    history.on_send("p", PARTITION, b"open", transaction="payment 2")
    history.on_send("p", PARTITION, b"aborted", transaction="payment 3")
    history.on_transaction_end("payment 3", committed=False)
    # Offset 6 is a control record.
    history.on_final_read("auditor", [*END, (PARTITION, 7, b"again"), (PARTITION, 8, b"again")])
    assert anomalies(history) == []


def without(offset: int) -> list[ReadRecord]:
    return [read for read in END if read[1] != offset]


ONE = "record 2 of p, sent at 2.000 s, acknowledged at 8.000 s with offset 1"
INVALID_FINAL_READS: dict[str, tuple[list[ReadRecord], str]] = {
    "lost": (without(1), f"lost: t-0 lacks b'1' ({ONE})"),
    "lost of a transaction": (
        without(5),
        "lost: payment 1 was committed, but lacks b'5' (record 6 of p in payment 1",
    ),
    "duplicated": (
        [*END, (PARTITION, 6, b"1")],
        f"duplicated: t-0 offset 6 has b'1' ({ONE}), which is also at offset 1",
    ),
    "reordered": (
        [END[0], (PARTITION, 1, b"2"), (PARTITION, 2, b"1"), *END[3:]],
        f"reordered: t-0 offset 2 has b'1' ({ONE}), after b'2'",
    ),
    "wrong offset": ([*without(1), (PARTITION, 9, b"1")], f"wrong offset: t-0 offset 9 has b'1' ({ONE})"),
    "never sent": (
        [*END, (PARTITION, 6, b"?")],
        "never sent: t-0 offset 6 has b'?', which no producer sent",
    ),
    "wrong partition": (
        [*without(1), (("t", 1), 0, b"1")],
        f"wrong partition: t-1 offset 0 has b'1' ({ONE}), which was sent to t-0",
    ),
}


@pytest.mark.parametrize("name", INVALID_FINAL_READS)
def test_anomaly_in_the_final_records_is_found(name: str) -> None:
    end, expected = INVALID_FINAL_READS[name]
    history = example_history()
    history.on_final_read("auditor", end)
    assert any(text.startswith(expected) for text in anomalies(history)), anomalies(history)


def starts_late(history: History) -> None:
    history.on_seek("r", PARTITION, 0)
    history.on_poll("r", [END[1]])


INVALID_READERS: dict[str, tuple[Callable[[History], None], str]] = {
    "lower": (
        lambda history: history.on_poll("r", [END[2], END[1]]),
        "read again: r read t-0 offset 1 at 14.000 s, when its position was 3",
    ),
    "again": (
        lambda history: history.on_poll("r", [END[2], END[2]]),
        "read again: r read t-0 offset 2 at 14.000 s, when its position was 3",
    ),
    "skipped": (
        lambda history: history.on_poll("r", [END[0], END[3]]),
        "skipped: r read t-0 offset 3 at 14.000 s, but not offsets 1, 2",
    ),
    "skipped at its start": (
        starts_late,
        "skipped: r read t-0 offset 1 at 15.000 s, but not offset 0",
    ),
    "lost after read": (
        lambda history: history.on_poll("r", [(PARTITION, 6, b"gone")]),
        "lost after read: r read t-0 offset 6 at 14.000 s: b'gone', which is not among the final records",
    ),
    "changed": (
        lambda history: history.on_poll("r", [(PARTITION, 1, b"other")]),
        f"changed: r read t-0 offset 1 at 14.000 s: b'other', but the final record is b'1' ({ONE})",
    ),
}


@pytest.mark.parametrize("name", INVALID_READERS)
def test_anomaly_in_the_reads_of_a_consumer_is_found(name: str) -> None:
    polls, expected = INVALID_READERS[name]
    history = example_history()
    polls(history)
    history.on_final_read("auditor", END)
    assert anomalies(history) == [expected]


def test_records_that_no_member_of_a_group_read_are_found() -> None:
    history = example_history()
    history.on_seek("r", PARTITION)
    history.on_poll("r", END[:3])
    history.on_seek("s", PARTITION, 2)
    history.on_poll("s", END[2:5])
    history.on_seek("s", PARTITION)
    history.expect_all_read("r", "s")
    history.on_final_read("auditor", END)
    [unread] = anomalies(history)
    assert unread.startswith("unread: r and s did not read t-0 offset 5: b'5' (record 6 of p in ")


def test_rejected_and_aborted_records_must_not_be_readable() -> None:
    history = example_history()
    history.on_send("p", PARTITION, b"too large")
    history.on_reject(b"too large")
    history.on_send("p", PARTITION, b"aborted", transaction="payment 2")
    history.on_ack(b"aborted", 7)
    history.on_transaction_end("payment 2", committed=False)
    history.on_final_read("auditor", [*END, (PARTITION, 6, b"too large"), (PARTITION, 7, b"aborted")])
    assert [text.partition(" (")[0] for text in anomalies(history)] == [
        "stored although rejected: t-0 offset 6 has b'too large'",
        "read after abort: a read_committed consumer gets t-0 offset 7 after the test: b'aborted'",
    ]


def test_transaction_with_unknown_outcome_must_be_complete_or_absent() -> None:
    history = example_history()
    for value in (b"a", b"b"):
        history.on_send("p", PARTITION, value, transaction="payment 2")
    history.on_final_read("auditor", [*END, (PARTITION, 6, b"a")])
    [text] = anomalies(history)
    assert text.startswith("partial transaction: payment 2 has some of its records, but lacks b'b'")


def reading(at: int, *, requested_s: float, outcome: Outcome) -> History:
    """Return a history of a record that is read at time `at`, in a transaction that ends at 20 s."""
    history = History(clock=lambda: 0.0)
    history.on_send("p", PARTITION, b"x", transaction="payment")
    [transaction] = history._seen.transactions
    transaction.end_requested_s = requested_s
    transaction.end(outcome, 20.0)
    history._seen.deliveries["r"].append(Delivery(PARTITION, 0, b"x", at, "a read_uncommitted consumer"))
    if outcome is Outcome.ACKNOWLEDGED:
        history._seen.final[PARTITION][0] = FinalRecord(b"x")
    return history


@pytest.mark.parametrize(
    ("at", "requested_s", "outcome", "expected"),
    [
        (10, 15.0, Outcome.ACKNOWLEDGED, "read before commit"),
        (16, 15.0, Outcome.ACKNOWLEDGED, None),  # the response may take longer than the commit
        (10, UNKNOWN_TIME_S, Outcome.ACKNOWLEDGED, None),
        (10, 15.0, Outcome.REJECTED, "read before commit"),
        (16, 15.0, Outcome.REJECTED, "read after abort"),
        (25, UNKNOWN_TIME_S, Outcome.REJECTED, "read after abort"),
        (10, UNKNOWN_TIME_S, Outcome.UNKNOWN, "read before commit"),
    ],
)
def test_read_of_a_transaction_before_its_end(
    at: int, requested_s: float, outcome: Outcome, expected: str | None
) -> None:
    history = reading(at, requested_s=requested_s, outcome=outcome)
    assert [one.kind for one in history.anomalies()] == ([] if expected is None else [expected])
    if expected is not None:
        assert history.anomalies()[0].text.startswith(f"r read t-0 offset 0 at {at:.3f} s by a read_uncomm")
    history.check(allow={"read before commit", "read after abort"})


def test_commit_ahead_of_all_readers_is_found() -> None:
    history = example_history()
    history.on_final_read("auditor", END)
    history.on_assign("g", "a", [PARTITION])
    history.on_assign("other", "b", [PARTITION])
    history.on_commit("g", PARTITION, 6)  # the position is not known
    history.on_commit("g", PARTITION, 0, may_go_back=True)
    history.on_poll("a", END[:2])
    history.on_commit("g", PARTITION, 2)
    history.on_commit("other", PARTITION, 6)
    assert anomalies(history) == []
    history.on_commit("g", PARTITION, 4)
    assert [text.partition(" at ")[0] for text in anomalies(history)] == [
        "committed before read: g committed t-0 offset 4"
    ]
    assert anomalies(history)[0].endswith("but had not read offsets 2, 3")


def test_readers_must_read_only_the_topics_from_which_they_read() -> None:
    history = example_history()
    history.on_send("p", ("bills", 0), b"bill")
    history.on_final_read("auditor", [*END, (("bills", 0), 0, b"bill")])
    history.on_poll("r", END)
    history.expect_all_read("r")
    assert anomalies(history) == []
    history.expect_all_read("s")  # which has read nothing
    assert [text.partition(":")[0] for text in anomalies(history)] == ["unread", "unread"]


def test_longest_ack_gap() -> None:
    times = iter((0.0, 0.5, 1.0, 1.5, 2.0, 7.0, 7.5, 7.75, 8.0))
    history = History(clock=times.__next__)
    for number in range(4):
        history.on_send("p", PARTITION, b"%d" % number)
        history.on_ack(b"%d" % number)
    assert history.longest_ack_gap_s() == 5.5
    assert history.longest_ack_gap_s("q") == 0.0


def test_committed_offset_goes_back_only_with_may_go_back() -> None:
    history = example_history()
    history.on_final_read("auditor", END)
    history.on_commit("g", PARTITION, 4)
    history.on_commit("other", PARTITION, 2)
    history.on_commit("g", ("t", 1), 0)
    history.on_commit("g", PARTITION, 4)
    history.on_commit("g", PARTITION, 1, may_go_back=True)
    assert anomalies(history) == []
    history.on_commit("g", PARTITION, 0)
    assert anomalies(history) == [
        "commit moved back: g committed t-0 offset 0 at 20.000 s, after offset 1 at 19.000 s"
    ]


def test_partition_with_two_owners_is_found() -> None:
    history = example_history()
    history.on_final_read("auditor", END)
    history.on_assign("g", "a", [PARTITION, ("t", 1)])
    history.on_assign("g", "a", [PARTITION])
    history.on_assign("other", "b", [PARTITION])
    history.on_revoke("g", "a", [PARTITION])
    history.on_assign("g", "b", [PARTITION])
    assert anomalies(history) == []
    history.on_assign("g", "b", [("t", 1)])
    assert anomalies(history) == [
        "two owners: t-1 was assigned to b of g at 20.000 s, while a has owned it since 15.000 s"
    ]


def test_non_idempotent_producer_is_checked_unless_at_least_once() -> None:
    history = example_history()
    history.on_send("q", ("t", 1), b"x", is_idempotent=False)
    history.on_send("q", ("t", 1), b"y", is_idempotent=False)
    history.on_final_read(
        "auditor", [*END, *((("t", 1), at, value) for at, value in enumerate([b"y", b"x", b"y"]))]
    )
    history.check(at_least_once=True)
    with pytest.raises(AssertionError) as failed:
        history.check()
    first, *lines = str(failed.value).splitlines()
    assert first == "the history has anomalies:"
    assert [line.split(":")[0] for line in lines] == ["  reordered", "  duplicated"]


def test_resent_record_may_be_a_duplicate() -> None:
    history = example_history()
    history.on_ack(b"1", 6)
    history.on_final_read("auditor", [*END, (PARTITION, 6, b"1")])
    assert [line.partition(":")[0] for line in anomalies(history)] == ["duplicated"]
    history.on_resend(b"1")
    history.check(at_least_once=True)


def test_check_lists_fifty_anomalies_and_counts_the_rest() -> None:
    history = History()
    for number in range(60):
        history.on_send("p", ("t", number), b"%d" % number)
        history.on_ack(b"%d" % number, 0)
    with pytest.raises(AssertionError, match=r"and 10 more$"):
        history.check()


def test_invalid_partition_is_refused() -> None:
    history, wrong = History(), cast("Partition", "orders")
    message = r"a partition is a topic and a number, such as \('orders', 0\), not "
    with pytest.raises(TypeError, match=f"{message}'orders'"):
        history.on_send("p", wrong, b"x")
    with pytest.raises(TypeError, match=message):
        history.on_seek("billing", wrong)
    with pytest.raises(TypeError, match=message):
        history.on_poll("billing", [(PARTITION, 0, b"x"), (wrong, 0, b"y")])
    with pytest.raises(TypeError, match=rf"{message}\('orders', '0'\)"):
        history.on_commit("billing", cast("Partition", ("orders", "0")), 1)
    with pytest.raises(TypeError, match=f"{message}'o'"):
        history.on_assign("billing", "member", wrong)  # type: ignore[arg-type]
    history.on_send("p", TopicPartition("orders", 0), b"x")
    history.check()
