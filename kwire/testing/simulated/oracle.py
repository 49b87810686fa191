"""What clients were told, and so may rely on: the oracle beside a simulated cluster.

Every value is written once, and says who wrote it and as which: so a reader can be held to what was sent.
What is *committed* is told by the watch over the nodes, as the high watermark of some leader rises over it;
from then on it may not be lost, changed, or be another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import BatchHeader, Record

LeaderEpochLookup = Callable[[TopicPartition, PeerAddress], int | None]
"""In which epoch a broker really leads a partition now, and knows it."""


@dataclass(slots=True, eq=False)
class SentRecord:
    """A record that a producer has sent, and what it was told of it."""

    value: bytes
    partition: TopicPartition
    producer: str
    """Of one producer id: what it sends to a partition has an order."""
    number: int
    """Its place in that order."""
    is_idempotent: bool
    acks_all: bool
    is_acknowledged: bool = False
    attempts: int = 0
    """How often it was sent: without idempotence it may stand there as often."""
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction of a producer, and its outcome as that was told."""

    name: str
    sent: list[SentRecord] = field(default_factory=list)
    outcome: bool | None = False
    """Whether its records count; None where nobody can tell."""


class CommittedPartition:
    """What one partition has below the greatest high watermark that any of its leaders has had."""

    __slots__ = (
        "awaits_unclean_leader",
        "crcs",
        "end",
        "lost",
        "promised",
        "reported_end",
        "start",
        "unclean_discards",
        "unverified_end",
        "values",
    )

    def __init__(self) -> None:
        self.end = 0
        self.reported_end = 0
        """Up to here readers have been told that it reaches."""
        self.unverified_end = 0
        """Up to here a leader has committed which then failed in the same step, and cannot be looked at."""
        self.promised: dict[int, bytes] = {}
        """What clients were told of that: it has to come to that."""
        self.start = 0
        """Records before it were deleted, or may be."""
        self.values: dict[int, bytes] = {}
        """By offset, without control records."""
        self.crcs: dict[int, tuple[int, int, int]] = {}
        """Of each batch by its first offset: the next offset, the CRC and the leader epoch."""
        self.unclean_discards: list[tuple[int, int]] = []
        """Of each unclean election: its epoch, and from which offset on it has discarded what there was."""
        self.awaits_unclean_leader = False
        """Whether somebody was elected uncleanly who does not lead yet."""
        self.lost: set[bytes] = set()
        """What was committed and discarded, or a leader of before has taken for committed since."""

    def discard(self, epoch: int, offset: int) -> None:
        """A leader elected uncleanly lacks what there is from this offset on."""
        self.unclean_discards.append((epoch, offset))
        self.awaits_unclean_leader = False
        self.lost |= {value for at, value in self.values.items() if at >= offset}
        self.values = {at: value for at, value in self.values.items() if at < offset}
        self.crcs = {at: batch for at, batch in self.crcs.items() if at < offset}
        self.end = min(self.end, offset)
        self.reported_end = min(self.reported_end, offset)


class Oracle:
    """See the module."""

    def __init__(self, epoch_led: LeaderEpochLookup) -> None:
        """No client can tell `led_epoch`, but who is told something by a leader of before may be told what
        was so before."""
        self.led_epoch = epoch_led
        self.sent: dict[bytes, SentRecord] = {}
        self.committed: dict[TopicPartition, CommittedPartition] = {}
        self.transactions: list[Transaction] = []

    def committed_in(self, place: TopicPartition) -> CommittedPartition:
        found = self.committed.get(place)
        if found is None:
            found = self.committed[place] = CommittedPartition()
        return found

    def forget(self, place: TopicPartition) -> None:
        """Its topic is deleted."""
        self.committed.pop(place, None)

    # --- what becomes of partitions

    def commit_batch(self, place: TopicPartition, header: BatchHeader, found: Iterable[Record]) -> None:
        """A batch is committed. Violation where nobody wrote what is in it."""
        if header.is_control:
            return
        committed = self.committed_in(place)
        for record in found:
            value = record.value or b""
            sent = self.sent.get(value)
            if sent is None or sent.partition != place:
                raise Violation(f"{value!r} is committed in {place}, where nobody wrote it")
            committed.values[record.offset] = value
            self._check_promise(place, committed, record.offset)

    def _check_promise(self, place: TopicPartition, committed: CommittedPartition, offset: int) -> None:
        """Violation where clients were told of something else than what has come to be committed there."""
        told, found = committed.promised.pop(offset, None), committed.values[offset]
        if told is not None and told != found:
            raise Violation(
                f"{told!r} was told of at offset {offset} of {place}, where {found!r} is committed"
            )

    def on_log_start(self, place: TopicPartition, offset: int, name: str) -> None:
        """A replica of it begins there. Violation where nobody has deleted so much."""
        if offset > self.committed_in(place).start:
            raise Violation(
                f"{name} begins {place} at {offset}: records were deleted before "
                f"{self.committed_in(place).start}"
            )

    # --- what clients do

    def on_send(self, sent: SentRecord) -> None:
        """A producer is about to send this for the first time."""
        assert sent.value not in self.sent, sent.value
        self.sent[sent.value] = sent
        if sent.transaction is not None:
            sent.transaction.sent.append(sent)

    def on_transaction_begin(self, transaction: Transaction) -> None:
        """A producer begins a transaction."""
        self.transactions.append(transaction)

    def on_ack(self, batch: Iterable[SentRecord], base_offset: int) -> None:
        """Note an acknowledgement to a producer; raise `Violation` if the records are not committed there."""
        for offset, sent in enumerate(batch, base_offset):
            sent.is_acknowledged = True
            committed = self.committed_in(sent.partition)
            if not sent.acks_all or offset < committed.start or sent.value in committed.lost:
                continue
            found = committed.values.get(offset)
            if committed.end <= offset < committed.unverified_end:
                committed.promised[offset] = sent.value
            elif found != sent.value:
                there = "nothing" if found is None else repr(found.decode())
                raise Violation(
                    f"{sent.value!r} was acknowledged at offset {offset} of {sent.partition}, where {there} "
                    f"is committed up to {committed.end}"
                )

    def on_read(self, reader: str, place: TopicPartition, offset: int, value: bytes | None) -> None:
        """A consumer was given this. Violation where it is not committed, or nobody wrote it."""
        committed = self.committed_in(place)
        if value in committed.lost:
            return  # by a leader of before, or before it was lost
        if committed.end <= offset < committed.unverified_end:
            if value is not None:
                committed.promised[offset] = value
            return
        if offset >= committed.end:
            raise Violation(
                f"{reader} was given offset {offset} of {place}, which is committed up to {committed.end}"
            )
        committed.reported_end = max(committed.reported_end, offset + 1)
        if value is None or committed.values.get(offset, value) != value:
            raise Violation(
                f"{reader} was given {value!r} at offset {offset} of {place}, "
                f"where {committed.values.get(offset)!r} is committed"
            )

    def on_read_committed(self, reader: str, place: TopicPartition, offset: int, value: bytes | None) -> None:
        """A consumer with read_committed was given this. Violation where it must not be."""
        self.on_read(reader, place, offset, value)
        transaction = self.sent[value].transaction if value is not None else None
        if transaction is not None and transaction.outcome is False:
            raise Violation(f"{reader} was given {value!r} of {transaction.name}, which was not committed")

    # --- at the end

    def check_transactions(self, reader: str, given: set[bytes]) -> None:
        """Violation where a reader with read_committed, who has read all, was given a transaction in part."""
        for transaction in self.transactions:
            acknowledged = [sent for sent in transaction.sent if sent.is_acknowledged]
            missing = [sent.value for sent in acknowledged if sent.value not in given]
            if missing and (transaction.outcome or len(missing) < len(acknowledged)):
                raise Violation(
                    f"{reader} was not given {missing} of {transaction.name}: {transaction.outcome}"
                )

    def check(self) -> None:
        """Violation where what is committed is not what was promised."""
        found: dict[bytes, int] = {}
        last: dict[tuple[str, TopicPartition], SentRecord] = {}
        for place, committed in self.committed.items():
            if committed.awaits_unclean_leader:
                raise Violation(f"nobody leads {place} who was elected uncleanly")
            for value in (committed.values[offset] for offset in sorted(committed.values)):
                sent = self.sent.get(value)
                if sent is None:
                    continue  # of an internal topic; values of others are held to what was sent as they rise
                if sent.partition != place:
                    raise Violation(f"{value!r} is in {place}, and was sent to {sent.partition}")
                found[value] = found.get(value, 0) + 1
                if found[value] > (1 if sent.is_idempotent else sent.attempts):
                    raise Violation(f"{value!r} stands {found[value]} times in {place}")
                if found[value] > 1 or not (sent.is_idempotent or (sent.acks_all and sent.is_acknowledged)):
                    continue
                before = last.get((sent.producer, place))
                if before is not None and before.number > sent.number:
                    raise Violation(
                        f"{value!r} stands after {before.value!r} in {place}, and was sent before"
                    )
                last[sent.producer, place] = sent
        for value, sent in self.sent.items():
            is_lost = value in self.committed_in(sent.partition).lost
            if sent.is_acknowledged and sent.acks_all and value not in found and not is_lost:
                raise Violation(f"{value!r} was acknowledged, and is not in {sent.partition}")
