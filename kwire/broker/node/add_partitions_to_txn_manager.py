"""Verification of transactions with transaction coordinators on other brokers. KIP-890.

Brokers send AddPartitionsToTxn v4-5. The leader of a partition sends it before it appends the first batch of
a transaction, and a group coordinator before it commits offsets in a transaction. While Apache Kafka verifies
a transaction, it rejects other verifications of that transaction. This manager instead puts them into the
same request or into the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kwire.broker.node.controller_requests import error_code
from kwire.broker.node.request_batcher import MAX_BATCHED, RequestBatcher
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.host.host import Host, PeerAddress, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition
from kwire.wire.schema import Message

VerificationCallback = Callable[[ErrorCode], None]


class _TransactionKey(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    adds: bool


class _PendingVerification(NamedTuple):
    transaction: _TransactionKey
    partition: TopicPartition
    callback: VerificationCallback


class AddPartitionsToTxnManager:
    """The verifications that this broker sends to transaction coordinators on other brokers."""

    purpose: Final = "verification"

    def __init__(
        self,
        host: Host,
        *,
        address_of: Callable[[int], PeerAddress | None],
        timeout_ms: Callable[[], int],
    ) -> None:
        self._batcher: RequestBatcher[_PendingVerification] = RequestBatcher(
            self, host, address_of, timeout_ms
        )

    def verify(
        self,
        coordinator_id: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        *,
        adds: bool,
        callback: VerificationCallback,
    ) -> None:
        """Verify that a partition is part of a transaction. With `adds`, also add it to the transaction.

        `callback` is called once, later than this call: with NONE, the coordinator's error, or
        NETWORK_EXCEPTION. The callbacks of a transaction are called in order.
        """
        transaction = _TransactionKey(transactional_id, producer, adds)
        self._batcher.submit(coordinator_id, _PendingVerification(transaction, partition, callback))

    # --- BatchedApi

    def select_batch(
        self, waiting: list[_PendingVerification]
    ) -> tuple[list[_PendingVerification], list[_PendingVerification]]:
        """Return a batch with one entry per transactional id, as the protocol requires, and the rest."""
        batch: list[_PendingVerification] = []
        rest: list[_PendingVerification] = []
        transactions: dict[str, _TransactionKey] = {}
        for pending in waiting:
            transaction = pending.transaction
            fits = len(batch) < MAX_BATCHED
            if fits and transactions.setdefault(transaction.transactional_id, transaction) == transaction:
                batch.append(pending)
            else:
                rest.append(pending)
        return batch, rest

    def build_request(self, batch: Sequence[_PendingVerification]) -> Message:
        by_transaction: dict[_TransactionKey, dict[TopicPartition, None]] = {}
        for pending in batch:
            by_transaction.setdefault(pending.transaction, {})[pending.partition] = None
        return AddPartitionsToTxnRequest(
            transactions=[_transaction(key, partitions) for key, partitions in by_transaction.items()]
        )

    def handle_response(
        self, batch: Sequence[_PendingVerification], response: Message | PeerUnreachable
    ) -> None:
        if isinstance(response, PeerUnreachable):
            for pending in batch:
                pending.callback(ErrorCode.NETWORK_EXCEPTION)
            return
        assert isinstance(response, AddPartitionsToTxnResponse)
        top_level = error_code(response.error_code)
        if top_level is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # The coordinator denied access to this broker, not to the client. The partition was not verified.
            top_level = ErrorCode.INVALID_TXN_STATE
        codes = {
            (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for pending in batch:
            key = (pending.transaction.transactional_id, *pending.partition)
            pending.callback(top_level or error_code(codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)))


def _transaction(
    transaction: _TransactionKey, partitions: dict[TopicPartition, None]
) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        verify_only=not transaction.adds,
        topics=list(topics.values()),
    )
