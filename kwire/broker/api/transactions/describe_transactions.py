"""DescribeTransactions v0: how transactional ids are doing. KIP-664."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.wire.errors import ApiError
from kwire.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """One state an id, or why it cannot be told."""
    return DescribeTransactionsResponse(
        transaction_states=[_state(node, transactional_id) for transactional_id in request.transactional_ids]
    )


def _state(node: Node, transactional_id: str) -> TransactionState:
    try:
        found = node.transactions.describe(transactional_id)
    except ApiError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    by_topic: dict[str, TopicData] = {}
    for topic, index in sorted(found.partitions):
        by_topic.setdefault(topic, TopicData(topic=topic)).partitions.append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=list(by_topic.values()),
    )
