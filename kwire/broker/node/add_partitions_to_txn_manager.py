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


class _Subject(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    adds: bool


class _Question(NamedTuple):
    subject: _Subject
    partition: TopicPartition
    told: VerificationCallback


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
        self._questions: RequestBatcher[_Question] = RequestBatcher(self, host, address_of, timeout_ms)

    def ask(
        self,
        coordinator_id: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        *,
        adds: bool,
        told: VerificationCallback,
    ) -> None:
        """Whether the partition is part of the transaction; with `adds` it becomes part of it.

        `told` is called once, and not in here; of one transaction in the order of the questions.
        """
        subject = _Subject(transactional_id, producer, adds)
        self._questions.ask(coordinator_id, _Question(subject, partition, told))

    # --- see `Asks`

    def together(self, waiting: list[_Question]) -> tuple[list[_Question], list[_Question]]:
        """Of each transactional id there is one entry in a request."""
        taken: list[_Question] = []
        left: list[_Question] = []
        subjects: dict[str, _Subject] = {}
        for question in waiting:
            subject = question.subject
            fits = len(taken) < MAX_BATCHED
            if fits and subjects.setdefault(subject.transactional_id, subject) == subject:
                taken.append(question)
            else:
                left.append(question)
        return taken, left

    def request(self, questions: Sequence[_Question]) -> Message:
        asked: dict[_Subject, dict[TopicPartition, None]] = {}
        for question in questions:
            asked.setdefault(question.subject, {})[question.partition] = None
        return AddPartitionsToTxnRequest(
            transactions=[_transaction(subject, partitions) for subject, partitions in asked.items()]
        )

    def answered(self, questions: Sequence[_Question], answer: Message | PeerUnreachable) -> None:
        if isinstance(answer, PeerUnreachable):
            for question in questions:
                question.told(ErrorCode.NETWORK_EXCEPTION)
            return
        assert isinstance(answer, AddPartitionsToTxnResponse)
        of_all = error_code(answer.error_code)
        if of_all is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # Which is no client's affair: its partition was not verified.
            of_all = ErrorCode.INVALID_TXN_STATE
        codes = {
            (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for question in questions:
            place = (question.subject.transactional_id, *question.partition)
            question.told(of_all or error_code(codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR)))


def _transaction(subject: _Subject, partitions: dict[TopicPartition, None]) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=subject.transactional_id,
        producer_id=subject.producer.producer_id,
        producer_epoch=subject.producer.epoch,
        verify_only=not subject.adds,
        topics=list(topics.values()),
    )
