"""Transactional ids, and what they have open."""

from __future__ import annotations

from typing import Final

from kwire.cli.admin.transactions import listed, state_of
from kwire.console.asked import Page, PageAnswer, PageRequest

AT_ONCE: Final = 200
"""Transactional ids of a page."""


def transactions_page(asked: PageRequest) -> PageAnswer:
    pattern, is_open = asked.text("q"), bool(asked.text("open"))
    found = [
        row
        for row in listed(asked.cluster, ["Ongoing"] if is_open else [])
        if pattern.lower() in str(row["transactional_id"]).lower()
    ]
    return Page("transactions.html", {**asked.part_of(found, AT_ONCE), "q": pattern, "open": is_open})


def transaction_page(asked: PageRequest) -> PageAnswer:
    """What the coordinator of a transactional id knows of it. ApiError where it knows none."""
    state = state_of(asked.cluster, asked.text("id"))
    began_ms = state.transaction_start_time_ms
    return Page(
        "transaction.html",
        {
            "state": state,
            "partitions": [(topic.topic, index) for topic in state.topics for index in topic.partitions],
            "began_ms": began_ms,
            "age_ms": asked.now_ms - began_ms if began_ms >= 0 else None,
        },
    )
