"""The actions of clients that a history keeps: sends, transactions, reads, commits and assignments.

`History` and the wrappers of clients add to an `Observations` object. `kwire.testing.anomalies` looks for
contradictions in it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

Partition = tuple[str, int]
"""A topic name and a partition number. A `TopicPartition` is one."""
ReadRecord = tuple[Partition, int, bytes]
"""A record as a reader gets it: its partition, offset and value."""
ANY_OFFSET = UNKNOWN_OFFSET = -1
"""An offset that the caller does not know."""
UNKNOWN_PARTITION: Final = -1
"""The number of the partition of a record that the client has not assigned to a partition yet."""
UNKNOWN_VALUE: Final = bytes(bytearray(b"(not bytes)"))
"""A key or value that a serializer or deserializer of the program changes. Compared by identity."""
UNKNOWN_TIME_S: Final = -1.0
ANY_NUMBER: Final = 1 << 62
"""The number of attempts to send a record, if the attempts of its client are not known."""


class Outcome(Enum):
    """The outcome of a send or a transaction, as its client knows it."""

    UNKNOWN = "outcome unknown"
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction, with the time when its client requested the end, if that is known."""

    name: str
    outcome: Outcome = Outcome.UNKNOWN
    sends: list[Sent] = field(default_factory=list)
    end_requested_s: float = UNKNOWN_TIME_S
    ended_at_s: float = UNKNOWN_TIME_S

    def end(self, outcome: Outcome, at_s: float) -> None:
        """Set the outcome."""
        self.outcome, self.ended_at_s = outcome, at_s


@dataclass(slots=True, eq=False)
class Sent:
    """A record that a producer sent. Its retries are the same `Sent`."""

    value: bytes
    producer: str
    partition: Partition
    number: int
    """The position of the record in the sequence of its producer."""
    is_idempotent: bool
    at_s: float
    transaction: Transaction | None = None
    key: bytes | None = None
    is_key_known: bool = False
    attempts: int = ANY_NUMBER
    """How many copies of the record its client may have written."""
    acks: int = -1
    timestamp_ms: int | None = None
    """The timestamp that the client has set, if it is known."""
    sequence: object = None
    """The owner of the order of the producer's records: a thread, a connection, or producer id and epoch."""
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = UNKNOWN_OFFSET
    acknowledged_at_s: float = UNKNOWN_TIME_S

    def acknowledge(self, offset: int, at_s: float) -> None:
        """Set the outcome of the send."""
        self.outcome, self.offset, self.acknowledged_at_s = Outcome.ACKNOWLEDGED, offset, at_s

    @property
    def is_rejected(self) -> bool:
        """Whether the send, or its transaction, has failed with an error that excludes success."""
        outcome = self.outcome if self.transaction is None else self.transaction.outcome
        return outcome is Outcome.REJECTED

    def has_content(self, value: bytes, key: bytes | None, *, is_key_known: bool) -> bool:
        """Return whether the record has this value, and this key if both keys are known."""
        return same_value(self.value, value) and (self.key == key or not (self.is_key_known and is_key_known))

    def is_for(self, partition: Partition) -> bool:
        """Return whether the record was sent to `partition`, or to an unknown partition of its topic."""
        return self.partition in (partition, (partition[0], UNKNOWN_PARTITION))

    def __str__(self) -> str:
        outcome = self.outcome.value
        if self.outcome is Outcome.ACKNOWLEDGED:
            outcome += f" at {self.acknowledged_at_s:.3f} s"
            outcome += f" with offset {self.offset}" if self.offset >= 0 else ""
            outcome += "" if self.acks == -1 else f" and acks={self.acks}"
        of = f" in {self.transaction.name}" if self.transaction is not None else ""
        key = f" with key {format_value(self.key)}" if self.key is not None else ""
        record = f"record {self.number} of {self.producer}{of}"
        return f"{format_value(self.value)}{key} ({record}, sent at {self.at_s:.3f} s, {outcome})"


class Delivery(NamedTuple):
    """A record that a reader got, or, if the value is None, a seek of the reader to the offset."""

    partition: Partition
    offset: int
    value: bytes | None
    at_s: float
    isolation_level: str = ""
    """The isolation level of the reader, if it is known."""


class Commit(NamedTuple):
    """An offset commit of a group. `may_go_back` is set after a reset of the group's offsets."""

    partition: Partition
    offset: int
    may_go_back: bool
    at_s: float


class Ownership(NamedTuple):
    """The assignment of a partition to a member, or its revocation."""

    partition: Partition
    member: str
    assigned: bool
    at_s: float


class FinalRecord(NamedTuple):
    """A record that one reader finds after the test."""

    value: bytes
    key: bytes | None = None
    is_key_known: bool = False
    timestamp_ms: int | None = None
    """The timestamp that the client has set, if it is known. LogAppendTime replaces it."""


class Observations:
    """Everything that a history knows. All methods can be called from several threads."""

    def __init__(self, clock: Callable[[], float], started_s: float | None = None) -> None:
        """Create an empty object. Its times are seconds of `clock` since `started_s`, by default now."""
        self._clock = clock
        self.started_s = clock() if started_s is None else started_s
        self.lock = threading.RLock()
        self.sent: list[Sent] = []
        self.has_all_sends = True
        """Whether these are all sends to the topics. If not, final records may come from other producers."""
        self.transactions: list[Transaction] = []
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.commits: dict[str, list[Commit]] = defaultdict(list)
        self.ownership: dict[str, list[Ownership]] = defaultdict(list)
        self.members: dict[str, set[str]] = defaultdict(set)
        """The readers of each group, besides a reader that has the name of the group."""
        self.first_offsets: dict[str, dict[Partition, int]] = defaultdict(dict)
        """The offsets that each group had committed before this history, or 0."""
        self.expected_readers: list[tuple[str, ...]] = []
        self.final: dict[Partition, dict[int, FinalRecord]] = defaultdict(dict)
        self.final_readers: set[str] = set()
        """The readers whose reads are the final records."""
        self.log_starts: dict[Partition, int] = {}
        """The log start offsets of the final records, if they are known. Records before them were deleted."""
        self.unchecked_topics: set[str] = set()
        """Topics whose records may be missing: deleted or compacted topics."""
        self._send_counts: dict[object, int] = defaultdict(int)

    def now_s(self) -> float:
        """Return the time since the start."""
        return self._clock() - self.started_s

    def next_number(self, producer: object) -> int:
        """Return the number of the next record of a producer, from 1 on."""
        with self.lock:
            self._send_counts[producer] += 1
            return self._send_counts[producer]

    def add_send(self, sent: Sent) -> Sent:
        """Add a record that is about to be sent."""
        with self.lock:
            self.sent.append(sent)
            if sent.transaction is not None:
                sent.transaction.sends.append(sent)
        return sent

    def remove_send(self, sent: Sent) -> None:
        """Remove a record that was not sent."""
        with self.lock:
            self.sent.remove(sent)
            if sent.transaction is not None:
                sent.transaction.sends.remove(sent)

    def new_transaction(self, name: str) -> Transaction:
        """Add a transaction."""
        transaction = Transaction(name)
        with self.lock:
            self.transactions.append(transaction)
        return transaction

    def add_reads(self, reader: str, records: Iterable[ReadRecord], isolation_level: str = "") -> None:
        """Add the records that a reader got, in order."""
        with self.lock:
            now_s = self.now_s()
            self.deliveries[reader] += [Delivery(*one, now_s, isolation_level) for one in records]

    def add_seek(self, reader: str, partition: Partition, offset: int = ANY_OFFSET) -> None:
        """Add a new position of a reader."""
        with self.lock:
            self.deliveries[reader].append(Delivery(partition, offset, None, self.now_s()))

    def add_commit(self, group: str, partition: Partition, offset: int, *, may_go_back: bool = False) -> None:
        """Add an acknowledged offset commit."""
        with self.lock:
            self.commits[group].append(Commit(partition, offset, may_go_back, self.now_s()))

    def add_ownership(
        self, group: str, member: str, partitions: Iterable[Partition], *, assigned: bool
    ) -> None:
        """Add partitions that a member was assigned in addition, or that it has given up or lost."""
        with self.lock:
            now_s = self.now_s()
            self.members[group].add(member)
            self.ownership[group] += [Ownership(one, member, assigned, now_s) for one in partitions]

    def readers_of(self, name: str) -> list[str]:
        """Return the readers of a group, or the reader of that name."""
        return [name, *sorted(self.members.get(name, set()) - {name})]

    def topics(self) -> list[str]:
        """Return the topics of all sends, reads and commits, sorted."""
        with self.lock:
            found = {one.partition[0] for one in self.sent}
            found |= {one.partition[0] for several in self.deliveries.values() for one in several}
            found |= {one.partition[0] for several in self.commits.values() for one in several}
            return sorted(found)


def same_value(one: bytes, other: bytes) -> bool:
    """Return whether two values are equal, as far as they are known."""
    return one == other or one is UNKNOWN_VALUE or other is UNKNOWN_VALUE


def format_partition(partition: Partition) -> str:
    """Format a partition as Kafka writes it."""
    return f"{partition[0]}-{partition[1]}"


def format_value(value: bytes | None) -> str:
    """Format the first bytes of a key or value."""
    return repr(value if value is None else value[:60])
