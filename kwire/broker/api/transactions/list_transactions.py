"""ListTransactions v0–2: the transactional ids that pass the filters. KIP-664, KIP-994, KIP-1152.

An empty filter lets everything pass; names of states that nobody knows are told in the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.coordinator.groups.consumer import regex
from kwire.coordinator.transactions.transaction import State, Transaction
from kwire.wire.errors import ApiError
from kwire.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """Each id with its producer and its state."""
    titles = {state.title: state for state in State}
    states = {titles[name] for name in request.state_filters if name in titles}
    unknown = list(dict.fromkeys(name for name in request.state_filters if name not in titles))
    producers = set(request.producer_id_filters)
    now_ms = node.host.now_ms()
    pattern = request.transactional_id_pattern

    def passes(transaction: Transaction) -> bool:
        if transaction.state is State.DEAD:
            return False
        if request.state_filters and transaction.state not in states:
            return False
        if producers and transaction.producer_id not in producers:
            return False
        return request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter

    try:
        if pattern:
            regex.check(pattern)
        found = [transaction for transaction in node.transactions.all() if passes(transaction)]
        if pattern:
            names = regex.matching(pattern, [transaction.transactional_id for transaction in found])
            found = [transaction for transaction in found if transaction.transactional_id in names]
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
