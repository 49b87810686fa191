"""Whether a partition is part of the transaction in which somebody writes to it. KIP-890.

Without this check a write that comes late, after its transaction has ended, would open a transaction that
nobody ends. A partition whose log knows of the producer's open transaction need not ask again. Where the
transaction has ended before the coordinator's answer has come, the write is refused after all.
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

_NOT_THERE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
)


class ErrorWithMessage(ApiError):
    """A refusal whose message is told to producers, unlike others."""

    def __init__(self, code: ErrorCode, message: str, underlying: ErrorCode) -> None:
        super().__init__(code, message)
        self.underlying = underlying
        """What the transaction coordinator has said."""


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
    """Tell `done` (maybe at once) whether the producer may write: None, or the error to refuse it with.

    `adds`: the partition becomes part of the transaction, unless it is. `supports_abortable`:
    whether the client
    knows TRANSACTION_ABORTABLE. `header`: of the batch, where its sequence counts; it is tried again for a
    while where the transaction before it is still ending.
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

    def over(error: ApiError | None) -> None:
        try:
            done(error)
        finally:  # else a fault of ours would keep the producer from this partition for good
            turns.end_turn(producer.producer_id)

    def check() -> None:
        if producers.has_open_transaction(*producer):
            over(None)
            return
        sequence = NO_SEQUENCE if header is None else header.base_sequence
        began_ms = host.monotonic_ms()
        try:
            begun = producers.begin_verification(
                *producer, sequence, supports_epoch_bump=adds, began_ms=began_ms
            )
        except ApiError as error:
            over(error)
            return
        until_ms = host.internode_clock.monotonic_ms() + config.add_partitions_to_txn_retry_backoff_max_ms

        def answered(code: ErrorCode) -> None:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS and adds and header is not None:
                if host.internode_clock.monotonic_ms() < until_ms:
                    host.internode_clock.schedule(config.add_partitions_to_txn_retry_backoff_ms, ask)
                    return
            elif code is ErrorCode.NONE and not (
                turns.is_current(producer.producer_id, begun) or producers.has_open_transaction(*producer)
            ):
                over(_too_late(node, partition))
                return
            is_good = code is ErrorCode.NONE
            over(None if is_good else _refusal(code, adds=adds, supports_abortable=supports_abortable))

        def ask() -> None:
            node.ask_coordinator(transactional_id, producer, partition, adds=adds, told=answered)

        # What the log refuses, nobody need be asked about: this comes after it.
        if TRANSACTION_STATE_TOPIC in node.image.topics:
            ask()
        else:
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # What a producer sends behind this waits for it, though it need not ask once this is written.
    turns.run_in_turn(producer.producer_id, check)


def _too_late(node: BrokerRole, partition: TopicPartition) -> ApiError:
    """Why the coordinator's consent is of no use any more: the transaction has ended, or another leads.

    Who follows has the markers of the next leader, and knows less of what is open here. The producer is to go
    there, and its transaction with it.
    """
    try:
        node.led_partition(*partition)
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_TXN_STATE)


def _refusal(code: ErrorCode, *, adds: bool, supports_abortable: bool) -> ApiError:
    """The error as a client of the request's version understands it, so that it tries again where it may."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and not supports_abortable:
        code = ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.INVALID_TXN_STATE:
        return ErrorWithMessage(code, "TopicPartition was not added to the transaction", code)
    if code in _NOT_THERE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorWithMessage(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error: "
            + code.name,
            code,
        )
    return ApiError(code)
