"""Contradictions between the observations of clients, modeled on Jepsen's Kafka workload.

`History` describes the anomalies. First, each final record is matched with its send: by the acknowledged
offset if there is one, else by key and value, to the first such send without a record. A record that remains
is a copy of a send with the same key and value, if the client may have sent it that often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final, Literal, NamedTuple, get_args

from kwire.testing.observations import (
    ANY_OFFSET,
    Commit,
    Delivery,
    FinalRecord,
    Observations,
    Outcome,
    Partition,
    Sent,
    format_partition,
    format_value,
    same_value,
)

AnomalyKind = Literal[
    "lost",
    "duplicated",
    "reordered",
    "wrong offset",
    "wrong partition",
    "never sent",
    "stored although rejected",
    "partial transaction",
    "read before commit",
    "read after abort",
    "lost after read",
    "changed",
    "read again",
    "skipped",
    "unread",
    "committed before read",
    "commit moved back",
    "two owners",
]
"""The kinds of anomalies."""
KINDS: Final[tuple[AnomalyKind, ...]] = get_args(AnomalyKind)
MAX_RECORDS_SHOWN = 5
"""The maximum number of records that an anomaly shows."""


class Anomaly(NamedTuple):
    """A contradiction between observations: its kind, and a description."""

    kind: AnomalyKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


Position = tuple[Partition, int, FinalRecord]
"""A final record with its partition and offset."""


class Stored(NamedTuple):
    """A final record and its send. A copy is another record of a send that has one already."""

    offset: int
    record: FinalRecord
    sent: Sent | None
    copy_of: int | None = None
    """The offset of the first record of the send, if this is a copy."""


def find_anomalies(observations: Observations, *, at_least_once: bool) -> list[Anomaly]:
    """Return all anomalies. `at_least_once` allows copies and reordering without idempotence."""
    with observations.lock:
        checker = _Checker(observations)
        return [
            *checker.check_final_records(at_least_once),
            *checker.check_lost(),
            *checker.check_reads(),
            *checker.check_unread(),
            *checker.check_commits(),
            *checker.check_assignments(),
        ]


def missing_records(observations: Observations) -> list[Sent]:
    """Return the records that must be final records and are not.

    These are acknowledged records, and all records of a transaction if one of them is a final record.
    """
    with observations.lock:
        checker = _Checker(observations)
        visible = {one.transaction for one in checker.stored if one.transaction is not None}
        return [
            one
            for one in observations.sent
            if checker.is_missing(one)
            and (
                one.transaction in visible
                or (one if one.transaction is None else one.transaction).outcome is Outcome.ACKNOWLEDGED
            )
        ]


class _Checker:
    """The checks of one snapshot of the observations."""

    def __init__(self, observations: Observations) -> None:
        self._seen = observations
        self._by_offset: dict[Partition, dict[int, Sent]] = defaultdict(dict)
        """The sends by their acknowledged offset."""
        self._by_value: dict[bytes, list[Sent]] = defaultdict(list)
        for sent in observations.sent:
            if sent.offset >= 0:
                self._by_offset[sent.partition][sent.offset] = sent
            self._by_value[sent.value].append(sent)
        self.stored: dict[Sent, int] = {}
        """The offset of the first final record of each send that has one."""
        self._acknowledged: list[Sent] = []
        """The sends with a final record at the acknowledged offset."""
        self._records = self._match()
        self._sent_at = {
            (partition, one.offset): one.sent
            for partition, several in self._records.items()
            for one in several
            if one.sent is not None
        }

    def _match(self) -> dict[Partition, list[Stored]]:
        """Return the final records of each partition in the order of their offsets, with their sends."""
        positions = [
            (partition, offset, record)
            for partition, records in sorted(self._seen.final.items())
            for offset, record in sorted(records.items())
        ]
        found = self._match_by_offset(positions)
        self._match_by_content(positions, found)
        matched: dict[Partition, list[Stored]] = defaultdict(list)
        for partition, offset, record in positions:
            sent = found.get((partition, offset))
            first = None
            if sent is not None:
                first = self.stored.setdefault(sent, offset)
                self._acknowledged += [sent] * (sent.offset == offset)
            matched[partition].append(Stored(offset, record, sent, None if first == offset else first))
        return matched

    def _match_by_offset(self, positions: list[Position]) -> dict[tuple[Partition, int], Sent]:
        """Return the records at the offsets of acknowledgments."""
        found = {}
        for partition, offset, record in positions:
            sent = self._by_offset[partition].get(offset)
            if sent is not None and _has_content(sent, record):
                found[partition, offset] = sent
        return found

    def _match_by_content(self, positions: list[Position], found: dict[tuple[Partition, int], Sent]) -> None:
        """Add the other records: to the first send without a record, or as copies of sends that have one."""
        have_record = set(found.values())
        without_record: dict[bytes, list[Sent]] = defaultdict(list)
        for sent in self._seen.sent:
            if sent not in have_record:
                without_record[sent.value].append(sent)
        copies: dict[Sent, int] = defaultdict(int)
        for partition, offset, record in positions:
            if (partition, offset) in found:
                continue
            several = [
                one
                for one in without_record.get(record.value, ())
                if one.is_for(partition) and _is_written_by(one, record)
            ]
            if several:
                sent = min(several, key=lambda one: one.is_rejected)  # the first one that is not rejected
                without_record[record.value].remove(sent)
                found[partition, offset] = sent
                continue
            for one in self._by_value.get(record.value, ()):
                if one.is_for(partition) and _is_written_by(one, record) and copies[one] + 1 < one.attempts:
                    copies[one] += 1
                    found[partition, offset] = one
                    break

    # --- sends

    def check_final_records(self, at_least_once: bool) -> Iterator[Anomaly]:
        """Check what the log has, and in which order."""
        acknowledged = set(self._acknowledged)
        for partition, records in sorted(self._records.items()):
            last: dict[tuple[str, object], Sent] = {}
            for offset, record, sent, copy_of in records:
                where = f"{format_partition(partition)} offset {offset}"
                if sent is None:
                    if self._seen.has_all_sends:
                        elsewhere = self._by_value.get(record.value)
                        yield (
                            Anomaly(
                                "wrong partition",
                                f"{where} has {elsewhere[0]}, which was sent to "
                                f"{format_partition(elsewhere[0].partition)}",
                            )
                            if elsewhere
                            else Anomaly(
                                "never sent",
                                f"{where} has {format_value(record.value)}, which no producer sent",
                            )
                        )
                    continue
                is_checked = sent.is_idempotent or not at_least_once
                if copy_of is not None:
                    if is_checked:
                        yield Anomaly("duplicated", f"{where} has {sent}, which is also at offset {copy_of}")
                    continue
                if sent.is_rejected:
                    yield (
                        Anomaly("stored although rejected", f"{where} has {sent}")
                        if sent.transaction is None
                        else Anomaly(
                            "read after abort",
                            f"a read_committed consumer gets {where} after the test: {sent}",
                        )
                    )
                if sent.offset >= 0 and sent not in acknowledged and sent.is_idempotent:
                    yield Anomaly("wrong offset", f"{where} has {sent}")
                before = last.get((sent.producer, sent.sequence))
                if is_checked and before is not None and before.number > sent.number:
                    yield Anomaly("reordered", f"{where} has {sent}, after {before}")
                else:
                    last[sent.producer, sent.sequence] = sent

    def check_lost(self) -> Iterator[Anomaly]:
        """Check that acknowledged records and committed transactions are complete."""
        lost = defaultdict(list)
        for sent in self._seen.sent:
            if sent.transaction is None and sent.outcome is Outcome.ACKNOWLEDGED and self.is_missing(sent):
                lost[sent.producer, sent.partition].append(sent)
        for (_, partition), several in sorted(lost.items()):
            yield Anomaly("lost", f"{format_partition(partition)} lacks {_format_sends(several)}")
        for transaction in self._seen.transactions:
            missing = [one for one in transaction.sends if self.is_missing(one)]
            if not missing:
                continue
            if transaction.outcome is Outcome.ACKNOWLEDGED:
                yield Anomaly("lost", f"{transaction.name} was committed, but lacks {_format_sends(missing)}")
            elif transaction.outcome is Outcome.UNKNOWN and any(
                one in self.stored for one in transaction.sends
            ):
                yield Anomaly(
                    "partial transaction",
                    f"{transaction.name} has some of its records, but lacks {_format_sends(missing)}",
                )

    def is_missing(self, sent: Sent) -> bool:
        """Return whether a record has no final record, and was not deleted."""
        return sent not in self.stored and not self._may_be_deleted(sent.partition, sent.offset)

    def _may_be_deleted(self, partition: Partition, offset: int) -> bool:
        """Return whether a record may be missing because it was deleted."""
        if partition[0] in self._seen.unchecked_topics:
            return True
        return offset < self._seen.log_starts.get(partition, 0) > 0

    # --- reads

    def check_reads(self) -> Iterator[Anomaly]:
        """Check the records that each reader got, and their order."""
        offsets = {partition: sorted(records) for partition, records in self._seen.final.items()}
        for reader, deliveries in sorted(self._seen.deliveries.items()):
            next_offset: dict[Partition, int | None] = {}
            for one in deliveries:
                partition, offset = one.partition, one.offset
                expected = next_offset.get(partition)
                if one.value is None:
                    next_offset[partition] = offset if offset != ANY_OFFSET else None
                    continue
                next_offset[partition] = offset + 1
                what = f"{reader} read {format_partition(partition)} offset {offset} at {one.at_s:.3f} s"
                if expected is not None and offset < expected:
                    yield Anomaly("read again", f"{what}, when its position was {expected}")
                elif expected is not None and (
                    between := _offsets_between(offsets.get(partition, []), expected, offset)
                ):
                    yield Anomaly("skipped", f"{what}, but not {_format_offsets(between)}")
                if reader not in self._seen.final_readers:
                    yield from self._check_read(what, one, one.value)

    def _check_read(self, what: str, read: Delivery, value: bytes) -> Iterator[Anomaly]:
        sent = self._send_of(read, value)
        transaction = None if sent is None else sent.transaction
        record = self._seen.final.get(read.partition, {}).get(read.offset)
        level = f" by {read.isolation_level}" if read.isolation_level else ""
        what = f"{what}{level}: {sent or format_value(value)}"
        if transaction is not None and transaction.outcome is not Outcome.UNKNOWN:
            requested_s = transaction.end_requested_s
            ended = "committed" if transaction.outcome is Outcome.ACKNOWLEDGED else "aborted"
            at = f"{transaction.name} was {ended} at {transaction.ended_at_s:.3f} s"
            if transaction.outcome is Outcome.REJECTED:
                if read.at_s < (requested_s if requested_s >= 0 else transaction.ended_at_s):
                    yield Anomaly("read before commit", f"{what}, and {at}")
                else:
                    yield Anomaly("read after abort", f"{what}, but {at}")
                return
            if read.at_s < requested_s:
                yield Anomaly("read before commit", f"{what}, but {at}")
        if record is None:
            if self._may_be_deleted(read.partition, read.offset):
                return
            if transaction is not None and transaction.outcome is Outcome.UNKNOWN:
                yield Anomaly(
                    "read before commit", f"{what}, but {transaction.name} is not known to be committed"
                )
            else:
                yield Anomaly("lost after read", f"{what}, which is not among the final records")
        elif not same_value(record.value, value):
            now = self._sent_at.get((read.partition, read.offset)) or format_value(record.value)
            yield Anomaly("changed", f"{what}, but the final record is {now}")

    def _send_of(self, read: Delivery, value: bytes) -> Sent | None:
        """Return the send of a record that a reader got: by its offset, else by its value if it is unique."""
        sent = self._sent_at.get((read.partition, read.offset)) or self._by_offset[read.partition].get(
            read.offset
        )
        if sent is not None and same_value(sent.value, value):
            return sent
        several = [one for one in self._by_value.get(value, ()) if one.is_for(read.partition)]
        if len(several) > 1:
            several = [one for one in several if one not in self.stored and one.offset < 0]
        return several[0] if len(several) == 1 else None

    def check_unread(self) -> Iterator[Anomaly]:
        """Check that the expected readers together got all records of the topics that they read.

        Records before the first committed offset of a group were read before this history.
        """
        for names in self._seen.expected_readers:
            deliveries = [
                one
                for name in names
                for reader in self._seen.readers_of(name)
                for one in self._seen.deliveries.get(reader, ())
            ]
            read = {(one.partition, one.offset) for one in deliveries if one.value is not None}
            topics = {one.partition[0] for one in deliveries}
            first_offsets = [self._seen.first_offsets.get(name, {}) for name in names]
            for partition, records in sorted(self._records.items()):
                if topics and partition[0] not in topics:
                    continue
                first_offset = max((one.get(partition, 0) for one in first_offsets), default=0)
                unread = [
                    one
                    for one in records
                    if one.offset >= first_offset and (partition, one.offset) not in read
                ]
                if unread:
                    first = unread[0]
                    yield Anomaly(
                        "unread",
                        f"{' and '.join(names)} did not read {format_partition(partition)} "
                        f"{_format_offsets([one.offset for one in unread])}: "
                        f"{first.sent or format_value(first.record.value)}",
                    )

    # --- groups

    def check_commits(self) -> Iterator[Anomaly]:
        """Check the order of each group's commits, and that no commit is ahead of the reads."""
        for group, commits in sorted(self._seen.commits.items()):
            deliveries: dict[Partition, list[Delivery]] = defaultdict(list)
            for reader in self._seen.readers_of(group):
                for one in self._seen.deliveries.get(reader, ()):
                    deliveries[one.partition].append(one)
            last: dict[Partition, Commit] = {}
            for commit in commits:
                before = last.get(commit.partition)
                what = (
                    f"{group} committed {format_partition(commit.partition)} offset {commit.offset} at "
                    f"{commit.at_s:.3f} s"
                )
                own = deliveries[commit.partition]
                last[commit.partition] = commit
                if commit.may_go_back:
                    continue
                if (
                    before is not None
                    and commit.offset < before.offset
                    and not _has_sought(own, before, commit)
                ):
                    yield Anomaly(
                        "commit moved back",
                        f"{what}, after offset {before.offset} at {before.at_s:.3f} s",
                    )
                position = _position(own, commit.at_s)
                if position is not None and (
                    unread := _offsets_between(
                        sorted(self._seen.final.get(commit.partition, ())), position, commit.offset
                    )
                ):
                    yield Anomaly(
                        "committed before read", f"{what}, but had not read {_format_offsets(unread)}"
                    )

    def check_assignments(self) -> Iterator[Anomaly]:
        """Check that no partition is assigned to two members of a group at a time."""
        for group, changes in sorted(self._seen.ownership.items()):
            owners: dict[Partition, dict[str, float]] = defaultdict(dict)
            for partition, member, assigned, at_s in changes:
                if not assigned:
                    owners[partition].pop(member, None)
                    continue
                for other, since_s in owners[partition].items():
                    if other != member:
                        yield Anomaly(
                            "two owners",
                            f"{format_partition(partition)} was assigned to {member} of {group} "
                            f"at {at_s:.3f} s, while {other} has owned it since {since_s:.3f} s",
                        )
                owners[partition].setdefault(member, at_s)


def _has_content(sent: Sent, record: FinalRecord) -> bool:
    return sent.has_content(record.value, record.key, is_key_known=record.is_key_known)


def _is_written_by(sent: Sent, record: FinalRecord) -> bool:
    """Return whether a send, or a retry of it, may have written the record.

    A retry has the timestamp of the send. A record with another timestamp was sent separately, perhaps before
    the history began.
    """
    timestamps = {sent.timestamp_ms, record.timestamp_ms}
    return _has_content(sent, record) and (None in timestamps or len(timestamps) == 1)


def _has_sought(deliveries: list[Delivery], before: Commit, commit: Commit) -> bool:
    """Return whether a reader has moved to the offset of a commit, or below, since an earlier commit."""
    return any(
        one.value is None and one.offset <= commit.offset and before.at_s <= one.at_s <= commit.at_s
        for one in deliveries
    )


def _position(deliveries: list[Delivery], at_s: float) -> int | None:
    """Return the highest position that readers of a partition had until `at_s`. None if it is not known."""
    found: int | None = None
    is_known = True
    for one in sorted(deliveries, key=lambda each: each.at_s):
        if one.at_s > at_s:
            break
        is_known = one.value is not None or one.offset != ANY_OFFSET
        if is_known:
            found = max(found or 0, one.offset + (one.value is not None))
    return found if is_known else None


def _offsets_between(offsets: list[int], first: int, end: int) -> list[int]:
    """Return the offsets of final records from `first` up to, but not including, `end`.

    Offsets of control records are not included.
    """
    if first >= end:
        return []
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


def _format_offsets(offsets: list[int]) -> str:
    if len(offsets) == 1:
        return f"offset {offsets[0]}"
    more = f", and {len(offsets) - MAX_RECORDS_SHOWN} more" if len(offsets) > MAX_RECORDS_SHOWN else ""
    return f"offsets {', '.join(map(str, offsets[:MAX_RECORDS_SHOWN]))}{more}"


def _format_sends(several: Collection[Sent]) -> str:
    shown = ", ".join(str(sent) for sent in list(several)[:MAX_RECORDS_SHOWN])
    return shown + (
        f", and {len(several) - MAX_RECORDS_SHOWN} more" if len(several) > MAX_RECORDS_SHOWN else ""
    )
