"""The checker of histories: a good one has no findings, and each fault that is planted is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from kwire.testing.history import History, Partition, Read
from kwire.testing.results import TopicPartition

PLACE: Partition = ("t", 0)
END = [(PLACE, offset, b"%d" % offset) for offset in range(6)]


def a_history() -> History:
    """Six records, acknowledged; the last two of a transaction that was committed."""
    times = iter(range(1000))
    history = History(clock=lambda: float(next(times)))
    for number in range(6):
        transaction = "payment 1" if number >= 4 else None
        history.on_send("p", PLACE, b"%d" % number, transaction=transaction)
    for number in range(6):
        history.on_ack(b"%d" % number, number)
    history.on_transaction_end("payment 1", committed=True)
    return history


def found(history: History) -> list[str]:
    return [str(finding) for finding in history.anomalies()]


def test_what_was_promised_is_there() -> None:
    history = a_history()
    history.on_seek("r", PLACE, 0)
    history.on_poll("r", END[:3])
    history.on_seek("r", PLACE, 1)
    history.on_poll("r", END[1:])
    history.on_final_read("auditor", END)
    assert found(history) == []
    assert history.acknowledged_count == 6


def test_nobody_is_held_to_what_nobody_knows() -> None:
    history = a_history()
    history.on_send("p", PLACE, b"timed out")
    history.on_send("q", PLACE, b"again", is_idempotent=False)
    history.on_send("p", PLACE, b"open", transaction="payment 2")
    history.on_send("p", PLACE, b"aborted", transaction="payment 3")
    history.on_transaction_end("payment 3", committed=False)
    # Offset 6 is of a control record.
    history.on_final_read("auditor", [*END, (PLACE, 7, b"again"), (PLACE, 8, b"again")])
    assert found(history) == []


def without(offset: int) -> list[Read]:
    return [read for read in END if read[1] != offset]


ONE = "record 2 of p, sent at 2.000 s, acknowledged at 8.000 s with offset 1"
PLANTED: dict[str, tuple[list[Read], str]] = {
    "lost": (without(1), f"lost: t-0 lacks b'1' ({ONE})"),
    "lost of a transaction": (
        without(5),
        "lost: payment 1 was committed, but lacks b'5' (record 6 of p in payment 1",
    ),
    "duplicate": (
        [*END, (PLACE, 6, b"1")],
        f"duplicate: t-0 offset 6 has b'1' ({ONE}), which is also at offset 1",
    ),
    "reordered": (
        [END[0], (PLACE, 1, b"2"), (PLACE, 2, b"1"), *END[3:]],
        f"reordered: t-0 offset 2 has b'1' ({ONE}), after b'2'",
    ),
    "wrong offset": ([*without(1), (PLACE, 9, b"1")], f"wrong offset: t-0 offset 9 has b'1' ({ONE})"),
    "unexpected": ([*END, (PLACE, 6, b"?")], "unexpected: t-0 offset 6 has b'?'"),
    "elsewhere": ([*without(1), (("t", 1), 0, b"1")], f"unexpected: t-1 offset 0 has b'1' ({ONE})"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    end, expected = PLANTED[name]
    history = a_history()
    history.on_final_read("auditor", end)
    assert any(text.startswith(expected) for text in found(history)), found(history)


def starts_late(history: History) -> None:
    history.on_seek("r", PLACE, 0)
    history.on_poll("r", [END[1]])


READERS: dict[str, tuple[Callable[[History], None], str]] = {
    "non-monotonic": (
        lambda history: history.on_poll("r", [END[2], END[1]]),
        "non-monotonic: r read t-0 offset 1 at 13.000 s, when its position was 3",
    ),
    "again": (
        lambda history: history.on_poll("r", [END[2], END[2]]),
        "non-monotonic: r read t-0 offset 2 at 13.000 s, when its position was 3",
    ),
    "skipped": (
        lambda history: history.on_poll("r", [END[0], END[3]]),
        "skipped: r read t-0 offset 3 at 13.000 s, but not offsets [1, 2] (2 in total)",
    ),
    "skipped at its start": (
        starts_late,
        "skipped: r read t-0 offset 1 at 14.000 s, but not offsets [0] (1 in total)",
    ),
    "uncommitted": (
        lambda history: history.on_poll("r", [(PLACE, 6, b"gone")]),
        "uncommitted: r read t-0 offset 6 at 13.000 s: b'gone', which is not a final record",
    ),
    "changed": (
        lambda history: history.on_poll("r", [(PLACE, 1, b"other")]),
        f"changed: r read t-0 offset 1 at 13.000 s: b'other', but the final record is b'1' ({ONE})",
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_saw_what_cannot_be_is_found(name: str) -> None:
    polls, expected = READERS[name]
    history = a_history()
    polls(history)
    history.on_final_read("auditor", END)
    assert found(history) == [expected]


def test_a_group_is_given_everything_by_its_members_together() -> None:
    history = a_history()
    history.on_seek("r", PLACE)
    history.on_poll("r", END[:3])
    history.on_seek("s", PLACE, 2)
    history.on_poll("s", END[2:5])
    history.on_seek("s", PLACE)
    history.expect_all_read("r", "s")
    history.on_final_read("auditor", END)
    [unread] = found(history)
    assert unread.startswith(
        "unread: r and s did not read t-0 offsets [5] (1 in total): b'5' (record 6 of p in "
    )


def test_what_was_refused_may_not_be_there() -> None:
    history = a_history()
    history.on_send("p", PLACE, b"too large")
    history.on_reject(b"too large")
    history.on_send("p", PLACE, b"aborted", transaction="payment 2")
    history.on_ack(b"aborted", 7)
    history.on_transaction_end("payment 2", committed=False)
    history.on_final_read("auditor", [*END, (PLACE, 6, b"too large"), (PLACE, 7, b"aborted")])
    assert [text.partition(" (")[0] for text in found(history)] == [
        "uncommitted: t-0 offset 6 has b'too large'",
        "uncommitted: t-0 offset 7 has b'aborted'",
    ]


def test_a_transaction_whose_end_nobody_knows_is_there_as_a_whole_or_not_at_all() -> None:
    history = a_history()
    for value in (b"a", b"b"):
        history.on_send("p", PLACE, value, transaction="payment 2")
    history.on_final_read("auditor", [*END, (PLACE, 6, b"a")])
    [text] = found(history)
    assert text.startswith("partial transaction: payment 2 has some of its records, but lacks b'b'")


def test_the_time_without_acknowledgements_is_told() -> None:
    times = iter((0.0, 0.5, 1.0, 1.5, 2.0, 7.0, 7.5, 7.75, 8.0))
    history = History(clock=times.__next__)
    for number in range(4):
        history.on_send("p", PLACE, b"%d" % number)
        history.on_ack(b"%d" % number)
    assert history.longest_ack_gap_s() == 5.5
    assert history.longest_ack_gap_s("q") == 0.0


def test_commits_go_back_only_where_somebody_has_sent_the_group_there() -> None:
    history = a_history()
    history.on_final_read("auditor", END)
    history.on_commit("g", PLACE, 4)
    history.on_commit("other", PLACE, 2)
    history.on_commit("g", ("t", 1), 0)
    history.on_commit("g", PLACE, 4)
    history.on_commit("g", PLACE, 1, may_go_back=True)
    assert found(history) == []
    history.on_commit("g", PLACE, 0)
    assert found(history) == [
        "non-monotonic: g committed t-0 offset 0 at 19.000 s, after offset 1 at 18.000 s"
    ]


def test_a_partition_with_two_owners_is_found() -> None:
    history = a_history()
    history.on_final_read("auditor", END)
    history.on_assign("g", "a", [PLACE, ("t", 1)])
    history.on_assign("g", "a", [PLACE])
    history.on_assign("other", "b", [PLACE])
    history.on_revoke("g", "a", [PLACE])
    history.on_assign("g", "b", [PLACE])
    assert found(history) == []
    history.on_assign("g", "b", [("t", 1)])
    assert found(history) == [
        "two owners: t-1 was assigned to b of g at 19.000 s, while a has owned it since 14.000 s"
    ]


def test_producers_without_idempotence_are_held_to_once_and_in_order_if_wanted() -> None:
    history = a_history()
    history.on_send("q", ("t", 1), b"x", is_idempotent=False)
    history.on_send("q", ("t", 1), b"y", is_idempotent=False)
    history.on_final_read(
        "auditor", [*END, *((("t", 1), at, value) for at, value in enumerate([b"y", b"x", b"y"]))]
    )
    history.check(at_least_once=True)
    with pytest.raises(AssertionError) as failed:
        history.check()
    first, *told = str(failed.value).splitlines()
    assert first == "the history has anomalies:"
    assert [line.split(":")[0] for line in told] == ["  reordered", "  duplicate"]


def test_who_sends_a_record_under_a_second_identity_doubles_it_himself() -> None:
    history = a_history()
    history.on_ack(b"1", 6)
    history.on_final_read("auditor", [*END, (PLACE, 6, b"1")])
    assert [line.partition(":")[0] for line in found(history)] == ["wrong offset", "duplicate"]
    history.on_resend(b"1")
    history.check(at_least_once=True)


def test_a_check_names_so_many_findings_and_counts_the_others() -> None:
    history = History()
    for number in range(60):
        history.on_send("p", ("t", number), b"%d" % number)
        history.on_ack(b"%d" % number, 0)
    with pytest.raises(AssertionError, match=r"and 10 more$"):
        history.check()


def test_a_place_that_is_none_is_refused_where_it_is_told() -> None:
    history, wrong = History(), cast("Partition", "orders")
    said = r"a partition is a topic and a number, such as \('orders', 0\), not "
    with pytest.raises(TypeError, match=f"{said}'orders'"):
        history.on_send("p", wrong, b"x")
    with pytest.raises(TypeError, match=said):
        history.on_seek("billing", wrong)
    with pytest.raises(TypeError, match=said):
        history.on_poll("billing", [(PLACE, 0, b"x"), (wrong, 0, b"y")])
    with pytest.raises(TypeError, match=rf"{said}\('orders', '0'\)"):
        history.on_commit("billing", cast("Partition", ("orders", "0")), 1)
    with pytest.raises(TypeError, match=f"{said}'o'"):
        history.on_assign("billing", "member", wrong)
    history.on_send("p", TopicPartition("orders", 0), b"x")
    history.check()
