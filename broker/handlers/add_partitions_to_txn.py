"""AddPartitionsToTxn v0–5. Clients send v0–3, one transaction each; brokers v4–5, several. KIP-98, KIP-890.

All of a transaction's partitions are added, or none: if one does not exist, the others are not attempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.handlers.context import PARKED, Parked, RequestContext
from coordinator.transactions.machine import Producer
from coordinator.transactions.transaction import Partition
from kwire.errors import ApiError, ErrorCode
from kwire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)

if TYPE_CHECKING:
    from broker.node import Node

FIRST_VERSION_OF_BROKERS = 4
FIRST_VERSION_WITH_FENCED = 2
CLIENT_VERSION, BROKER_VERSION = 0, 2
"""The transaction protocol of who asks: a broker does it for a client of version 2, when that produces."""


def handle(node: Node, context: RequestContext, request: AddPartitionsToTxnRequest) -> Parked:
    """Answer when each transaction's partitions are stored."""
    if context.api_version < FIRST_VERSION_OF_BROKERS:

        def answer(results: list[AddPartitionsToTxnTopicResult]) -> None:
            context.complete(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        _add(
            node,
            request.v3_and_below_transactional_id,
            producer,
            request.v3_and_below_topics,
            CLIENT_VERSION,
            lambda results: answer(_for_version(results, context.api_version)),
        )
        return PARKED
    response = AddPartitionsToTxnResponse()
    left = len(request.transactions)
    if not left:
        context.complete(response)
    for transaction in request.transactions:
        result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(result)

        def answered(
            results: list[AddPartitionsToTxnTopicResult], result: AddPartitionsToTxnResult = result
        ) -> None:
            nonlocal left
            result.topic_results = results
            left -= 1
            if not left:
                context.complete(response)

        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        if transaction.verify_only:
            _verify(node, transaction.transactional_id, producer, transaction.topics, answered)
        else:
            _add(node, transaction.transactional_id, producer, transaction.topics, BROKER_VERSION, answered)
    return PARKED


Answered = Callable[[list[AddPartitionsToTxnTopicResult]], None]


def _add(
    node: Node,
    transactional_id: str,
    producer: Producer,
    topics: Sequence[AddPartitionsToTxnTopic],
    client_version: int,
    answered: Answered,
) -> None:
    partitions = _partitions(topics)
    missing = {partition for partition in partitions if not node.partition_exists(*partition)}
    if missing:
        codes = {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }
        answered(_results(topics, codes))
        return

    def done(code: ErrorCode) -> None:
        answered(_results(topics, dict.fromkeys(partitions, code)))

    node.transactions.add_partitions(transactional_id, producer, partitions, client_version, done)


def _verify(
    node: Node,
    transactional_id: str,
    producer: Producer,
    topics: Sequence[AddPartitionsToTxnTopic],
    answered: Answered,
) -> None:
    partitions = _partitions(topics)
    try:
        codes = node.transactions.verify_partitions(transactional_id, producer, partitions)
    except ApiError as error:
        codes = dict.fromkeys(partitions, error.code)
    answered(_results(topics, codes))


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[Partition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: dict[Partition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _for_version(
    results: list[AddPartitionsToTxnTopicResult], version: int
) -> list[AddPartitionsToTxnTopicResult]:
    for topic in results:
        for result in topic.results_by_partition:
            result.partition_error_code = fenced_for(result.partition_error_code, version)
    return results


def fenced_for(code: int, version: int, since: int = FIRST_VERSION_WITH_FENCED) -> int:
    """PRODUCER_FENCED as clients knew it before it had a code of its own (KIP-588)."""
    if code == ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
