"""The rules for the content of a topic after a transactional load.

The input is what the producers sent and which outcomes they received, what readers of committed records saw
during the kills, and the final content. The checker is a pure function of its input, so tests need no broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from interop.exactly_once.ledger import Mark, Outcome, Transaction, parse_value
from kwire.wire.plural import plural

Content = dict[int, list[tuple[int, bytes]]]
"""Records by partition, as pairs of offset and value, in the order in which a reader received them."""


class Finding(NamedTuple):
    """A violation of a rule, of one of these kinds.

    lost: records of a committed transaction are missing. aborted: records of an aborted transaction are
    visible. torn: a transaction with an unknown outcome is only partly visible. duplicate: a record is in the
    topic twice. reordered: records of one producer are in the wrong order. foreign: a record was never sent.
    fenced: a fenced producer could commit. view: a reader saw records other than the final content. stuck:
    the last stable offset does not reach the high watermark. unread: a reader did not reach the end.
    """

    kind: str
    text: str


@dataclass
class Evidence:
    """All observations. `content` and `ends` are read after the last transaction timeout has passed."""

    transactions: dict[tuple[str, int], Transaction]
    content: Content
    """The final content, as a reader of committed records receives it."""
    views: dict[str, Content] = field(default_factory=dict)
    """The content that each reader received during the load, by name of the reader."""
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition, the last stable offset and the high watermark."""


def check(evidence: Evidence) -> list[Finding]:
    """Return all violations of the rules."""
    return [
        *_transactions(evidence),
        *_order(evidence.content),
        *_views(evidence),
        *(
            Finding("stuck", f"partition {partition}: last stable offset {stable}, high watermark {end}")
            for partition, (stable, end) in sorted(evidence.ends.items())
            if stable != end
        ),
    ]


def _transactions(evidence: Evidence) -> Iterator[Finding]:
    """Check that each transaction is visible completely or not at all, as its reported outcome requires."""
    copies: Counter[Mark] = Counter()
    present: dict[tuple[str, int], set[Mark]] = defaultdict(set)
    for partition, records in sorted(evidence.content.items()):
        for offset, value in records:
            mark = parse_value(value)
            where = f"partition {partition} offset {offset}"
            if mark is None:
                yield Finding("foreign", f"{where}: {value[:60]!r}")
                continue
            transaction = evidence.transactions.get((mark.transactional_id, mark.number))
            if (
                transaction is None
                or mark.partition != partition
                or mark.position >= transaction.counts.get(partition, 0)
            ):
                yield Finding("foreign", f"{where}: {mark}")
                continue
            copies[mark] += 1
            if copies[mark] == 2:
                yield Finding("duplicate", f"{where}: {mark}")
            present[mark.transactional_id, mark.number].add(mark)
    for key, transaction in evidence.transactions.items():
        name = f"{key[0]} number {key[1]}"
        wanted = {
            Mark(*key, partition, index)
            for partition, count in transaction.counts.items()
            for index in range(count)
        }
        found = present[key]
        outcomes = {outcome for outcome, _ in transaction.outcomes}
        if Outcome.ABORTED in outcomes and Outcome.COMMITTED in outcomes:
            yield Finding("fenced", f"{name} was replaced, and could commit")
        reason = transaction.outcomes[-1][1] if transaction.outcomes else ""
        why = f"{transaction.outcome.value} {reason}".strip()
        if transaction.outcome is Outcome.COMMITTED and found != wanted:
            yield Finding("lost", f"{name} ({why}): {_some(wanted - found)}")
        elif Outcome.ABORTED in outcomes and found and Outcome.COMMITTED not in outcomes:
            yield Finding("aborted", f"{name} ({why}): {_some(found)}")
        elif transaction.outcome is Outcome.UNKNOWN and found and found != wanted:
            yield Finding("torn", f"{name} ({why}): without {_some(wanted - found)}")


def _order(content: Content) -> Iterator[Finding]:
    """Check that the records of each producer are in order in each partition."""
    for partition, records in sorted(content.items()):
        last: dict[str, Mark] = {}
        offsets = -1
        for offset, value in records:
            if offset <= offsets:
                yield Finding("reordered", f"partition {partition}: offset {offset} after {offsets}")
            offsets = offset
            mark = parse_value(value)
            if mark is None:
                continue
            before = last.get(mark.transactional_id)
            # An equal mark is a duplicate, which `_transactions` reports.
            if before is not None and mark < before:
                yield Finding("reordered", f"partition {partition} offset {offset}: {mark} after {before}")
            last[mark.transactional_id] = mark


def _views(evidence: Evidence) -> Iterator[Finding]:
    """Check that each reader saw exactly the final content up to its position."""
    for name, view in sorted(evidence.views.items()):
        for partition, final in sorted(evidence.content.items()):
            seen = view.get(partition, [])
            reached = seen[-1][0] if seen else -1
            expected = [record for record in final if record[0] <= reached]
            if seen != expected:
                at, was, is_ = _first_difference(seen, expected)
                yield Finding("view", f"{name} partition {partition}, its record {at}: saw {was}, is {is_}")
            elif len(seen) < len(final):
                yield Finding(
                    "unread", f"{name} partition {partition}: {len(seen)} of {plural(len(final), 'record')}"
                )


def _first_difference(
    seen: list[tuple[int, bytes]], expected: list[tuple[int, bytes]]
) -> tuple[int, str, str]:
    """Return the first index at which the lists differ, and descriptions of both records at this index."""
    at = next(
        (at for at, (left, right) in enumerate(zip(seen, expected, strict=False)) if left != right),
        min(len(seen), len(expected)),
    )
    return at, _shown(seen, at), _shown(expected, at)


def _shown(records: list[tuple[int, bytes]], at: int) -> str:
    return f"offset {records[at][0]} {parse_value(records[at][1])}" if at < len(records) else "nothing"


def _some(marks: set[Mark]) -> str:
    shown = [f"{mark.partition}[{mark.position}]" for mark in sorted(marks)]
    return " ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
