"""Whether a partition is part of the transaction in which somebody writes to it. KIP-890.

Without this check a write that comes late, after its transaction has ended, would open a transaction that
nobody ends. A partition whose log knows of the producer's open transaction need not ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kwire.broker.metadata.names import TRANSACTION_STATE_TOPIC
from kwire.coordinator.machine import TopicPartition
from kwire.coordinator.transactions.machine import Producer
from kwire.wire.batch import BatchHeader
from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kwire.broker.api.ports import BrokerRole

VERSION_THAT_ADDS = 2

_NOT_THERE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class ToldError(ApiError):
    """A refusal whose message is told to producers, unlike others."""

    def __init__(self, code: ErrorCode, message: str, underlying: ErrorCode) -> None:
        super().__init__(code, message)
        self.underlying = underlying
        """What the transaction coordinator has said."""


def check_transaction(
    node: BrokerRole,
    transactional_id: str,
    producer: Producer,
    partition: TopicPartition,
    *,
    adds: bool,
    knows_abortable: bool,
    done: Callable[[ApiError | None], None],
    header: BatchHeader | None = None,
) -> None:
    """Tell `done` (maybe at once) whether the producer may write: None, or the error to refuse it with.

    `adds`: the partition becomes part of the transaction, unless it is. `knows_abortable`: whether the client
    knows TRANSACTION_ABORTABLE. `header`: of the batch, where its sequence counts.
    """
    led = node.partition(*partition)
    if led is not None and led.log.producers.has_open_transaction(producer.producer_id, producer.epoch):
        done(None)
        return

    def answered(code: ErrorCode) -> None:
        done(None if code == ErrorCode.NONE else _refusal(code, adds=adds, knows_abortable=knows_abortable))

    if not adds and not node.config.transaction_partition_verification_enable:
        done(None)
        return
    if led is not None:
        producers = led.log.producers
        try:
            producers.check_epoch(producer.producer_id, producer.epoch)
            if header is not None:
                producers.begin_verification(header, raises_epochs=adds, now_ms=node.host.now_ms())
        except ApiError as error:
            done(error)
            return
    # What the log refuses, nobody need be asked about: this comes after it.
    if TRANSACTION_STATE_TOPIC not in node.image.topics:
        answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return
    if adds:
        node.transactions.add_partitions(transactional_id, producer, [partition], VERSION_THAT_ADDS, answered)
        return
    node.transactions.verify_partitions(
        transactional_id,
        producer,
        [partition],
        lambda codes: answered(codes.code if isinstance(codes, ApiError) else codes[partition]),
    )


def _refusal(code: ErrorCode, *, adds: bool, knows_abortable: bool) -> ApiError:
    """The error as a client of the request's version understands it, so that it tries again where it may."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        code = ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.INVALID_TXN_STATE:
        return ToldError(code, "TopicPartition was not added to the transaction", code)
    if code in _NOT_THERE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ToldError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error: "
            + code.name,
            code,
        )
    return ApiError(code)
