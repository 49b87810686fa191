"""DescribeProducers v0, DescribeTransactions v0, ListTransactions v0–2. KIP-664, KIP-994, KIP-1152.

An empty filter of ListTransactions matches everything. Unknown state names in a filter are returned in the
response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import RequestContext
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.broker.replication.roles import Role
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.coordinator.groups.consumer import regex
from kwire.coordinator.transactions.transaction_metadata import TransactionMetadata, TransactionState
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kwire.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kwire.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from kwire.wire.messages.describe_transactions import (
    TransactionState as DescribedTransaction,
)
from kwire.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kwire.wire.messages.list_transactions import (
    TransactionState as ListedTransaction,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


def describe_producers(
    node: BrokerRole, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Return, for each partition, its active producers or an error."""
    topics = []
    for topic in request.topics:
        fault = _topic_fault(node, topic.name)
        partitions = [_partition(node, topic.name, index, fault) for index in topic.partition_indexes]
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _topic_fault(node: BrokerRole, topic: str) -> ApiError | None:
    """Return the error for all partitions of a topic; None if the topic exists."""
    name_error = topic_name_fault(topic)
    if name_error is not None:
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, name_error)
    if topic not in node.image.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ApiError(code, DEFAULT_MESSAGES[code])
    return None


def _partition(node: BrokerRole, topic: str, index: int, topic_fault: ApiError | None) -> PartitionResponse:
    try:
        if topic_fault is not None:
            raise topic_fault
        partition = node.partition(topic, index)
        if partition is None:
            raise node.missing_partition_error(topic, index)
        # Followers respond as well, because tools that search for hanging transactions query the brokers of
        # all replicas.
        if partition.role not in (Role.LEADER, Role.FOLLOWER):
            raise partition.not_leader_error()
        log = partition.log
    except ApiError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1 if state.txn_first_offset is None else state.txn_first_offset,
            )
            for producer_id, state in log.producers.producers.items()
        ],
    )


def describe_transactions(
    node: BrokerRole, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Return, for each transactional id, its transaction and producer, or an error."""
    return DescribeTransactionsResponse(
        transaction_states=[_state(node, context, one) for one in request.transactional_ids]
    )


def _state(node: BrokerRole, context: RequestContext, transactional_id: str) -> DescribedTransaction:
    try:
        found = node.transactions.describe(transactional_id)
    except ApiError as error:
        return DescribedTransaction(transactional_id=transactional_id, error_code=error.code)
    by_topic: dict[str, TopicData] = {}
    for topic, index in sorted(found.partitions):
        if not node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, topic):
            continue
        by_topic.setdefault(topic, TopicData(topic=topic)).partitions.append(index)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=list(by_topic.values()),
    )


def list_transactions(
    node: BrokerRole, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Return the producer id and the state of each transaction that matches all filters."""
    titles = {state.title: state for state in TransactionState}
    states = {titles[name] for name in request.state_filters if name in titles}
    unknown = list(dict.fromkeys(name for name in request.state_filters if name not in titles))
    producers = set(request.producer_id_filters)
    now_ms = node.host.now_ms()
    pattern = request.transactional_id_pattern

    def passes(transaction: TransactionMetadata) -> bool:
        if transaction.state is TransactionState.DEAD or not node.gate.allows(
            context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
        ):
            return False
        if request.state_filters and transaction.state not in states:
            return False
        if producers and transaction.producer_id not in producers:
            return False
        return request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter

    if pattern:
        regex.check(pattern)
    found = [transaction for transaction in node.transactions.list_transactions() if passes(transaction)]
    if pattern:
        names = regex.matching(pattern, [transaction.transactional_id for transaction in found])
        found = [transaction for transaction in found if transaction.transactional_id in names]
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            ListedTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            for transaction in found
        ],
    )
