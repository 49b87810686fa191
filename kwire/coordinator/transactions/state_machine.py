"""The transactions of one partition of `__transaction_state`: commands, replay, markers, timeouts, expiry.

A transaction ends in two steps. The first record (prepare) decides: whatever happens later, its markers will
be written. They go out once that record is committed, and when the last one is in its log the second record
(complete) says so. A machine that is loaded goes on with what was prepared. KIP-98, KIP-588, KIP-890.

Commands see what earlier ones have decided, be it committed or not, so that CONCURRENT_TRANSACTIONS means
only that markers are still being written. Kafka gives it for records on their way, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

from kwire.coordinator.state_machine import (
    Committed,
    CoordinatorContext,
    CoordinatorRecord,
    CoordinatorResult,
    ignore_outcome,
)
from kwire.coordinator.transactions.transaction_metadata import (
    LAST_CLIENT_EPOCH,
    TransactionMetadata,
    TransactionState,
    add_partitions_to,
    complete,
    fence_producer,
    from_record_value,
    increment_producer_epoch,
    prepare_end,
    rotate_producer_id,
    to_record_value,
)
from kwire.wire.batch import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogKey, TransactionLogValue
from kwire.wire.schema import Message

VALUE_VERSION = 1
COMPLETION_RETRY_MS = 100
_MAY_BE_STORED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR)


class ProducerIdAndEpoch(NamedTuple):
    """Who a client writes as."""

    producer_id: int
    epoch: int


class TransactionMarker(NamedTuple):
    """A transaction whose markers are to be written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int
    """Of the transaction protocol that its producer follows."""


class TransactionConfig(Protocol):
    """The configuration keys that the machine needs, dots as underscores."""

    @property
    def transactional_id_expiration_ms(self) -> int: ...


class TransactionContext(CoordinatorContext, Protocol):
    """What this machine asks of its runtime beyond what every machine may."""

    def run(self, result: CoordinatorResult) -> None:
        """Do what a command of this machine has decided, without anybody having asked."""

    def write_markers(self, marker: TransactionMarker) -> None:
        """Write these markers, and call `markers_written` when all of them are in their logs."""

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""


ProducerDone = Callable[[ProducerIdAndEpoch | ApiError], None]


class TransactionStateMachine:
    """All transactional ids of one partition. Every command is one of the coordinator's APIs, or a timer."""

    def __init__(self, config: TransactionConfig, context: TransactionContext) -> None:
        self._config = config
        self._context = context
        self.transactions: dict[str, TransactionMetadata] = {}
        self._blocked_ids: set[str] = set()
        """Ids whose last command has no record in this cluster: Kafka waits for ever to write it."""

    # --- replay

    def replay(self, key: Message, value: Message | None) -> None:
        """Take a record of the log into account."""
        assert isinstance(key, TransactionLogKey)
        if value is None:
            self.transactions.pop(key.transactional_id, None)
            return
        assert isinstance(value, TransactionLogValue)
        self.transactions[key.transactional_id] = from_record_value(key.transactional_id, value)

    def record_pending(self, key: Message) -> None:
        """Whoever reads a transaction waits until it is committed."""

    def record_committed(self, key: Message) -> None:
        """See `pending`."""

    def transactional_record_written(self, key: Message) -> None:
        """Nothing in this log is part of a transaction itself."""

    def replay_transactional(self, key: Message, value: Message | None) -> None:
        """Nothing in this log is part of a transaction itself."""

    def on_loaded(self) -> None:
        """The log is read: write the markers that were decided and maybe not written.

        Not before it is sure that the decision is committed: another coordinator may not know of it.
        """
        for transaction in list(self.transactions.values()):
            if transaction.is_ending:
                self._context.run(CoordinatorResult((), partial(self._prepared, transaction)))

    def on_unloaded(self, code: ErrorCode) -> None:
        """The machine is gone. Whoever waits is on_committed by its runtime."""

    # --- InitProducerId

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, done: ProducerDone
    ) -> CoordinatorResult:
        """Give the epoch to write with, after fencing whoever wrote before.

        ApiError: PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS,
        UNKNOWN_SERVER_ERROR.
        """
        now_ms = self._context.now_ms()
        before = self.transactions.get(transactional_id)
        if before is None:
            before = TransactionMetadata(
                transactional_id, self._context.next_producer_id(), timeout_ms, now_ms
            )
        self._check_no_concurrent_transaction(before)
        if expected is not None and not _is_expected_producer(before, expected):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if before.state is TransactionState.ONGOING:
            # Its end takes a moment: the client asks again, and is given the epoch after it.
            return self._abort(
                before, lambda error: done(client_error(error, ErrorCode.CONCURRENT_TRANSACTIONS))
            )
        if before.is_epoch_exhausted:
            if expected is not None and expected.epoch != before.producer_epoch:
                # There is no next epoch for it. Apache Kafka comes upon that before it compares epochs, and a
                # producer that recovers is on_committed so.
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            fresh_id = self._context.next_producer_id()
            after = rotate_producer_id(before, fresh_id, timeout_ms, now_ms, remember=expected is not None)
        else:
            found = increment_producer_epoch(
                before, timeout_ms, None if expected is None else expected.epoch, now_ms
            )
            if found is None:
                raise ApiError(ErrorCode.PRODUCER_FENCED)
            after = found
        producer = ProducerIdAndEpoch(after.producer_id, after.producer_epoch)
        return self._apply(after, lambda error: done(producer if error is None else client_error(error)))

    # --- AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: int,
        done: Callable[[ErrorCode], None],
    ) -> CoordinatorResult:
        """Make partitions part of the transaction, which begins with the first ones.

        ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, UNSUPPORTED_VERSION.
        """
        self._check_no_concurrent_transaction(self.transactions.get(transactional_id))
        transaction = self._checked_transaction(transactional_id, producer)
        added = frozenset(partitions)

        def committed(error: ApiError | None) -> None:
            done(ErrorCode.NONE if error is None else ErrorCode(client_error(error).code))

        if transaction.state is TransactionState.ONGOING and added <= transaction.partitions:
            return CoordinatorResult((), committed)
        self._check_is_storable(transactional_id, client_version)
        after = add_partitions_to(transaction, added, client_version, self._context.now_ms())
        return self._apply(after, committed)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Which partitions are part of the transaction; TRANSACTION_ABORTABLE for the others (KIP-890).

        ApiError as `add_partitions`.
        """
        transaction = self._checked_transaction(transactional_id, producer)
        if transaction.is_ending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE
            if partition in transaction.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _checked_transaction(
        self, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> TransactionMetadata:
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer.producer_id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.producer_epoch != producer.epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return transaction

    # --- EndTxn

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: int,
        done: ProducerDone,
    ) -> CoordinatorResult:
        """Decide how a transaction ends. `done` is on_committed who to go on as.

        ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
        COORDINATOR_LOAD_IN_PROGRESS, UNSUPPORTED_VERSION, INVALID_REQUEST.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if client_version >= 2:
            self._check_no_concurrent_transaction(transaction)
        is_retry = client_version >= 2 and _is_retry(transaction, producer)
        if transaction.producer_id != producer.producer_id and not is_retry:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not _is_valid_epoch(transaction, producer, client_version, is_retry):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        self._check_no_concurrent_transaction(transaction)
        state = transaction.state
        if state is TransactionState.ONGOING or (
            # Version 2: an abort of nothing raises the epoch, so that the producer knows where it stands.
            not commit and client_version >= 2 and not is_retry
        ):
            next_id = self._next_producer_id(transaction, client_version)
            if commit and client_version >= 2 and transaction.producer_epoch == MAX_PRODUCER_EPOCH:
                # No client is given this epoch, which none follows.
                raise ApiError(ErrorCode.INVALID_REQUEST)
            self._check_is_storable(transactional_id, client_version)
            after = prepare_end(
                transaction,
                commit=commit,
                client_version=client_version,
                next_producer_id=next_id,
                now_ms=self._context.now_ms(),
            )
            next_producer = ProducerIdAndEpoch(after.producer_id, after.producer_epoch)
            if next_id != NO_PRODUCER_ID:
                next_producer = ProducerIdAndEpoch(next_id, 0)
            return self._prepare_end(
                after, lambda error: done(next_producer if error is None else client_error(error))
            )
        wanted = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if state is not wanted or (client_version >= 2 and not is_retry):
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
        next_producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        return CoordinatorResult(
            (), lambda error: done(next_producer if error is None else client_error(error))
        )

    def _next_producer_id(self, transaction: TransactionMetadata, client_version: int) -> int:
        """Which producer id comes after this end, where it uses up the last epoch. ApiError."""
        if client_version >= 2 and transaction.is_epoch_exhausted:
            return self._context.next_producer_id()
        return NO_PRODUCER_ID

    def _abort(
        self, transaction: TransactionMetadata, on_committed: Committed = ignore_outcome
    ) -> CoordinatorResult:
        """Fence a transaction's producer, and end it without anybody having asked.

        The end goes by the cluster's version, whatever its producer follows. In version 2 the end itself
        raises the epoch, so a producer that asks to abort what has timed out is told that it is done, and
        which epoch to go on in, under another producer id where that was the last one. ApiError where there
        is none.
        """
        version = self._context.transaction_version()
        return self._prepare_end(
            prepare_end(
                transaction if version >= 2 else fence_producer(transaction),
                commit=False,
                client_version=version,
                next_producer_id=self._next_producer_id(transaction, version),
                now_ms=self._context.now_ms(),
            ),
            on_committed,
        )

    def _prepare_end(self, after: TransactionMetadata, on_committed: Committed) -> CoordinatorResult:
        def committed(error: ApiError | None) -> None:
            self._prepared(after, error)
            on_committed(error)

        return self._apply(after, committed)

    def _prepared(self, transaction: TransactionMetadata, error: ApiError | None) -> None:
        if error is None:
            self._write_markers(transaction)
        elif error.code == ErrorCode.REQUEST_TIMED_OUT:
            # Whoever asked waits no longer. The record may still be committed, and the markers follow it.
            self._context.schedule(0, lambda: CoordinatorResult((), partial(self._prepared, transaction)))

    def _write_markers(self, transaction: TransactionMetadata) -> None:
        self._context.write_markers(
            TransactionMarker(
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is TransactionState.PREPARE_COMMIT,
                transaction.partitions,
                transaction.client_version,
            )
        )

    def markers_written(self, marker: TransactionMarker) -> CoordinatorResult:
        """Every marker is in its log: the transaction is over."""
        transaction = self._transaction_ended_by(marker)
        if transaction is None:
            return CoordinatorResult()

        def stored(error: ApiError | None) -> None:
            if error is not None and error.code not in _MAY_BE_STORED:
                # As while too few replicas are in sync.
                self._context.schedule(COMPLETION_RETRY_MS, lambda: self.markers_written(marker))

        return self._apply(complete(transaction, self._context.now_ms()), stored)

    def markers_fenced(self, marker: TransactionMarker, partitions: frozenset[TopicPartition]) -> None:
        """One of these logs has heard of a later epoch: the transaction is ending until it is loaded again.

        They are all that is left of it; the others have their markers.
        """
        transaction = self._transaction_ended_by(marker)
        if transaction is not None:
            self.transactions[marker.transactional_id] = transaction._replace(partitions=partitions)

    def _transaction_ended_by(self, marker: TransactionMarker) -> TransactionMetadata | None:
        transaction = self.transactions.get(marker.transactional_id)
        if (
            transaction is None
            or not transaction.is_ending
            or transaction.producer_epoch != marker.producer_epoch
        ):
            return None
        return transaction

    # --- timers

    def timed_out_ids(self) -> list[str]:
        """Whose transactions have been going on for longer than their timeouts."""
        return [name for name in self.transactions if self._is_timed_out(name)]

    def abort_timed_out(self, transactional_id: str) -> CoordinatorResult:
        """Fence and abort such a transaction, unless it has ended meanwhile.

        ApiError COORDINATOR_LOAD_IN_PROGRESS: there is no producer id for it to go on with.
        """
        if not self._is_timed_out(transactional_id):
            return CoordinatorResult()
        return self._abort(self.transactions[transactional_id])

    def _is_timed_out(self, transactional_id: str) -> bool:
        transaction = self.transactions.get(transactional_id)
        return (
            transaction is not None
            and transaction.state is TransactionState.ONGOING
            and transaction.start_ms + transaction.timeout_ms < self._context.now_ms()
            and transactional_id not in self._blocked_ids
        )

    def expire(self) -> list[CoordinatorRecord]:
        """Tombstones for the ids that nobody has used for transactional.id.expiration.ms."""
        oldest_ms = self._context.now_ms() - self._config.transactional_id_expiration_ms
        return [
            CoordinatorRecord(TransactionLogKey(transactional_id=transaction.transactional_id), None)
            for transaction in self.transactions.values()
            if transaction.state
            in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
            and transaction.last_update_ms <= oldest_ms
            and transaction.transactional_id not in self._blocked_ids
        ]

    # --- records

    def _check_is_storable(self, transactional_id: str, client_version: int) -> None:
        """ApiError UNSUPPORTED_VERSION: a cluster at transaction.version 0 has no record for such a client.

        Apache Kafka finds that out while it writes, and goes on waiting for what was not written.
        """
        if client_version >= 2 and self._context.transaction_version() == 0:
            self._blocked_ids.add(transactional_id)
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def _check_no_concurrent_transaction(self, transaction: TransactionMetadata | None) -> None:
        """ApiError CONCURRENT_TRANSACTIONS: markers, or a record, have to be written first."""
        if transaction is not None and (
            transaction.is_ending or transaction.transactional_id in self._blocked_ids
        ):
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _record(self, transaction: TransactionMetadata) -> CoordinatorRecord:
        version = VALUE_VERSION if self._context.transaction_version() > 0 else 0
        return CoordinatorRecord(
            TransactionLogKey(transactional_id=transaction.transactional_id),
            to_record_value(transaction, version),
            version,
            applied=True,
        )

    def _apply(self, after: TransactionMetadata, committed: Committed) -> CoordinatorResult:
        # Applied here rather than by replay, since the epoch before is not stored.
        name = after.transactional_id
        before = self.transactions.get(name)
        self.transactions[name] = after

        def on_committed(error: ApiError | None) -> None:
            is_refused = error is not None and error.code != ErrorCode.REQUEST_TIMED_OUT
            if is_refused and self.transactions.get(name) is after:
                # The log does not have it, and never will.
                if before is None:
                    del self.transactions[name]
                else:
                    self.transactions[name] = before
            committed(error)

        return CoordinatorResult([self._record(after)], on_committed)


def client_error(error: ApiError | None, otherwise: ErrorCode = ErrorCode.NONE) -> ApiError:
    """Why a record was not stored, in terms of a coordinator; `otherwise` if it was."""
    if error is None:
        return ApiError(otherwise)
    return ApiError(_CLIENT_ERRORS.get(ErrorCode(error.code), ErrorCode(error.code)))


_CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def _is_expected_producer(transaction: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer that says who it was can be this one. KIP-360."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.producer_id
        or (expected.producer_id == transaction.previous_producer_id and expected.epoch >= LAST_CLIENT_EPOCH)
    )


def _is_retry(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether a version 2 producer ends a transaction again, whose end it was not on_committed of."""
    if transaction.producer_id == producer.producer_id and transaction.producer_epoch == producer.epoch + 1:
        return True
    return (
        transaction.previous_producer_id == producer.producer_id
        and producer.epoch == LAST_CLIENT_EPOCH
        and transaction.producer_epoch == 0
    )


def _is_valid_epoch(
    transaction: TransactionMetadata, producer: ProducerIdAndEpoch, client_version: int, is_retry: bool
) -> bool:
    if client_version < 2:
        return producer.epoch == transaction.producer_epoch
    if transaction.is_ending:
        return transaction.producer_epoch == producer.epoch + 1
    if transaction.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return is_retry or producer.epoch == transaction.producer_epoch
    return producer.epoch == transaction.producer_epoch
