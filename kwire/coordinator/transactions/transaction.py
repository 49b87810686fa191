"""One transactional id as it is stored: its producer, and how far its transaction has come.

A `Transaction` is a value. Each function here gives the next one; which of them may be called when is for the
machine to check, and `MOVES` holds all of them to the legal moves. KIP-98, KIP-360 (epochs that a producer
expects), KIP-890 (version 2: the epoch rises with every transaction that ends).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from kwire.wire.batch import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import PartitionsSchema, TransactionLogValue

LAST_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The last epoch that a client is given: the coordinator must be able to raise it once more, to fence it."""


class State(IntEnum):
    """A transaction's state, by the numbers of `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The state's name, as clients know it."""
        return "".join(part.capitalize() for part in self.name.split("_"))


_ENDED: Final = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

MOVES: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset(),
}
"""From each state, where a command may take it.

An ended transaction can be aborted once more: version 2 raises the epoch for it.
"""


class Transaction(NamedTuple):
    """The state of one transactional id. Not to be changed."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the current one, if its producer asked for the current one. Not stored."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Who the producer goes on as once this transaction is ended: its epochs are used up."""
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_version: int = 0
    """The transaction protocol that the client used last: 0, or 2 where every end raises the epoch."""

    @property
    def epochs_are_used_up(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    @property
    def raises_epochs(self) -> bool:
        """Whether the client follows version 2."""
        return self.client_version >= 2

    @property
    def is_ending(self) -> bool:
        """Whether markers are being written."""
        return self.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    def moved(self, state: State, now_ms: int) -> Transaction:
        """In another state. An illegal move is our bug."""
        assert state in MOVES[self.state], f"{self.transactional_id}: {self.state.name} to {state.name}"
        return self._replace(state=state, last_update_ms=now_ms)


def initialized(
    transaction: Transaction, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> Transaction | None:
    """With the next epoch, for a producer that begins; None where `expected_epoch` is not the producer's.

    A producer that names the epoch before the current one has missed its answer, and gets it again (KIP-360).
    """
    epoch, last = transaction.producer_epoch, transaction.last_producer_epoch
    if expected_epoch is None:
        epoch, last = epoch + 1, NO_PRODUCER_EPOCH
    elif epoch == NO_PRODUCER_EPOCH or expected_epoch == epoch:
        epoch, last = epoch + 1, epoch
    elif expected_epoch != last:
        return None
    return transaction.moved(State.EMPTY, now_ms)._replace(
        producer_epoch=epoch,
        last_producer_epoch=last,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def rotated(
    transaction: Transaction, producer_id: int, timeout_ms: int, now_ms: int, *, remember: bool
) -> Transaction:
    """With a new producer id, since the epochs of the old one are used up."""
    return transaction.moved(State.EMPTY, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=transaction.producer_epoch if remember else NO_PRODUCER_EPOCH,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def with_partitions(
    transaction: Transaction, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    """With more partitions that it writes to; the first ones begin the transaction."""
    return transaction.moved(State.ONGOING, now_ms)._replace(
        partitions=transaction.partitions | partitions,
        start_ms=now_ms if transaction.state in _ENDED else transaction.start_ms,
        previous_producer_id=transaction.producer_id,
        client_version=client_version,
    )


def fenced(transaction: Transaction) -> Transaction:
    """With the next epoch, so that whoever uses this one writes no more; the greatest one stays."""
    epoch = min(transaction.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    return transaction._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)


def ending(
    transaction: Transaction, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """About to end: its markers may be written once this is stored. The greatest epoch stays."""
    epoch, last = transaction.producer_epoch, transaction.last_producer_epoch
    if client_version >= 2 and epoch < MAX_PRODUCER_EPOCH:
        epoch, last = epoch + 1, epoch
    return transaction.moved(State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, now_ms)._replace(
        producer_epoch=epoch,
        last_producer_epoch=last,
        previous_producer_id=transaction.producer_id,
        next_producer_id=next_producer_id,
        # An abort without anything to abort begins and ends here.
        start_ms=now_ms if transaction.state in _ENDED else transaction.start_ms,
        client_version=client_version,
    )


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """Ended: all markers are written. Where the epochs are used up the next producer id takes over."""
    commit = transaction.state is State.PREPARE_COMMIT
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    if transaction.raises_epochs and transaction.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = transaction.next_producer_id, 0
    return transaction.moved(State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


# --- as it is stored


def stored_value(transaction: Transaction, version: int) -> TransactionLogValue:
    """The record that says this, as far as its version can."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is State.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= 1:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    return value


def from_stored(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """What a record says. ValueError for a state that nobody knows."""
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        state=State(value.transaction_status),
        partitions=frozenset(
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        client_version=value.client_transaction_version,
    )
