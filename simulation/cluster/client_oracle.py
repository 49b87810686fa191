"""The oracle of simulated clients, which report what they sent and what was acknowledged to them.

Every value is written only once and names its producer, so that each record that is read can be compared with
what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import CommittedPartition, Oracle
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import BatchHeader, Record
from kwire.wire.plural import plural

LeaderEpochLookup = Callable[[TopicPartition, PeerAddress], int | None]
"""Returns the leader epoch in which the broker at an address leads a partition, or None."""


@dataclass(slots=True, eq=False)
class SentRecord:
    """A record that a producer has sent, and its acknowledgment."""

    value: bytes
    partition: TopicPartition
    producer: str
    """A name for the producer id. Records of one producer id have an order in each partition."""
    number: int
    """The position of the record in this order."""
    is_idempotent: bool
    acks_all: bool
    is_acknowledged: bool = False
    attempts: int = 0
    """How often the record was sent. Without idempotence, the log may contain the record as often."""
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction of a producer, and its outcome as the producer knows it."""

    name: str
    sent: list[SentRecord] = field(default_factory=list)
    outcome: bool | None = False
    """Whether the transaction was committed. None if the producer cannot know."""


class ClientOracle(Oracle):
    """The records that clients sent, and the committed records of each partition."""

    def __init__(self, led_epoch: LeaderEpochLookup) -> None:
        """Create an oracle. `led_epoch` identifies former leaders, whose responses may be stale."""
        super().__init__()
        self.led_epoch = led_epoch
        self.sent: dict[bytes, SentRecord] = {}
        self.transactions: list[Transaction] = []

    # --- events of partitions

    def commit_batch(
        self, topic_partition: TopicPartition, header: BatchHeader, found: Iterable[Record]
    ) -> None:
        """Record a committed batch. Raises Violation if no producer sent one of its records."""
        if header.is_control:
            return
        committed = self.committed_in(topic_partition)
        for record in found:
            value = record.value or b""
            sent = self.sent.get(value)
            if sent is None or sent.partition != topic_partition:
                raise Violation(f"{value!r} is committed in {topic_partition}, but no producer sent it there")
            committed.values[record.offset] = value
            self._check_unverified_value(topic_partition, committed, record.offset)

    def _check_unverified_value(
        self, topic_partition: TopicPartition, committed: CommittedPartition, offset: int
    ) -> None:
        """Raise Violation if the value that a client saw at an offset differs from the committed value."""
        seen, found = committed.unverified_values.pop(offset, None), committed.values[offset]
        if seen is not None and seen != found:
            raise Violation(
                f"a client saw {seen!r} at offset {offset} of {topic_partition}, where {found!r} is committed"
            )

    def on_log_start(self, topic_partition: TopicPartition, offset: int, name: str) -> None:
        """Check the log start offset of a replica on the node `name`.

        Raises Violation if records below this offset have not been deleted.
        """
        if offset > self.committed_in(topic_partition).start:
            raise Violation(
                f"{name} has log start offset {offset} of {topic_partition}, but only offsets below "
                f"{self.committed_in(topic_partition).start} were deleted"
            )

    # --- events of clients

    def on_send(self, sent: SentRecord) -> None:
        """Record that a producer is about to send a record for the first time."""
        assert sent.value not in self.sent, sent.value
        self.sent[sent.value] = sent
        if sent.transaction is not None:
            sent.transaction.sent.append(sent)

    def on_transaction_begin(self, transaction: Transaction) -> None:
        """Record that a producer begins a transaction."""
        self.transactions.append(transaction)

    def on_ack(self, batch: Iterable[SentRecord], base_offset: int) -> None:
        """Record an acknowledgment. Raises Violation if records with acks=all are not at these offsets."""
        for offset, sent in enumerate(batch, base_offset):
            sent.is_acknowledged = True
            committed = self.committed_in(sent.partition)
            if not sent.acks_all or offset < committed.start or sent.value in committed.lost:
                continue
            found = committed.values.get(offset)
            if committed.end <= offset < committed.unverified_end:
                committed.unverified_values[offset] = sent.value
            elif found != sent.value:
                there = "nothing" if found is None else repr(found.decode())
                raise Violation(
                    f"{sent.value!r} was acknowledged at offset {offset} of {sent.partition}, where {there} "
                    f"is committed (committed up to {committed.end})"
                )

    def on_read(self, reader: str, topic_partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """Check a record that a consumer got. Raises Violation if it is not committed at this offset."""
        committed = self.committed_in(topic_partition)
        if value in committed.lost:
            return  # from a former leader, or read before it was lost
        if committed.end <= offset < committed.unverified_end:
            if value is not None:
                committed.unverified_values[offset] = value
            return
        if offset >= committed.end:
            raise Violation(
                f"{reader} got offset {offset} of {topic_partition}, which is committed up to {committed.end}"
            )
        committed.reported_end = max(committed.reported_end, offset + 1)
        if value is None or committed.values.get(offset, value) != value:
            raise Violation(
                f"{reader} got {value!r} at offset {offset} of {topic_partition}, "
                f"where {committed.values.get(offset)!r} is committed"
            )

    def on_read_committed(
        self, reader: str, topic_partition: TopicPartition, offset: int, value: bytes | None
    ) -> None:
        """Check a record that a consumer with read_committed got.

        Raises Violation if it is not committed at this offset, or if its transaction was not committed.
        """
        self.on_read(reader, topic_partition, offset, value)
        transaction = self.sent[value].transaction if value is not None else None
        if transaction is not None and transaction.outcome is False:
            raise Violation(f"{reader} got {value!r} of {transaction.name}, which was not committed")

    # --- checks at the end

    def check_transactions(self, reader: str, given: set[bytes]) -> None:
        """Raise Violation if a transaction is incomplete in `given`, the values that a reader has got.

        The reader must have read all partitions to the end with read_committed.
        """
        for transaction in self.transactions:
            acknowledged = [sent for sent in transaction.sent if sent.is_acknowledged]
            missing = [sent.value for sent in acknowledged if sent.value not in given]
            if missing and (transaction.outcome or len(missing) < len(acknowledged)):
                raise Violation(
                    f"{reader} did not get {missing} of {transaction.name} with outcome {transaction.outcome}"
                )

    def check(self) -> None:
        """Raise Violation if an acknowledged record is lost, duplicate or out of order."""
        found: dict[bytes, int] = {}
        last: dict[tuple[str, TopicPartition], SentRecord] = {}
        for topic_partition, committed in self.committed.items():
            if committed.awaits_unclean_leader:
                raise Violation(f"the leader of an unclean election never took over {topic_partition}")
            for value in (committed.values[offset] for offset in sorted(committed.values)):
                sent = self.sent.get(value)
                if sent is None:
                    continue  # of an internal topic; `commit_batch` checks all other records
                if sent.partition != topic_partition:
                    raise Violation(f"{value!r} is in {topic_partition}, but was sent to {sent.partition}")
                found[value] = found.get(value, 0) + 1
                if found[value] > (1 if sent.is_idempotent else sent.attempts):
                    raise Violation(f"{value!r} is {plural(found[value], 'time')} in {topic_partition}")
                if found[value] > 1 or not (sent.is_idempotent or (sent.acks_all and sent.is_acknowledged)):
                    continue
                before = last.get((sent.producer, topic_partition))
                if before is not None and before.number > sent.number:
                    raise Violation(
                        f"{value!r} comes after {before.value!r} in {topic_partition}, but was sent before it"
                    )
                last[sent.producer, topic_partition] = sent
        for value, sent in self.sent.items():
            is_lost = value in self.committed_in(sent.partition).lost
            if sent.is_acknowledged and sent.acks_all and value not in found and not is_lost:
                raise Violation(f"{value!r} was acknowledged, but is not in {sent.partition}")
