"""The state of one transactional id: its producer, and the state of its transaction.

`TransactionMetadata` is immutable, and the functions that change it return the next state. The state machine
decides when to call them, and `transition_to` checks every change of state. KIP-98, KIP-360 (the epoch that a
producer expects), KIP-890 (version 2: every end of a transaction bumps the epoch).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from kwire.wire.batch import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import PartitionsSchema, TransactionLogValue

LAST_CLIENT_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The last epoch for clients. The coordinator must be able to bump it once more, to fence the producer."""


class TransactionState(IntEnum):
    """A transaction's state, with its number in `__transaction_state`."""

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
        """The state's name in responses, such as PrepareCommit."""
        return "".join(part.capitalize() for part in self.name.split("_"))


_NOT_ONGOING: Final = (
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)

VALID_TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.COMPLETE_ABORT: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.DEAD: frozenset(),
    TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
}
"""The states that may follow each state.

A completed transaction can be aborted once more: in version 2, that bumps the epoch.
"""


class TransactionMetadata(NamedTuple):
    """The state of one transactional id."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the current one, if a producer with that epoch may continue (KIP-360). Not stored."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, if the epochs of `producer_id` are exhausted."""
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_version: int = 0
    """The transaction version that the client used last: 0, or 2 if every end bumps the epoch."""

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether the client uses transaction version 2."""
        return self.client_version >= 2

    @property
    def is_ending(self) -> bool:
        """Whether transaction markers are being written."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    def transition_to(self, state: TransactionState, now_ms: int) -> TransactionMetadata:
        """Return this transaction in another state. Raises AssertionError if the transition is invalid."""
        assert state in VALID_TRANSITIONS[self.state], (
            f"{self.transactional_id}: {self.state.name} to {state.name}"
        )
        return self._replace(state=state, last_update_ms=now_ms)


def increment_producer_epoch(
    transaction: TransactionMetadata, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> TransactionMetadata | None:
    """Bump the epoch for InitProducerId.

    KIP-360: a producer that expects the previous epoch has missed a response, and gets the current epoch.
    Returns None if `expected_epoch` is neither the current nor the previous epoch.
    """
    epoch, last = transaction.producer_epoch, transaction.last_producer_epoch
    if expected_epoch is None:
        epoch, last = epoch + 1, NO_PRODUCER_EPOCH
    elif epoch == NO_PRODUCER_EPOCH or expected_epoch == epoch:
        epoch, last = epoch + 1, epoch
    elif expected_epoch != last:
        return None
    return _with_producer(transaction, transaction.producer_id, epoch, last, timeout_ms, now_ms)


def rotate_producer_id(
    transaction: TransactionMetadata, producer_id: int, timeout_ms: int, now_ms: int, *, remember: bool
) -> TransactionMetadata:
    """Assign a new producer id, since the epochs of the old id are exhausted.

    `remember` keeps the old epoch as `last_producer_epoch`.
    """
    last = transaction.producer_epoch if remember else NO_PRODUCER_EPOCH
    return _with_producer(transaction, producer_id, 0, last, timeout_ms, now_ms)


def _with_producer(
    transaction: TransactionMetadata, producer_id: int, epoch: int, last: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    return transaction.transition_to(TransactionState.EMPTY, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def add_partitions_to(
    transaction: TransactionMetadata, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> TransactionMetadata:
    """Add partitions to the transaction. The first partitions start the transaction."""
    return transaction.transition_to(TransactionState.ONGOING, now_ms)._replace(
        partitions=transaction.partitions | partitions,
        start_ms=now_ms if transaction.state in _NOT_ONGOING else transaction.start_ms,
        previous_producer_id=transaction.producer_id,
        client_version=client_version,
    )


def fence_producer(transaction: TransactionMetadata) -> TransactionMetadata:
    """Bump the epoch, so that the current producer is fenced. The greatest possible epoch is not bumped."""
    epoch = min(transaction.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    return transaction._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)


def prepare_end(
    transaction: TransactionMetadata, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> TransactionMetadata:
    """Return the transaction in a prepare state. Markers may be written after this state is committed.

    In version 2, the epoch is bumped, unless it is the greatest possible epoch.
    """
    epoch, last = transaction.producer_epoch, transaction.last_producer_epoch
    if client_version >= 2 and epoch < MAX_PRODUCER_EPOCH:
        epoch, last = epoch + 1, epoch
    return transaction.transition_to(
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT, now_ms
    )._replace(
        producer_epoch=epoch,
        last_producer_epoch=last,
        previous_producer_id=transaction.producer_id,
        next_producer_id=next_producer_id,
        # An abort without an open transaction starts here, too.
        start_ms=now_ms if transaction.state in _NOT_ONGOING else transaction.start_ms,
        client_version=client_version,
    )


def complete(transaction: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Complete the transaction. If the epochs are exhausted, switch to the next producer id."""
    commit = transaction.state is TransactionState.PREPARE_COMMIT
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    if transaction.supports_epoch_bump and transaction.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = transaction.next_producer_id, 0
    return transaction.transition_to(
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT, now_ms
    )._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


# --- records


def to_record_value(transaction: TransactionMetadata, version: int) -> TransactionLogValue:
    """Return the record value, as far as this version of the schema can express the state."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= 1:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    return value


def from_record_value(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    """Return the state in a record value. Raises ValueError if the transaction state is unknown."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        state=TransactionState(value.transaction_status),
        partitions=frozenset(
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        client_version=value.client_transaction_version,
    )
