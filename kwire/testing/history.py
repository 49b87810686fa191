"""What clients did and were told, and what of it cannot be: a checker after Jepsen's workload for Kafka.

    history = History()
    history.on_send("producer 1", ("orders", 0), b"1")        # before each send, in the order of the sends
    history.on_ack(b"1", 17)                          # or refused(b"1"); neither: nobody knows
    history.on_poll("group", [(("orders", 0), 17, b"1")])    # what each reader was given, as it came
    history.on_seek("group", ("orders", 0), 18)              # where it begins: assigned, or after a seek
    history.expect_all_read("group")                              # several may do so together, as a group
    history.on_commit("group", ("orders", 0), 18)           # each offset that a commit was acknowledged for
    history.on_assign("group", "member 1", [("orders", 0)])  # and revoked: what members were told to read
    history.set_final_records(kafka.records("orders"))              # in the end, all that is there
    history.check()                                         # AssertionError, with what cannot be in words

Every value is sent once, and so names its record. What readers are given is held to what one of them reads in
the end from beginning to end, after all trouble. The checker touches no broker, and may be told
things by several threads.

These are found:

- *lost*: acknowledged (or, of a transaction, committed), and not there in the end
- *doubled*: there at two offsets, though its producer is idempotent
- *reordered*: there before what its idempotent producer has sent to the partition before it
- *moved*: acknowledged at another offset than where it stands
- *uncommitted*: given to a reader and not there in the end; or there, and refused or of an abort
- *changed*: a reader was given another value than the one that is there in the end
- *going back*: a reader was given an offset again, or a lower one, without having been sent there
- *skipped*: a reader was given an offset without those before it
- *unread*: there, and given to nobody of those who were to be given all
- *foreign*: there, and sent by nobody, or sent elsewhere
- *torn*: some records of a transaction are there, and others are not
- *two owners*: a partition was assigned to a member of a group while another one had it

Commits go back, too: a group has committed a lower offset than before, without having been sent there.
Producers without idempotence may double and reorder what they send, since they try again: `check` finds that,
unless it is told that reading at least once is enough.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from kwire.testing.results import Record

Partition = tuple[str, int]
"""A topic and a partition of it."""
Read = tuple[Partition, int, bytes]
"""A record as a reader gets it: where, at which offset, and its value."""
ANY_OFFSET = UNKNOWN_OFFSET = -1
"""An offset that nobody has told."""
MAX_RECORDS_SHOWN = 5
"""How many records a finding names."""
MAX_ANOMALIES_SHOWN = 50
"""How many findings a failure names."""


class Outcome(Enum):
    """What a client was told of what it did."""

    UNKNOWN = "nobody knows whether it is there"
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "refused for good"


class Anomaly(NamedTuple):
    """Something that cannot be: of which kind, and in words."""

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
        told = self.outcome.value
        if self.outcome is Outcome.ACKNOWLEDGED:
            told += f" at {self.acknowledged_at_s:.3f} s" + (f" as {self.offset}" if self.offset >= 0 else "")
        of = f" in {self.transaction.name}" if self.transaction is not None else ""
        who = f"number {self.number} of {self.producer}{of}"
        return f"{_format_value(self.value)} ({who}, sent at {self.at_s:.3f} s, {told})"


class _Delivery(NamedTuple):
    """A record that a reader was given; without a value, where it was sent to go on."""

    partition: Partition
    offset: int
    value: bytes | None
    at_s: float


class _Commit(NamedTuple):
    """An offset that a group has committed; `may_go_back` where it was sent there."""

    partition: Partition
    offset: int
    may_go_back: bool
    at_s: float


class _Ownership(NamedTuple):
    """A member was told to read a partition from now on, or no longer."""

    partition: Partition
    member: str
    assigned: bool
    at_s: float


class History:
    """See the module. `clock` gives seconds; findings name times since the beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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

    # --- being told

    def on_send(
        self,
        producer: str,
        partition: Partition,
        value: bytes,
        *,
        is_idempotent: bool = True,
        transaction: str | None = None,
    ) -> None:
        """A producer is about to send a value, which nobody has sent before."""
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
        """It was told that the value is there (with acks=all), and where, unless it does not know."""
        with self._lock:
            sent = self._sent[value]
            sent.outcome, sent.offset, sent.acknowledged_at_s = Outcome.ACKNOWLEDGED, offset, self._now_s()

    def on_resend(self, value: bytes) -> None:
        """It was sent again under another producer id or epoch: no broker can know it for the same."""
        with self._lock:
            self._sent[value].is_idempotent = False

    def on_reject(self, value: bytes) -> None:
        """It was told that the value is not there and never will be. A timeout leaves that open."""
        with self._lock:
            self._sent[value].outcome = Outcome.REJECTED

    def on_transaction_end(self, transaction: str, *, committed: bool) -> None:
        """It was told how a transaction ended. Where nobody was told, nobody knows."""
        with self._lock:
            found = self._transactions.setdefault(transaction, _Transaction(transaction))
            found.outcome = Outcome.ACKNOWLEDGED if committed else Outcome.REJECTED

    def on_seek(self, reader: str, partition: Partition, offset: int = ANY_OFFSET) -> None:
        """A reader goes on from there: it was assigned the partition, or was sought to the offset."""
        _check_partitions(partition)
        with self._lock:
            self._deliveries[reader].append(_Delivery(partition, offset, None, self._now_s()))

    def expect_all_read(self, *readers: str) -> None:
        """These were to be given, together, all that is there in the end."""
        with self._lock:
            self._expected_readers.append(readers)

    def on_poll(self, reader: str, records: Iterable[Read]) -> None:
        """A reader (of what is committed) was given records."""
        records = list(records)
        _check_partitions(*(record[0] for record in records))
        with self._lock:
            now_s = self._now_s()
            self._deliveries[reader] += [_Delivery(*record, now_s) for record in records]

    def on_final_read(self, reader: str, records: Iterable[Read]) -> None:
        """In the end a reader was given all that is there, from the beginning of each partition."""
        records = list(records)
        self.on_poll(reader, records)
        with self._lock:
            for partition, offset, value in records:
                self._final[partition].append((offset, value))

    def set_final_records(self, records: Iterable[Record]) -> None:
        """In the end this is all that is there: what `Kafka.records` gives of each topic."""
        read = [((one.topic, one.partition), one.offset, one.value or b"") for one in records]
        self.on_final_read("whoever reads in the end", read)

    def on_commit(self, group: str, partition: Partition, offset: int, *, may_go_back: bool = False) -> None:
        """A group's commit was acknowledged; it `may_go_back` where somebody has reset the group."""
        _check_partitions(partition)
        with self._lock:
            self._commits[group].append(_Commit(partition, offset, may_go_back, self._now_s()))

    def on_assign(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """A member was told to read these from now on, beside what it has: as rebalance listeners hear it."""
        self._record_ownership(group, member, partitions, begins=True)

    def on_revoke(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """A member was told to read these no longer, or that it has lost them."""
        self._record_ownership(group, member, partitions, begins=False)

    def _record_ownership(
        self, group: str, member: str, partitions: Iterable[Partition], *, begins: bool
    ) -> None:
        partitions = list(partitions)
        _check_partitions(*partitions)
        with self._lock:
            now_s = self._now_s()
            self._ownership[group] += [
                _Ownership(partition, member, begins, now_s) for partition in partitions
            ]

    def _now_s(self) -> float:
        return self._clock() - self._started_s

    # --- being asked

    @property
    def acknowledged_count(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            return sum(sent.outcome is Outcome.ACKNOWLEDGED for sent in self._sent.values())

    def longest_ack_gap_s(self, producer: str | None = None) -> float:
        """The longest time between two acknowledgements that follow each other, of one producer or of all."""
        with self._lock:
            times = sorted(
                sent.acknowledged_at_s
                for sent in self._sent.values()
                if sent.outcome is Outcome.ACKNOWLEDGED and producer in (None, sent.producer)
            )
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, *, at_least_once: bool = False) -> None:
        """AssertionError, with the findings in words, where something cannot be."""
        __tracebackhide__ = True  # for pytest: the failure is the caller's
        found = self.anomalies(at_least_once=at_least_once)
        if found:
            more = (
                [f"and {len(found) - MAX_ANOMALIES_SHOWN} more"] if len(found) > MAX_ANOMALIES_SHOWN else []
            )
            raise AssertionError(
                "\n  ".join(["this cannot be:", *map(str, found[:MAX_ANOMALIES_SHOWN]), *more])
            )

    def anomalies(self, *, at_least_once: bool = True) -> list[Anomaly]:
        """Everything that cannot be. `at_least_once` has producers without idempotence double and reorder."""
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
        stands: dict[bytes, tuple[Partition, int]] = {}
        for partition, records in sorted(self._final.items()):
            last: dict[str, _Sent] = {}
            for offset, value in records:
                where = f"{_format_partition(partition)} at {offset}"
                sent = self._sent.get(value)
                if sent is None or sent.partition != partition:
                    yield Anomaly("foreign", f"{where} stands {sent or _format_value(value)}")
                    continue
                is_held = sent.is_idempotent or not at_least_once
                if value in stands:
                    if is_held:
                        yield Anomaly(
                            "doubled", f"{where} stands {sent}, and before that at {stands[value][1]}"
                        )
                    continue
                stands[value] = partition, offset
                if _is_rejected(sent):
                    yield Anomaly("uncommitted", f"{where} stands {sent}")
                if 0 <= sent.offset != offset and sent.is_idempotent:
                    yield Anomaly("moved", f"{where} stands {sent}")
                before = last.get(sent.producer)
                if is_held and before is not None and before.number > sent.number:
                    yield Anomaly("reordered", f"{where} stands {sent}, behind {before}")
                else:
                    last[sent.producer] = sent

    def _check_lost(self) -> Iterator[Anomaly]:
        there = {value for records in self._final.values() for _, value in records}
        lost = defaultdict(list)
        for sent in self._sent.values():
            if sent.transaction is None and sent.outcome is Outcome.ACKNOWLEDGED and sent.value not in there:
                lost[sent.producer, sent.partition].append(sent)
        for (_, partition), several in sorted(lost.items()):
            yield Anomaly("lost", f"{_format_partition(partition)} is without {_format_sends(several)}")
        for transaction in self._transactions.values():
            gone = [self._sent[value] for value in transaction.values if value not in there]
            if not gone:
                continue
            if transaction.outcome is Outcome.ACKNOWLEDGED:
                yield Anomaly("lost", f"{transaction.name} is committed, without {_format_sends(gone)}")
            elif transaction.outcome is Outcome.UNKNOWN and len(gone) < len(transaction.values):
                yield Anomaly("torn", f"{transaction.name} is there, without {_format_sends(gone)}")

    def _check_polls(self) -> Iterator[Anomaly]:
        final = {partition: dict(records) for partition, records in self._final.items()}
        offsets = {partition: sorted(found) for partition, found in final.items()}
        for reader, given in sorted(self._deliveries.items()):
            next_offset: dict[Partition, int | None] = {}
            for partition, offset, value, at_s in given:
                expected = next_offset.get(partition)
                if value is None:
                    next_offset[partition] = offset if offset != ANY_OFFSET else None
                    continue
                next_offset[partition] = offset + 1
                what = f"{reader} was given {_format_partition(partition)} at {offset} at {at_s:.3f} s"
                if expected is not None and offset < expected:
                    yield Anomaly("going back", f"{what}, and was at {expected} before")
                elif expected is not None and (
                    between := _offsets_between(offsets.get(partition, []), expected, offset)
                ):
                    yield Anomaly(
                        "skipped", f"{what}, and not {between[:MAX_RECORDS_SHOWN]} ({len(between)} in all)"
                    )
                stands = final.get(partition, {}).get(offset)
                if stands is None:
                    yield Anomaly(
                        "uncommitted",
                        f"{what}: {self._sent.get(value) or _format_value(value)}, which is gone",
                    )
                elif stands != value:
                    yield Anomaly(
                        "changed",
                        f"{what}: {_format_value(value)}, and there stands {self._sent.get(stands)}",
                    )

    def _check_unread(self) -> Iterator[Anomaly]:
        for readers in self._expected_readers:
            given = {(each.partition, each.offset) for reader in readers for each in self._deliveries[reader]}
            for partition, records in sorted(self._final.items()):
                unread = [offset for offset, _ in records if (partition, offset) not in given]
                if unread:
                    first = dict(records)[unread[0]]
                    yield Anomaly(
                        "unread",
                        f"{' and '.join(readers)} {'were' if len(readers) > 1 else 'was'} not given "
                        f"{_format_partition(partition)} at {unread[:MAX_RECORDS_SHOWN]} ({len(unread)} in "
                        f"all): {self._sent.get(first) or _format_value(first)}",
                    )

    def _check_commits(self) -> Iterator[Anomaly]:
        for group, commits in sorted(self._commits.items()):
            last: dict[Partition, _Commit] = {}
            for commit in commits:
                before = last.get(commit.partition)
                if before is not None and commit.offset < before.offset and not commit.may_go_back:
                    yield Anomaly(
                        "going back",
                        f"{group} has committed {_format_partition(commit.partition)} at {commit.offset} at "
                        f"{commit.at_s:.3f} s, and at {before.offset} before, at {before.at_s:.3f} s",
                    )
                last[commit.partition] = commit

    def _check_assignments(self) -> Iterator[Anomaly]:
        for group, told in sorted(self._ownership.items()):
            owners: dict[Partition, dict[str, float]] = defaultdict(dict)
            for partition, member, begins, at_s in told:
                if not begins:
                    owners[partition].pop(member, None)
                    continue
                for other, since_s in owners[partition].items():
                    if other != member:
                        yield Anomaly(
                            "two owners",
                            f"{_format_partition(partition)} was assigned to {member} of {group} "
                            f"at {at_s:.3f} s, while {other} had it since {since_s:.3f} s",
                        )
                owners[partition].setdefault(member, at_s)


def _check_partitions(*partitions: object) -> None:
    """TypeError where one is no partition, of which the findings would tell wrongly."""
    for partition in partitions:
        match partition:
            case (str(), int()) if isinstance(partition, tuple):
                continue
        raise TypeError(f"say where by topic and partition, as ('orders', 0), and not {partition!r:.100}")


def _is_rejected(sent: _Sent) -> bool:
    if sent.transaction is not None:
        return sent.transaction.outcome is Outcome.REJECTED
    return sent.outcome is Outcome.REJECTED


def _offsets_between(offsets: list[int], first: int, behind: int) -> list[int]:
    """Those that are there from the first on and before the last; control records and gaps are not."""
    if first == behind:
        return []
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, behind)]


def _format_partition(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _format_sends(several: list[_Sent]) -> str:
    shown = ", ".join(str(sent) for sent in several[:MAX_RECORDS_SHOWN])
    return shown + (
        f", and {len(several) - MAX_RECORDS_SHOWN} more" if len(several) > MAX_RECORDS_SHOWN else ""
    )


def _format_value(value: bytes) -> str:
    return repr(value[:60])
