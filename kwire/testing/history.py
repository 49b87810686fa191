"""A checker of what producers and consumers have observed, modeled on Jepsen's Kafka workload.

    history = History()
    history.on_send("producer 1", ("orders", 0), b"1")          # before each send, in the order of the sends
    history.on_ack(b"1", 17)                                    # or on_reject(b"1"); neither after a timeout
    history.on_seek("group", ("orders", 0), 17)                 # where a reader starts: assignment or seek
    history.on_poll("group", [(("orders", 0), 17, b"1")])       # records in the order in which they were read
    history.expect_all_read("group")                            # a group, or several readers together
    history.on_commit("group", ("orders", 0), 18)               # each acknowledged offset commit
    history.on_assign("group", "member 1", [("orders", 0)])     # and on_revoke, from a rebalance listener
    history.set_final_records(kafka.records("orders"))          # after the test, all records that exist
    history.check()                                             # raises AssertionError if there are anomalies

Each value must be sent only once, because it identifies its record. The checker compares what readers got
with the *final records*: all records that one reader finds after the test, when no fault is active. It works
with any Kafka cluster, since it sends no requests. Its methods can be called from several threads.

The anomalies:

- *lost*: acknowledged, or part of a committed transaction, but not among the final records
- *duplicate*: stored at two offsets, although its producer is idempotent
- *reordered*: stored before a record that its idempotent producer sent to the same partition earlier
- *wrong offset*: stored at another offset than the acknowledged one
- *uncommitted*: read, but not among the final records; or stored, although it was rejected or aborted
- *changed*: read with another value than the final record at this offset
- *non-monotonic*: a reader got an offset again or a lower one without a seek; or a group committed a lower
  offset than before, without `may_go_back`
- *skipped*: a reader got an offset, but not the final records between its position and this offset
- *unread*: a final record that none of the expected readers got
- *unexpected*: a final record that no producer sent, or that was sent to another partition
- *partial transaction*: some records of a transaction are final records, and others are not
- *two owners*: a partition was assigned to a member of a group while another member owned it

Producers without idempotence may duplicate and reorder records when they retry. `check` reports that, unless
`at_least_once` is set.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from kwire.host.system_time import monotonic
from kwire.testing.arguments import check_number
from kwire.testing.results import Record

Partition = tuple[str, int]
"""A topic name and a partition number. A `TopicPartition` is one."""
Read = tuple[Partition, int, bytes]
"""A record as a reader gets it: its partition, offset and value."""
ANY_OFFSET = UNKNOWN_OFFSET = -1
"""An offset that the caller does not know."""
MAX_RECORDS_SHOWN = 5
"""The maximum number of records that an anomaly shows."""
MAX_ANOMALIES_SHOWN = 50
"""The maximum number of anomalies that a failure shows."""


class Outcome(Enum):
    """The outcome of a send or a transaction, as its client knows it."""

    UNKNOWN = "outcome unknown"
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"


class Anomaly(NamedTuple):
    """A contradiction between observations: its kind, and a description."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True, eq=False)
class _Transaction:
    name: str
    outcome: Outcome = Outcome.UNKNOWN
    values: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Sent:
    value: bytes
    producer: str
    partition: Partition
    number: int
    is_idempotent: bool
    at_s: float
    transaction: _Transaction | None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = UNKNOWN_OFFSET
    acknowledged_at_s: float = -1.0

    def __str__(self) -> str:
        outcome = self.outcome.value
        if self.outcome is Outcome.ACKNOWLEDGED:
            outcome += f" at {self.acknowledged_at_s:.3f} s"
            outcome += f" with offset {self.offset}" if self.offset >= 0 else ""
        of = f" in {self.transaction.name}" if self.transaction is not None else ""
        record = f"record {self.number} of {self.producer}{of}"
        return f"{_format_value(self.value)} ({record}, sent at {self.at_s:.3f} s, {outcome})"


class _Delivery(NamedTuple):
    """A record that a reader got, or, if the value is None, a seek of the reader to the offset."""

    partition: Partition
    offset: int
    value: bytes | None
    at_s: float


class _Commit(NamedTuple):
    """An offset commit of a group. `may_go_back` is set after a reset of the group's offsets."""

    partition: Partition
    offset: int
    may_go_back: bool
    at_s: float


class _Ownership(NamedTuple):
    """The assignment of a partition to a member, or its revocation."""

    partition: Partition
    member: str
    assigned: bool
    at_s: float


class History:
    """The observations of clients. Times in anomalies are seconds since this object was created."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._lock = threading.Lock()
        self._sent: dict[bytes, _Sent] = {}
        self._send_counts: dict[tuple[str, Partition], int] = defaultdict(int)
        self._transactions: dict[str, _Transaction] = {}
        self._deliveries: dict[str, list[_Delivery]] = defaultdict(list)
        self._final: dict[Partition, list[tuple[int, bytes]]] = defaultdict(list)
        self._expected_readers: list[tuple[str, ...]] = []
        self._commits: dict[str, list[_Commit]] = defaultdict(list)
        self._ownership: dict[str, list[_Ownership]] = defaultdict(list)

    # --- observations

    def on_send(
        self,
        producer: str,
        partition: Partition,
        value: bytes,
        *,
        is_idempotent: bool = True,
        transaction: str | None = None,
    ) -> None:
        """Record that a producer is about to send a value, which must be unique.

        `transaction` is a unique name of the transaction, if the value is part of one.
        """
        _check_partitions(partition)
        with self._lock:
            assert value not in self._sent, f"{_format_value(value)} is sent twice"
            self._send_counts[producer, partition] += 1
            number = self._send_counts[producer, partition]
            found = None
            if transaction is not None:
                found = self._transactions.setdefault(transaction, _Transaction(transaction))
                found.values.append(value)
            self._sent[value] = _Sent(value, producer, partition, number, is_idempotent, self._now_s(), found)

    def on_ack(self, value: bytes, offset: int = UNKNOWN_OFFSET) -> None:
        """Record an acknowledgment with acks=all, and the record's offset if the client knows it."""
        check_number("offset", offset)
        with self._lock:
            sent = self._sent_value(value)
            sent.outcome, sent.offset, sent.acknowledged_at_s = Outcome.ACKNOWLEDGED, offset, self._now_s()

    def on_resend(self, value: bytes) -> None:
        """Record a retry with another producer id or epoch, which the broker cannot deduplicate."""
        with self._lock:
            self._sent_value(value).is_idempotent = False

    def on_reject(self, value: bytes) -> None:
        """Record that a send failed with an error that excludes success. Do not call this after a timeout."""
        with self._lock:
            self._sent_value(value).outcome = Outcome.REJECTED

    def _sent_value(self, value: bytes) -> _Sent:
        found = self._sent.get(value) if isinstance(value, bytes) else None
        if found is None:
            raise LookupError(f"{value!r:.100} has not been sent: call on_send with this value first")
        return found

    def on_transaction_end(self, transaction: str, *, committed: bool) -> None:
        """Record the outcome of a transaction. Do not call this if the outcome is unknown."""
        with self._lock:
            found = self._transactions.setdefault(transaction, _Transaction(transaction))
            found.outcome = Outcome.ACKNOWLEDGED if committed else Outcome.REJECTED

    def on_seek(self, reader: str, partition: Partition, offset: int = ANY_OFFSET) -> None:
        """Record a reader's new position after an assignment or a seek, if the caller knows it."""
        _check_partitions(partition)
        check_number("offset", offset)
        with self._lock:
            self._deliveries[reader].append(_Delivery(partition, offset, None, self._now_s()))

    def expect_all_read(self, *readers: str) -> None:
        """Require that these readers together get all final records."""
        with self._lock:
            self._expected_readers.append(readers)

    def on_poll(self, reader: str, records: Iterable[Read]) -> None:
        """Record the records that a read_committed reader got, in this order."""
        records = list(records)
        _check_records(records)
        with self._lock:
            now_s = self._now_s()
            self._deliveries[reader] += [_Delivery(*record, now_s) for record in records]

    def on_final_read(self, reader: str, records: Iterable[Read]) -> None:
        """Record that a reader got all final records, from the start of each partition."""
        records = list(records)
        self.on_poll(reader, records)
        with self._lock:
            for partition, offset, value in records:
                self._final[partition].append((offset, value))

    def set_final_records(self, records: Iterable[Record]) -> None:
        """Set the final records of a topic, as `Kafka.records` returns them."""
        records = list(records)
        for one in records:
            if not hasattr(one, "topic"):
                raise TypeError(f"final records are those that Kafka.records returns, not {one!r:.100}")
        read = [((one.topic, one.partition), one.offset, one.value or b"") for one in records]
        self.on_final_read("the final reader", read)

    def on_commit(self, group: str, partition: Partition, offset: int, *, may_go_back: bool = False) -> None:
        """Record an acknowledged offset commit. Set `may_go_back` after a reset of the group's offsets."""
        _check_partitions(partition)
        check_number("offset", offset)
        with self._lock:
            self._commits[group].append(_Commit(partition, offset, may_go_back, self._now_s()))

    def on_assign(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """Record partitions that a member was assigned in addition to the partitions that it owns."""
        self._record_ownership(group, member, partitions, assigned=True)

    def on_revoke(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """Record partitions that a member has given up or lost."""
        self._record_ownership(group, member, partitions, assigned=False)

    def _record_ownership(
        self, group: str, member: str, partitions: Iterable[Partition], *, assigned: bool
    ) -> None:
        partitions = list(partitions)
        _check_partitions(*partitions)
        with self._lock:
            now_s = self._now_s()
            self._ownership[group] += [
                _Ownership(partition, member, assigned, now_s) for partition in partitions
            ]

    def _now_s(self) -> float:
        return self._clock() - self._started_s

    # --- results

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledged records."""
        with self._lock:
            return sum(sent.outcome is Outcome.ACKNOWLEDGED for sent in self._sent.values())

    def longest_ack_gap_s(self, producer: str | None = None) -> float:
        """Return the longest time between consecutive acknowledgments, to one producer or to all together."""
        with self._lock:
            times = sorted(
                sent.acknowledged_at_s
                for sent in self._sent.values()
                if sent.outcome is Outcome.ACKNOWLEDGED and producer in (None, sent.producer)
            )
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, *, at_least_once: bool = False) -> None:
        """Raise AssertionError if there are anomalies, with the first `MAX_ANOMALIES_SHOWN` of them.

        `at_least_once` allows producers without idempotence to duplicate and reorder records.
        """
        __tracebackhide__ = True  # pytest shows the caller's line
        found = self.anomalies(at_least_once=at_least_once)
        if found:
            more = (
                [f"and {len(found) - MAX_ANOMALIES_SHOWN} more"] if len(found) > MAX_ANOMALIES_SHOWN else []
            )
            raise AssertionError(
                "\n  ".join(["the history has anomalies:", *map(str, found[:MAX_ANOMALIES_SHOWN]), *more])
            )

    def anomalies(self, *, at_least_once: bool = True) -> list[Anomaly]:
        """Return all anomalies. For `at_least_once`, see `check`."""
        with self._lock:
            return [
                *self._check_final_records(at_least_once),
                *self._check_lost(),
                *self._check_polls(),
                *self._check_unread(),
                *self._check_commits(),
                *self._check_assignments(),
            ]

    def _check_final_records(self, at_least_once: bool) -> Iterator[Anomaly]:
        stored: dict[bytes, tuple[Partition, int]] = {}
        for partition, records in sorted(self._final.items()):
            last: dict[str, _Sent] = {}
            for offset, value in records:
                where = f"{_format_partition(partition)} offset {offset}"
                sent = self._sent.get(value)
                if sent is None or sent.partition != partition:
                    yield Anomaly("unexpected", f"{where} has {sent or _format_value(value)}")
                    continue
                is_checked = sent.is_idempotent or not at_least_once
                if value in stored:
                    if is_checked:
                        yield Anomaly(
                            "duplicate", f"{where} has {sent}, which is also at offset {stored[value][1]}"
                        )
                    continue
                stored[value] = partition, offset
                if _is_rejected(sent):
                    yield Anomaly("uncommitted", f"{where} has {sent}")
                if 0 <= sent.offset != offset and sent.is_idempotent:
                    yield Anomaly("wrong offset", f"{where} has {sent}")
                before = last.get(sent.producer)
                if is_checked and before is not None and before.number > sent.number:
                    yield Anomaly("reordered", f"{where} has {sent}, after {before}")
                else:
                    last[sent.producer] = sent

    def _check_lost(self) -> Iterator[Anomaly]:
        stored = {value for records in self._final.values() for _, value in records}
        lost = defaultdict(list)
        for sent in self._sent.values():
            if sent.transaction is None and sent.outcome is Outcome.ACKNOWLEDGED and sent.value not in stored:
                lost[sent.producer, sent.partition].append(sent)
        for (_, partition), several in sorted(lost.items()):
            yield Anomaly("lost", f"{_format_partition(partition)} lacks {_format_sends(several)}")
        for transaction in self._transactions.values():
            missing = [self._sent[value] for value in transaction.values if value not in stored]
            if not missing:
                continue
            if transaction.outcome is Outcome.ACKNOWLEDGED:
                yield Anomaly("lost", f"{transaction.name} was committed, but lacks {_format_sends(missing)}")
            elif transaction.outcome is Outcome.UNKNOWN and len(missing) < len(transaction.values):
                yield Anomaly(
                    "partial transaction",
                    f"{transaction.name} has some of its records, but lacks {_format_sends(missing)}",
                )

    def _check_polls(self) -> Iterator[Anomaly]:
        final = {partition: dict(records) for partition, records in self._final.items()}
        offsets = {partition: sorted(found) for partition, found in final.items()}
        for reader, deliveries in sorted(self._deliveries.items()):
            next_offset: dict[Partition, int | None] = {}
            for partition, offset, value, at_s in deliveries:
                expected = next_offset.get(partition)
                if value is None:
                    next_offset[partition] = offset if offset != ANY_OFFSET else None
                    continue
                next_offset[partition] = offset + 1
                what = f"{reader} read {_format_partition(partition)} offset {offset} at {at_s:.3f} s"
                if expected is not None and offset < expected:
                    yield Anomaly("non-monotonic", f"{what}, when its position was {expected}")
                elif expected is not None and (
                    between := _offsets_between(offsets.get(partition, []), expected, offset)
                ):
                    yield Anomaly(
                        "skipped",
                        f"{what}, but not offsets {between[:MAX_RECORDS_SHOWN]} ({len(between)} in total)",
                    )
                stored = final.get(partition, {}).get(offset)
                if stored is None:
                    yield Anomaly(
                        "uncommitted",
                        f"{what}: {self._sent.get(value) or _format_value(value)}, "
                        "which is not a final record",
                    )
                elif stored != value:
                    yield Anomaly(
                        "changed",
                        f"{what}: {_format_value(value)}, but the final record is {self._sent.get(stored)}",
                    )

    def _check_unread(self) -> Iterator[Anomaly]:
        for readers in self._expected_readers:
            read = {(each.partition, each.offset) for reader in readers for each in self._deliveries[reader]}
            for partition, records in sorted(self._final.items()):
                unread = [offset for offset, _ in records if (partition, offset) not in read]
                if unread:
                    first = dict(records)[unread[0]]
                    yield Anomaly(
                        "unread",
                        f"{' and '.join(readers)} did not read {_format_partition(partition)} offsets "
                        f"{unread[:MAX_RECORDS_SHOWN]} ({len(unread)} in total): "
                        f"{self._sent.get(first) or _format_value(first)}",
                    )

    def _check_commits(self) -> Iterator[Anomaly]:
        for group, commits in sorted(self._commits.items()):
            last: dict[Partition, _Commit] = {}
            for commit in commits:
                before = last.get(commit.partition)
                if before is not None and commit.offset < before.offset and not commit.may_go_back:
                    yield Anomaly(
                        "non-monotonic",
                        f"{group} committed {_format_partition(commit.partition)} offset {commit.offset} at "
                        f"{commit.at_s:.3f} s, after offset {before.offset} at {before.at_s:.3f} s",
                    )
                last[commit.partition] = commit

    def _check_assignments(self) -> Iterator[Anomaly]:
        for group, changes in sorted(self._ownership.items()):
            owners: dict[Partition, dict[str, float]] = defaultdict(dict)
            for partition, member, assigned, at_s in changes:
                if not assigned:
                    owners[partition].pop(member, None)
                    continue
                for other, since_s in owners[partition].items():
                    if other != member:
                        yield Anomaly(
                            "two owners",
                            f"{_format_partition(partition)} was assigned to {member} of {group} "
                            f"at {at_s:.3f} s, while {other} has owned it since {since_s:.3f} s",
                        )
                owners[partition].setdefault(member, at_s)


def _check_partitions(*partitions: object) -> None:
    """Raise TypeError unless all are pairs of topic name and partition number."""
    for partition in partitions:
        match partition:
            case (str(), int()) if isinstance(partition, tuple):
                continue
        raise TypeError(f"a partition is a topic and a number, such as ('orders', 0), not {partition!r:.100}")


def _check_records(records: Iterable[object]) -> None:
    """Raise TypeError unless all are a partition, an offset and a value."""
    for record in records:
        match record:
            case (partition, int(), _):
                _check_partitions(partition)
                continue
        raise TypeError(
            "a record is a partition, an offset and a value, such as (('orders', 0), 17, b'bill'), "
            f"not {record!r:.100}"
        )


def _is_rejected(sent: _Sent) -> bool:
    if sent.transaction is not None:
        return sent.transaction.outcome is Outcome.REJECTED
    return sent.outcome is Outcome.REJECTED


def _offsets_between(offsets: list[int], first: int, end: int) -> list[int]:
    """Return the offsets of final records from `first` up to, but not including, `end`.

    Offsets of control records are not included.
    """
    if first == end:
        return []
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


def _format_partition(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _format_sends(several: list[_Sent]) -> str:
    shown = ", ".join(str(sent) for sent in several[:MAX_RECORDS_SHOWN])
    return shown + (
        f", and {len(several) - MAX_RECORDS_SHOWN} more" if len(several) > MAX_RECORDS_SHOWN else ""
    )


def _format_value(value: bytes) -> str:
    return repr(value[:60])
