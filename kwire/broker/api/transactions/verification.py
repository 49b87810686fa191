"""Verification that a partition is part of the producer's transaction. KIP-890.

Without verification, a write that arrives after its transaction has ended would start a transaction that
never ends. If the partition's log already has the producer's open transaction, no verification is needed. If
the transaction ends before the coordinator's response arrives, the write is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kwire.broker.metadata.topic_names import TRANSACTION_STATE_TOPIC
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.batch import NO_SEQUENCE, BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

_COORDINATOR_UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
)


class ErrorWithMessage(ApiError):
    """An error of the verification whose message is sent to the producer."""

    def __init__(self, code: ErrorCode, message: str, underlying: ErrorCode) -> None:
        super().__init__(code, message)
        self.underlying = underlying
        """The error that the transaction coordinator returned."""


def verify_transaction(
    node: BrokerRole,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
    *,
    adds: bool,
    supports_abortable: bool,
    done: Callable[[ApiError | None], None],
    header: BatchHeader | None = None,
) -> None:
    """Verify a write, then call `done` with None if the producer may write, or with the error.

    `done` may be called within this call. With `adds`, the partition is added to the transaction if
    necessary. `supports_abortable` is whether the client supports TRANSACTION_ABORTABLE. `header` is the
    header of a Produce batch; None for TxnOffsetCommit. With `adds` and `header`, the coordinator is queried
    again for a while if the producer's previous transaction is still ending.
    """
    if not adds and not node.config.transaction_partition_verification_enable:
        done(None)
        return
    host, config = node.host, node.config
    try:
        producers = node.led_partition(*partition).log.producers
    except ApiError as error:
        done(error)
        return
    turns = producers.verifications
    if producers.has_open_transaction(*producer) and not turns.is_verifying(producer.producer_id):
        done(None)
        return

    def finish(error: ApiError | None) -> None:
        try:
            done(error)
        finally:  # otherwise a bug in `done` would block the producer's writes to this partition forever
            turns.end_turn(producer.producer_id)

    def check() -> None:
        if producers.has_open_transaction(*producer):
            finish(None)
            return
        sequence = NO_SEQUENCE if header is None else header.base_sequence
        began_ms = host.monotonic_ms()
        try:
            begun = producers.begin_verification(
                *producer, sequence, supports_epoch_bump=adds, began_ms=began_ms
            )
        except ApiError as error:
            finish(error)
            return
        until_ms = host.internode_clock.monotonic_ms() + config.add_partitions_to_txn_retry_backoff_max_ms

        def coordinator_responded(code: ErrorCode) -> None:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS and adds and header is not None:
                if host.internode_clock.monotonic_ms() < until_ms:
                    host.internode_clock.schedule(
                        config.add_partitions_to_txn_retry_backoff_ms, call_coordinator
                    )
                    return
            elif code is ErrorCode.NONE and not (
                turns.is_current(producer.producer_id, begun) or producers.has_open_transaction(*producer)
            ):
                finish(_too_late(node, partition))
                return
            is_good = code is ErrorCode.NONE
            finish(None if is_good else _refusal(code, adds=adds, supports_abortable=supports_abortable))

        def call_coordinator() -> None:
            node.add_or_verify_partition(
                transactional_id, producer, partition, adds=adds, callback=coordinator_responded
            )

        # The coordinator is queried only for writes that the log would accept.
        if TRANSACTION_STATE_TOPIC in node.image.topics:
            call_coordinator()
        else:
            coordinator_responded(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # Later requests of the producer wait for this one, even if they then need no verification.
    turns.run_in_turn(producer.producer_id, check)


def _too_late(node: BrokerRole, partition: TopicPartition) -> ApiError:
    """Return the error for a write whose verification by the coordinator has become obsolete.

    The transaction has ended, or this broker is no longer the leader. A former leader's state of the
    transaction is incomplete. The producer retries on the new leader, where the transaction is still open.
    """
    try:
        node.led_partition(*partition)
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_TXN_STATE)


def _refusal(code: ErrorCode, *, adds: bool, supports_abortable: bool) -> ApiError:
    """Return the error for the client, given an error code of the transaction coordinator.

    If the coordinator is unavailable, the client gets NOT_ENOUGH_REPLICAS, which is retriable.
    """
    if code == ErrorCode.TRANSACTION_ABORTABLE and not supports_abortable:
        code = ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.INVALID_TXN_STATE:
        return ErrorWithMessage(code, "TopicPartition was not added to the transaction", code)
    if code in _COORDINATOR_UNAVAILABLE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorWithMessage(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error: "
            + code.name,
            code,
        )
    return ApiError(code)
