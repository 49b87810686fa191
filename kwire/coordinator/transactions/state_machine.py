"""The transactional ids of one partition of `__transaction_state`: commands, replay, markers and timeouts.

A transaction ends in two steps. The first record (prepare) is the decision: whatever happens later, the
transaction's markers will be written. The markers are sent after the prepare record is committed. When every
marker is in its log, the second record (complete) is written. After loading its partition, the state machine
resumes prepared transactions. KIP-98, KIP-588, KIP-890.

Commands see the decisions of earlier commands, committed or not. So CONCURRENT_TRANSACTIONS usually means
that markers are still being written. Kafka also returns this error while a record is not committed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.coordinator.state_machine import (
    Committed,
    CoordinatorContext,
    CoordinatorRecord,
    CoordinatorResult,
    DecodedRecord,
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
from kwire.wire import batch
from kwire.wire.batch import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogKey, TransactionLogValue
from kwire.wire.registry import decode_version_prefixed
from kwire.wire.schema import Message

VALUE_VERSION = 1
COMPLETION_RETRY_MS = 100
_MAY_BE_STORED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR)


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class TransactionMarker(NamedTuple):
    """A transaction's commit or abort marker, and the partitions to write it to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int
    """The client's transaction version, or the cluster's if the coordinator aborts the transaction."""


class ClusterPorts(Protocol):
    """The broker's services for a `TransactionStateMachine`."""

    def transaction_version(self) -> int:
        """Return the cluster's level of the feature transaction.version."""

    def next_producer_id(self) -> int:
        """Return an unused producer id.

        Raises ApiError COORDINATOR_LOAD_IN_PROGRESS if none is available yet.
        """


ProducerDone = Callable[[ProducerIdAndEpoch | ApiError], None]


class TransactionStateMachine:
    """All transactional ids of one partition. Requests and timers call its commands."""

    def __init__(
        self,
        config: BrokerConfig,
        context: CoordinatorContext,
        ports: ClusterPorts,
        write_markers: Callable[[TransactionMarker], None],
    ) -> None:
        """`write_markers` writes a marker to its partitions.

        After that, it calls `markers_written` or `markers_fenced`.
        """
        self._config = config
        self._context = context
        self._ports = ports
        self._send_markers = write_markers
        self.transactions: dict[str, TransactionMetadata] = {}
        self._blocked_ids: set[str] = set()
        """Transactional ids that get CONCURRENT_TRANSACTIONS until the partition is unloaded.

        As in Kafka, an id is blocked after the error of `_check_is_storable`.
        """

    # --- replay

    @staticmethod
    def decode_batch(data: memoryview) -> Iterator[DecodedRecord]:
        for record in batch.records(data, 0, batch.read_header(data)):
            if record.key is not None:
                value = (
                    None
                    if record.value is None
                    else decode_version_prefixed(TransactionLogValue, record.value)
                )
                yield decode_version_prefixed(TransactionLogKey, record.key), value, record.offset

    def replay(self, key: Message, value: Message | None, offset: int) -> None:
        """Apply a record of the log."""
        assert isinstance(key, TransactionLogKey)
        if value is None:
            self.transactions.pop(key.transactional_id, None)
            return
        assert isinstance(value, TransactionLogValue)
        self.transactions[key.transactional_id] = from_record_value(key.transactional_id, value)

    def record_pending(self, key: Message) -> None:
        """Do nothing: DescribeTransactions and ListTransactions also show states that are not committed."""

    def record_committed(self, key: Message) -> None:
        """Do nothing: `record_pending` remembers no state."""

    def transactional_record_written(self, key: Message) -> None:
        """Do nothing: this log contains no transactional records."""

    def replay_transactional(self, key: Message, value: Message | None, offset: int) -> None:
        """Do nothing: this log contains no transactional records."""

    def on_loaded(self) -> None:
        """Resume prepared transactions, since some of their markers may be missing.

        Markers are written after the prepare record is known to be committed. Otherwise a later coordinator
        might not have the record.
        """
        for transaction in list(self.transactions.values()):
            if transaction.is_ending:
                self._context.execute(CoordinatorResult((), partial(self._on_prepared, transaction)))

    def on_unloaded(self, code: ErrorCode) -> None:
        """Do nothing: the runtime completes all waiting requests."""

    # --- InitProducerId

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, done: ProducerDone
    ) -> CoordinatorResult:
        """Assign a producer id and epoch, and fence the previous producer.

        An open transaction is aborted, and `done` gets CONCURRENT_TRANSACTIONS. Raises ApiError:
        CONCURRENT_TRANSACTIONS if markers are pending; PRODUCER_FENCED if `expected` is neither the current
        nor the previous producer; UNKNOWN_SERVER_ERROR if the epochs are exhausted and `expected` does not
        have the current epoch; COORDINATOR_LOAD_IN_PROGRESS if no producer id is available.
        """
        now_ms = self._context.now_ms()
        before = self.transactions.get(transactional_id)
        if before is None:
            before = TransactionMetadata(transactional_id, self._ports.next_producer_id(), timeout_ms, now_ms)
        self._check_no_concurrent_transaction(before)
        if expected is not None and not _is_expected_producer(before, expected):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if before.state is TransactionState.ONGOING:
            # The client retries, and gets the next epoch after the transaction was aborted.
            return self._abort(
                before, lambda error: done(client_error(error, ErrorCode.CONCURRENT_TRANSACTIONS))
            )
        if before.is_epoch_exhausted:
            if expected is not None and expected.epoch != before.producer_epoch:
                # There is no next epoch. Kafka checks this before it compares epochs, and returns this error
                # to the recovering producer.
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            fresh_id = self._ports.next_producer_id()
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
        """Add partitions to the transaction. The first partitions start the transaction.

        Raises ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        UNSUPPORTED_VERSION.
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
        """Return NONE for partitions in the transaction, and TRANSACTION_ABORTABLE for all others (KIP-890).

        Raises ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
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
        """Commit or abort a transaction. `done` gets the producer id and epoch to continue with.

        Raises ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        UNSUPPORTED_VERSION; INVALID_TXN_STATE if no transaction is open, except for a retry or a version 2
        abort; COORDINATOR_LOAD_IN_PROGRESS if no producer id is available; INVALID_REQUEST for a version 2
        commit at the last epoch.
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
            # Version 2: an abort without an open transaction bumps the epoch, so that the producer can be
            # sure of its state.
            not commit and client_version >= 2 and not is_retry
        ):
            next_id = self._next_producer_id(transaction, client_version)
            if commit and client_version >= 2 and transaction.producer_epoch == MAX_PRODUCER_EPOCH:
                # The last epoch cannot be bumped, and is never assigned to a client.
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
        """Return an unused producer id if the transaction's end exhausts the epochs, else NO_PRODUCER_ID.

        Raises ApiError COORDINATOR_LOAD_IN_PROGRESS if no producer id is available.
        """
        if client_version >= 2 and transaction.is_epoch_exhausted:
            return self._ports.next_producer_id()
        return NO_PRODUCER_ID

    def _abort(
        self, transaction: TransactionMetadata, committed: Committed = ignore_outcome
    ) -> CoordinatorResult:
        """Fence a transaction's producer and abort the transaction.

        The abort uses the cluster's transaction version, whichever version the producer uses. In version 2,
        the end of a transaction bumps the epoch. So a producer that then aborts a timed-out transaction gets
        a successful response. The response has the epoch to continue with, and another producer id if the
        epochs are exhausted. Raises ApiError if no producer id is available.
        """
        version = self._ports.transaction_version()
        return self._prepare_end(
            prepare_end(
                transaction if version >= 2 else fence_producer(transaction),
                commit=False,
                client_version=version,
                next_producer_id=self._next_producer_id(transaction, version),
                now_ms=self._context.now_ms(),
            ),
            committed,
        )

    def _prepare_end(self, after: TransactionMetadata, committed: Committed) -> CoordinatorResult:
        def stored(error: ApiError | None) -> None:
            self._on_prepared(after, error)
            committed(error)

        return self._apply(after, stored)

    def _on_prepared(self, transaction: TransactionMetadata, error: ApiError | None) -> None:
        if error is None:
            self._write_markers(transaction)
        elif error.code == ErrorCode.REQUEST_TIMED_OUT:
            # The client got an error, but the record may still be committed, and then the markers follow.
            self._context.schedule(0, lambda: CoordinatorResult((), partial(self._on_prepared, transaction)))

    def _write_markers(self, transaction: TransactionMetadata) -> None:
        self._send_markers(
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
        """Complete a transaction after all its markers were written."""
        transaction = self._transaction_ended_by(marker)
        if transaction is None:
            return CoordinatorResult()

        def stored(error: ApiError | None) -> None:
            if error is not None and error.code not in _MAY_BE_STORED:
                # For example, too few replicas are in sync.
                self._context.schedule(COMPLETION_RETRY_MS, lambda: self.markers_written(marker))

        return self._apply(complete(transaction, self._context.now_ms()), stored)

    def markers_fenced(self, marker: TransactionMarker, partitions: frozenset[TopicPartition]) -> None:
        """Keep a transaction in its prepared state, since logs with a later epoch refused its marker.

        `partitions` did not get the marker. Their markers are tried again when the partition of
        `__transaction_state` is loaded.
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
        """Return the transactional ids whose open transactions have timed out."""
        return [name for name in self.transactions if self._is_timed_out(name)]

    def abort_timed_out(self, transactional_id: str) -> CoordinatorResult:
        """Fence the producer of a timed-out transaction and abort the transaction, unless it has ended.

        Raises ApiError COORDINATOR_LOAD_IN_PROGRESS if the producer needs a new producer id, and none is
        available.
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
        """Return tombstones for transactional ids that were not used for transactional.id.expiration.ms.

        Ids with an open or prepared transaction do not expire.
        """
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
        """Check that the cluster's transaction version has a record format for this client version.

        Raises ApiError UNSUPPORTED_VERSION, and blocks the transactional id, if the client uses version 2 and
        the cluster version 0. Kafka fails to write the record and then waits for that write forever.
        """
        if client_version >= 2 and self._ports.transaction_version() == 0:
            self._blocked_ids.add(transactional_id)
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def _check_no_concurrent_transaction(self, transaction: TransactionMetadata | None) -> None:
        """Check that no markers of the transaction are pending, and that its transactional id is not blocked.

        Otherwise raise ApiError CONCURRENT_TRANSACTIONS, which clients retry.
        """
        if transaction is not None and (
            transaction.is_ending or transaction.transactional_id in self._blocked_ids
        ):
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _record(self, transaction: TransactionMetadata) -> CoordinatorRecord:
        version = VALUE_VERSION if self._ports.transaction_version() > 0 else 0
        return CoordinatorRecord(
            TransactionLogKey(transactional_id=transaction.transactional_id),
            to_record_value(transaction, version),
            version,
            applied=True,
        )

    def _apply(self, after: TransactionMetadata, committed: Committed) -> CoordinatorResult:
        # Applied here rather than by replay, since last_producer_epoch is not stored.
        name = after.transactional_id
        before = self.transactions.get(name)
        self.transactions[name] = after

        def stored(error: ApiError | None) -> None:
            is_refused = error is not None and error.code != ErrorCode.REQUEST_TIMED_OUT
            if is_refused and self.transactions.get(name) is after:
                # The record was refused and will never be in the log.
                if before is None:
                    del self.transactions[name]
                else:
                    self.transactions[name] = before
            committed(error)

        return CoordinatorResult([self._record(after)], stored)


def client_error(error: ApiError | None, otherwise: ErrorCode = ErrorCode.NONE) -> ApiError:
    """Translate the error of an append to the error for the client. Without an error, return `otherwise`."""
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
    """Whether the id and epoch of a recovering producer can belong to this transactional id. KIP-360."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.producer_id
        or (expected.producer_id == transaction.previous_producer_id and expected.epoch >= LAST_CLIENT_EPOCH)
    )


def _is_retry(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether a version 2 producer repeats EndTxn because it missed the response."""
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
