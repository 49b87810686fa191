"""ListTransactions v0–2: the transactional ids that pass the filters. KIP-664, KIP-994, KIP-1152.

An empty filter lets everything pass; names of states that nobody knows are told in the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.handlers.context import RequestContext
from coordinator.transactions.transaction import State, Transaction
from kwire.errors import ApiError, ErrorCode
from kwire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """Each id with its producer and its state."""
    titles = {state.title: state for state in State}
    states = {titles[name] for name in request.state_filters if name in titles}
    unknown = [name for name in request.state_filters if name not in titles]
    producers = set(request.producer_id_filters)
    now_ms = node.host.now_ms()
    pattern: re.Pattern[str] | None = None
    if request.transactional_id_pattern:
        try:
            pattern = re.compile(request.transactional_id_pattern)
        except re.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)

    def passes(transaction: Transaction) -> bool:
        if transaction.state is State.DEAD:
            return False
        if request.state_filters and transaction.state not in states:
            return False
        if producers and transaction.producer_id not in producers:
            return False
        if request.duration_filter >= 0 and now_ms - transaction.start_ms <= request.duration_filter:
            return False
        return pattern is None or pattern.fullmatch(transaction.transactional_id) is not None

    try:
        found = [transaction for transaction in node.transactions.all() if passes(transaction)]
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            for transaction in found
        ],
    )
