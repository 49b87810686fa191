"""Transaction coordinators on other brokers: asked whether a partition is part of a transaction. KIP-890.

AddPartitionsToTxn v4–5, as brokers ask it: the leader of a partition before it appends the first batch of a
transaction, and a group coordinator before it takes offsets. Apache Kafka refuses what a producer sends while
it is asked about for the same transaction; here that is asked together, or next.
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
    """What this broker asks of transaction coordinators elsewhere."""

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
        """Whether the partition is part of the transaction; with `adds` it becomes part of it.

        `told` is called once, and not in here; of one transaction in the order of the questions.
        """
        transaction = _TransactionKey(transactional_id, producer, adds)
        self._batcher.submit(coordinator_id, _PendingVerification(transaction, partition, callback))

    # --- see `Asks`

    def select_batch(
        self, waiting: list[_PendingVerification]
    ) -> tuple[list[_PendingVerification], list[_PendingVerification]]:
        """Of each transactional id there is one entry in a request."""
        taken: list[_PendingVerification] = []
        left: list[_PendingVerification] = []
        subjects: dict[str, _TransactionKey] = {}
        for pending in waiting:
            transaction = pending.transaction
            fits = len(taken) < MAX_BATCHED
            if fits and subjects.setdefault(transaction.transactional_id, transaction) == transaction:
                taken.append(pending)
            else:
                left.append(pending)
        return taken, left

    def build_request(self, batch: Sequence[_PendingVerification]) -> Message:
        asked: dict[_TransactionKey, dict[TopicPartition, None]] = {}
        for pending in batch:
            asked.setdefault(pending.transaction, {})[pending.partition] = None
        return AddPartitionsToTxnRequest(
            transactions=[_transaction(transaction, partitions) for transaction, partitions in asked.items()]
        )

    def handle_response(
        self, batch: Sequence[_PendingVerification], response: Message | PeerUnreachable
    ) -> None:
        if isinstance(response, PeerUnreachable):
            for pending in batch:
                pending.callback(ErrorCode.NETWORK_EXCEPTION)
            return
        assert isinstance(response, AddPartitionsToTxnResponse)
        of_all = error_code(response.error_code)
        if of_all is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # Which is no client's affair: its partition was not verified.
            of_all = ErrorCode.INVALID_TXN_STATE
        codes = {
            (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for pending in batch:
            place = (pending.transaction.transactional_id, *pending.partition)
            pending.callback(of_all or error_code(codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR)))


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
