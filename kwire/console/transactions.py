"""Pages with transactional ids and their transactions."""

from __future__ import annotations

from typing import Final

from kwire.cli.admin.transactions import describe_transaction, list_transactions
from kwire.console.page import Page, PageRequest, PageResult

PAGE_SIZE: Final = 200
"""Transactional ids per page."""


def transactions_page(request: PageRequest) -> PageResult:
    pattern, is_open = request.text("q"), bool(request.text("open"))
    found = [
        row
        for row in list_transactions(request.cluster, ["Ongoing"] if is_open else [])
        if pattern.lower() in str(row["transactional_id"]).lower()
    ]
    return Page("transactions.html", {**request.paginate(found, PAGE_SIZE), "q": pattern, "open": is_open})


def transaction_page(request: PageRequest) -> PageResult:
    """Return the page of one transactional id, with the state that its transaction coordinator describes.

    Raises ApiError if the coordinator does not know the id.
    """
    state = describe_transaction(request.cluster, request.text("id"))
    began_ms = state.transaction_start_time_ms
    return Page(
        "transaction.html",
        {
            "state": state,
            "partitions": [(topic.topic, index) for topic in state.topics for index in topic.partitions],
            "began_ms": began_ms,
            "age_ms": request.now_ms - began_ms if began_ms >= 0 else None,
        },
    )
