"""What clients did and were told, and what of it cannot be: a checker after Jepsen's workload for Kafka.

    history = History()
    history.sends("producer 1", ("orders", 0), b"1")        # before each send, in the order of the sends
    history.acknowledged(b"1", 17)                          # or refused(b"1"); neither: nobody knows
    history.polled("group", [(("orders", 0), 17, b"1")])    # what each reader was given, as it came
    history.starts("group", ("orders", 0), 18)              # where it begins: assigned, or after a seek
    history.reads_all("group")                              # several may do so together, as a group
    history.committed("group", ("orders", 0), 18)           # each offset that a commit was acknowledged for
    history.assigned("group", "member 1", [("orders", 0)])  # and revoked: what members were told to read
    history.ends_with(kafka.records("orders"))              # in the end, all that is there
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
    DONE = "acknowledged"
    REFUSED = "refused for good"


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
    place: Partition
    number: int
    is_idempotent: bool
    at_s: float
    transaction: _Transaction | None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = UNKNOWN_OFFSET
    acknowledged_at_s: float = -1.0

    def __str__(self) -> str:
        told = self.outcome.value
        if self.outcome is Outcome.DONE:
            told += f" at {self.acknowledged_at_s:.3f} s" + (f" as {self.offset}" if self.offset >= 0 else "")
        of = f" in {self.transaction.name}" if self.transaction is not None else ""
        who = f"number {self.number} of {self.producer}{of}"
        return f"{_format_value(self.value)} ({who}, sent at {self.at_s:.3f} s, {told})"


class _Delivery(NamedTuple):
    """A record that a reader was given; without a value, where it was sent to go on."""

    place: Partition
    offset: int
    value: bytes | None
    at_s: float


class _Commit(NamedTuple):
    """An offset that a group has committed; `may_go_back` where it was sent there."""

    place: Partition
    offset: int
    may_go_back: bool
    at_s: float


class _Ownership(NamedTuple):
    """A member was told to read a partition from now on, or no longer."""

    place: Partition
    member: str
    begins: bool
    at_s: float


class History:
    """See the module. `clock` gives seconds; findings name times since the beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s = clock()
        self._lock = threading.Lock()
        self._sent: dict[bytes, _Sent] = {}
        self._counts: dict[tuple[str, Partition], int] = defaultdict(int)
        self._transactions: dict[str, _Transaction] = {}
        self._given: dict[str, list[_Delivery]] = defaultdict(list)
        self._final: dict[Partition, list[tuple[int, bytes]]] = defaultdict(list)
        self._read_all: list[tuple[str, ...]] = []
        self._committed: dict[str, list[_Commit]] = defaultdict(list)
        self._owned: dict[str, list[_Ownership]] = defaultdict(list)

    # --- being told

    def sends(
        self,
        producer: str,
        place: Partition,
        value: bytes,
        *,
        is_idempotent: bool = True,
        transaction: str | None = None,
    ) -> None:
        """A producer is about to send a value, which nobody has sent before."""
        _check_partitions(place)
        with self._lock:
            assert value not in self._sent, f"{_format_value(value)} is sent twice"
            self._counts[producer, place] += 1
            number = self._counts[producer, place]
            found = None
            if transaction is not None:
                found = self._transactions.setdefault(transaction, _Transaction(transaction))
                found.values.append(value)
            self._sent[value] = _Sent(value, producer, place, number, is_idempotent, self._now_s(), found)

    def acknowledged(self, value: bytes, offset: int = UNKNOWN_OFFSET) -> None:
        """It was told that the value is there (with acks=all), and where, unless it does not know."""
        with self._lock:
            sent = self._sent[value]
            sent.outcome, sent.offset, sent.acknowledged_at_s = Outcome.DONE, offset, self._now_s()

    def sent_anew(self, value: bytes) -> None:
        """It was sent again under another producer id or epoch: no broker can know it for the same."""
        with self._lock:
            self._sent[value].is_idempotent = False

    def refused(self, value: bytes) -> None:
        """It was told that the value is not there and never will be. A timeout leaves that open."""
        with self._lock:
            self._sent[value].outcome = Outcome.REFUSED

    def ends(self, transaction: str, *, committed: bool) -> None:
        """It was told how a transaction ended. Where nobody was told, nobody knows."""
        with self._lock:
            found = self._transactions.setdefault(transaction, _Transaction(transaction))
            found.outcome = Outcome.DONE if committed else Outcome.REFUSED

    def starts(self, reader: str, place: Partition, offset: int = ANY_OFFSET) -> None:
        """A reader goes on from there: it was assigned the partition, or was sought to the offset."""
        _check_partitions(place)
        with self._lock:
            self._given[reader].append(_Delivery(place, offset, None, self._now_s()))

    def reads_all(self, *readers: str) -> None:
        """These were to be given, together, all that is there in the end."""
        with self._lock:
            self._read_all.append(readers)

    def polled(self, reader: str, records: Iterable[Read]) -> None:
        """A reader (of what is committed) was given records."""
        records = list(records)
        _check_partitions(*(record[0] for record in records))
        with self._lock:
            now_s = self._now_s()
            self._given[reader] += [_Delivery(*record, now_s) for record in records]

    def reads_to_the_end(self, reader: str, records: Iterable[Read]) -> None:
        """In the end a reader was given all that is there, from the beginning of each partition."""
        records = list(records)
        self.polled(reader, records)
        with self._lock:
            for place, offset, value in records:
                self._final[place].append((offset, value))

    def ends_with(self, records: Iterable[Record]) -> None:
        """In the end this is all that is there: what `Kafka.records` gives of each topic."""
        read = [((one.topic, one.partition), one.offset, one.value or b"") for one in records]
        self.reads_to_the_end("whoever reads in the end", read)

    def committed(self, group: str, place: Partition, offset: int, *, may_go_back: bool = False) -> None:
        """A group's commit was acknowledged; it `may_go_back` where somebody has reset the group."""
        _check_partitions(place)
        with self._lock:
            self._committed[group].append(_Commit(place, offset, may_go_back, self._now_s()))

    def assigned(self, group: str, member: str, places: Iterable[Partition]) -> None:
        """A member was told to read these from now on, beside what it has: as rebalance listeners hear it."""
        self._owns(group, member, places, begins=True)

    def revoked(self, group: str, member: str, places: Iterable[Partition]) -> None:
        """A member was told to read these no longer, or that it has lost them."""
        self._owns(group, member, places, begins=False)

    def _owns(self, group: str, member: str, places: Iterable[Partition], *, begins: bool) -> None:
        places = list(places)
        _check_partitions(*places)
        with self._lock:
            now_s = self._now_s()
            self._owned[group] += [_Ownership(place, member, begins, now_s) for place in places]

    def _now_s(self) -> float:
        return self._clock() - self._begun_s

    # --- being asked

    @property
    def acknowledged_count(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            return sum(sent.outcome is Outcome.DONE for sent in self._sent.values())

    def longest_gap_s(self, producer: str | None = None) -> float:
        """The longest time between two acknowledgements that follow each other, of one producer or of all."""
        with self._lock:
            times = sorted(
                sent.acknowledged_at_s
                for sent in self._sent.values()
                if sent.outcome is Outcome.DONE and producer in (None, sent.producer)
            )
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, *, at_least_once: bool = False) -> None:
        """AssertionError, with the findings in words, where something cannot be."""
        __tracebackhide__ = True  # for pytest: the failure is the caller's
        found = self.findings(at_least_once=at_least_once)
        if found:
            more = (
                [f"and {len(found) - MAX_ANOMALIES_SHOWN} more"] if len(found) > MAX_ANOMALIES_SHOWN else []
            )
            raise AssertionError(
                "\n  ".join(["this cannot be:", *map(str, found[:MAX_ANOMALIES_SHOWN]), *more])
            )

    def findings(self, *, at_least_once: bool = True) -> list[Anomaly]:
        """Everything that cannot be. `at_least_once` has producers without idempotence double and reorder."""
        with self._lock:
            return [
                *self._of_what_is_there(at_least_once),
                *self._of_what_is_not(),
                *self._of_readers(),
                *self._of_what_is_not_read(),
                *self._of_commits(),
                *self._of_owners(),
            ]

    def _of_what_is_there(self, at_least_once: bool) -> Iterator[Anomaly]:
        stands: dict[bytes, tuple[Partition, int]] = {}
        for place, records in sorted(self._final.items()):
            last: dict[str, _Sent] = {}
            for offset, value in records:
                where = f"{_format_partition(place)} at {offset}"
                sent = self._sent.get(value)
                if sent is None or sent.place != place:
                    yield Anomaly("foreign", f"{where} stands {sent or _format_value(value)}")
                    continue
                is_held = sent.is_idempotent or not at_least_once
                if value in stands:
                    if is_held:
                        yield Anomaly(
                            "doubled", f"{where} stands {sent}, and before that at {stands[value][1]}"
                        )
                    continue
                stands[value] = place, offset
                if _is_rejected(sent):
                    yield Anomaly("uncommitted", f"{where} stands {sent}")
                if 0 <= sent.offset != offset and sent.is_idempotent:
                    yield Anomaly("moved", f"{where} stands {sent}")
                before = last.get(sent.producer)
                if is_held and before is not None and before.number > sent.number:
                    yield Anomaly("reordered", f"{where} stands {sent}, behind {before}")
                else:
                    last[sent.producer] = sent

    def _of_what_is_not(self) -> Iterator[Anomaly]:
        there = {value for records in self._final.values() for _, value in records}
        lost = defaultdict(list)
        for sent in self._sent.values():
            if sent.transaction is None and sent.outcome is Outcome.DONE and sent.value not in there:
                lost[sent.producer, sent.place].append(sent)
        for (_, place), several in sorted(lost.items()):
            yield Anomaly("lost", f"{_format_partition(place)} is without {_format_sends(several)}")
        for transaction in self._transactions.values():
            gone = [self._sent[value] for value in transaction.values if value not in there]
            if not gone:
                continue
            if transaction.outcome is Outcome.DONE:
                yield Anomaly("lost", f"{transaction.name} is committed, without {_format_sends(gone)}")
            elif transaction.outcome is Outcome.UNKNOWN and len(gone) < len(transaction.values):
                yield Anomaly("torn", f"{transaction.name} is there, without {_format_sends(gone)}")

    def _of_readers(self) -> Iterator[Anomaly]:
        final = {place: dict(records) for place, records in self._final.items()}
        offsets = {place: sorted(found) for place, found in final.items()}
        for reader, given in sorted(self._given.items()):
            next_offset: dict[Partition, int | None] = {}
            for place, offset, value, at_s in given:
                expected = next_offset.get(place)
                if value is None:
                    next_offset[place] = offset if offset != ANY_OFFSET else None
                    continue
                next_offset[place] = offset + 1
                what = f"{reader} was given {_format_partition(place)} at {offset} at {at_s:.3f} s"
                if expected is not None and offset < expected:
                    yield Anomaly("going back", f"{what}, and was at {expected} before")
                elif expected is not None and (
                    between := _offsets_between(offsets.get(place, []), expected, offset)
                ):
                    yield Anomaly(
                        "skipped", f"{what}, and not {between[:MAX_RECORDS_SHOWN]} ({len(between)} in all)"
                    )
                stands = final.get(place, {}).get(offset)
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

    def _of_what_is_not_read(self) -> Iterator[Anomaly]:
        for readers in self._read_all:
            given = {(each.place, each.offset) for reader in readers for each in self._given[reader]}
            for place, records in sorted(self._final.items()):
                unread = [offset for offset, _ in records if (place, offset) not in given]
                if unread:
                    first = dict(records)[unread[0]]
                    yield Anomaly(
                        "unread",
                        f"{' and '.join(readers)} {'were' if len(readers) > 1 else 'was'} not given "
                        f"{_format_partition(place)} at {unread[:MAX_RECORDS_SHOWN]} ({len(unread)} in all): "
                        f"{self._sent.get(first) or _format_value(first)}",
                    )

    def _of_commits(self) -> Iterator[Anomaly]:
        for group, commits in sorted(self._committed.items()):
            last: dict[Partition, _Commit] = {}
            for commit in commits:
                before = last.get(commit.place)
                if before is not None and commit.offset < before.offset and not commit.may_go_back:
                    yield Anomaly(
                        "going back",
                        f"{group} has committed {_format_partition(commit.place)} at {commit.offset} at "
                        f"{commit.at_s:.3f} s, and at {before.offset} before, at {before.at_s:.3f} s",
                    )
                last[commit.place] = commit

    def _of_owners(self) -> Iterator[Anomaly]:
        for group, told in sorted(self._owned.items()):
            owners: dict[Partition, dict[str, float]] = defaultdict(dict)
            for place, member, begins, at_s in told:
                if not begins:
                    owners[place].pop(member, None)
                    continue
                for other, since_s in owners[place].items():
                    if other != member:
                        yield Anomaly(
                            "two owners",
                            f"{_format_partition(place)} was assigned to {member} of {group} "
                            f"at {at_s:.3f} s, while {other} had it since {since_s:.3f} s",
                        )
                owners[place].setdefault(member, at_s)


def _check_partitions(*places: object) -> None:
    """TypeError where one is no place, of which the findings would tell wrongly."""
    for place in places:
        match place:
            case (str(), int()) if isinstance(place, tuple):
                continue
        raise TypeError(f"say where by topic and partition, as ('orders', 0), and not {place!r:.100}")


def _is_rejected(sent: _Sent) -> bool:
    if sent.transaction is not None:
        return sent.transaction.outcome is Outcome.REFUSED
    return sent.outcome is Outcome.REFUSED


def _offsets_between(offsets: list[int], first: int, behind: int) -> list[int]:
    """Those that are there from the first on and before the last; control records and gaps are not."""
    if first == behind:
        return []
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, behind)]


def _format_partition(place: Partition) -> str:
    return f"{place[0]}-{place[1]}"


def _format_sends(several: list[_Sent]) -> str:
    shown = ", ".join(str(sent) for sent in several[:MAX_RECORDS_SHOWN])
    return shown + (
        f", and {len(several) - MAX_RECORDS_SHOWN} more" if len(several) > MAX_RECORDS_SHOWN else ""
    )


def _format_value(value: bytes) -> str:
    return repr(value[:60])
