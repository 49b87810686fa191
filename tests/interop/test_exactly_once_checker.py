"""The findings of the exactly-once checker on invented evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.exactly_once.checker import Content, Evidence, check
from interop.exactly_once.ledger import (
    Ledger,
    Mark,
    Outcome,
    Transaction,
    encode_value,
    parse_value,
    read_ledgers,
)


def records(*marks: tuple[str, int, int, int], first: int = 0) -> list[tuple[int, bytes]]:
    """Return the records of one partition, with a marker's offset between each two."""
    return [(first + 2 * at, encode_value(Mark(*mark))) for at, mark in enumerate(marks)]


def transaction(name: str, number: int, counts: dict[int, int], *outcomes: Outcome) -> Transaction:
    return Transaction(name, number, counts, [(outcome, "") for outcome in outcomes])


def kinds(
    transactions: list[Transaction],
    content: Content,
    *,
    views: dict[str, Content] | None = None,
    ends: dict[int, tuple[int, int]] | None = None,
) -> list[str]:
    known = {(one.transactional_id, one.number): one for one in transactions}
    found = check(Evidence(known, content, views or {}, ends or {}))
    return [finding.kind for finding in found]


DONE = transaction("t", 1, {0: 2, 1: 1}, Outcome.COMMITTED)
WHOLE: Content = {0: records(("t", 1, 0, 0), ("t", 1, 0, 1)), 1: records(("t", 1, 1, 0))}


def test_correct_content_has_no_finding() -> None:
    assert kinds([DONE], WHOLE, views={"r": WHOLE}, ends={0: (5, 5), 1: (2, 2)}) == []
    assert kinds([transaction("t", 1, {0: 2, 1: 1})], WHOLE) == []
    assert kinds([transaction("t", 1, {0: 2, 1: 1}, Outcome.UNKNOWN)], {0: [], 1: []}) == []
    assert kinds([transaction("t", 1, {0: 2}, Outcome.ABORTED)], {0: []}) == []


@pytest.mark.parametrize("missing", [0, 1])
def test_a_committed_record_that_is_missing_is_lost(missing: int) -> None:
    assert kinds([DONE], {**WHOLE, missing: WHOLE[missing][:-1]}) == ["lost"]


def test_visible_aborted_record_is_found() -> None:
    assert kinds([transaction("t", 1, {0: 2, 1: 1}, Outcome.ABORTED)], WHOLE) == ["aborted"]


def test_transaction_of_unknown_outcome_must_be_atomic() -> None:
    assert kinds([transaction("t", 1, {0: 2, 1: 1}, Outcome.UNKNOWN)], {**WHOLE, 1: []}) == ["torn"]
    assert kinds([transaction("t", 1, {0: 2, 1: 1})], {**WHOLE, 0: []}) == ["torn"]


def test_duplicate_record_is_found() -> None:
    twice = {**WHOLE, 0: records(("t", 1, 0, 0), ("t", 1, 0, 1), ("t", 1, 0, 1))}
    assert kinds([DONE], twice) == ["duplicate"]


def test_order_is_checked_per_producer() -> None:
    other = transaction("u", 1, {0: 1}, Outcome.COMMITTED)
    mixed = {**WHOLE, 0: records(("t", 1, 0, 0), ("u", 1, 0, 0), ("t", 1, 0, 1))}
    assert kinds([DONE, other], mixed) == []
    assert kinds([DONE], {**WHOLE, 0: records(("t", 1, 0, 1), ("t", 1, 0, 0))}) == ["reordered"]
    later = transaction("t", 2, {0: 1}, Outcome.COMMITTED)
    before = {**WHOLE, 0: records(("t", 2, 0, 0), ("t", 1, 0, 0), ("t", 1, 0, 1))}
    assert kinds([DONE, later], before) == ["reordered"]


def test_record_that_was_never_sent_is_foreign() -> None:
    for stranger in (encode_value(Mark("t", 9, 0, 0)), encode_value(Mark("t", 1, 1, 0)), b"what?"):
        assert kinds([DONE], {**WHOLE, 0: [*WHOLE[0], (9, stranger)]}) == ["foreign"]


def test_commit_of_a_fenced_producer_is_found() -> None:
    zombie = transaction("t", 1, {0: 2, 1: 1}, Outcome.ABORTED, Outcome.COMMITTED)
    assert kinds([zombie], WHOLE) == ["fenced"]


def test_changed_view_of_a_reader_is_found() -> None:
    seen = {**WHOLE, 0: [*WHOLE[0], (9, encode_value(Mark("u", 1, 0, 0)))]}
    assert kinds([DONE], WHOLE, views={"r": seen}) == ["view"]
    assert kinds([DONE], WHOLE, views={"r": {**WHOLE, 0: WHOLE[0][1:]}}) == ["view"]
    assert kinds([DONE], WHOLE, views={"r": {**WHOLE, 0: [WHOLE[0][0], *WHOLE[0]]}}) == ["view"]
    assert kinds([DONE], WHOLE, views={"r": {**WHOLE, 0: WHOLE[0][:1]}}) == ["unread"]
    assert kinds([DONE], WHOLE, views={"r": {0: WHOLE[0]}}) == ["unread"]


def test_stuck_last_stable_offset_is_found() -> None:
    assert kinds([DONE], WHOLE, ends={0: (4, 5), 1: (2, 2)}) == ["stuck"]


def test_ledger_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.begin("t", 1, {0: 2, 3: 1})
    ledger.begin("t", 2, {0: 1})
    ledger.end("t", 1, Outcome.ABORTED, "replaced")
    ledger.end("t", 1, Outcome.COMMITTED)
    ledger.close()
    path.write_bytes(path.read_bytes() + b'{"cut')  # its process was killed during a write
    read = read_ledgers([path])
    assert read["t", 1] == Transaction(
        "t", 1, {0: 2, 3: 1}, [(Outcome.ABORTED, "replaced"), (Outcome.COMMITTED, "")]
    )
    assert read["t", 2].outcome is Outcome.UNKNOWN


def test_value_is_parsed_back() -> None:
    mark = Mark("id-1", 2, 3, 4)
    assert parse_value(encode_value(mark, "xxx")) == mark
    assert [parse_value(value) for value in (None, b"", b"a/b/c/d/e", b"a/1/2/3")] == [None] * 4
