"""ListTransactions: transactional id patterns and state filters."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.list_transactions import ListTransactionsRequest
from tests.broker.api.groups.client import Client

TRANSACTION = 1


@pytest.fixture
def client() -> Client:
    client = Client()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1))
    for key_type in (0, TRANSACTION):
        for _ in range(2):  # the first creates the topic
            client.call(4, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]))
            client.host.advance(1_000)
    return client


def begin(client: Client, transactional_id: str) -> Any:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    response = client.call(4, request)
    if response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # no producer ids yet
        response = client.call(4, request)
    return response


def listed(client: Client, pattern: str) -> tuple[int, list[str]]:
    response = client.call(2, ListTransactionsRequest(transactional_id_pattern=pattern, duration_filter=-1))
    return response.error_code, sorted(state.transactional_id for state in response.transaction_states)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", ["lt-a", "lt-b", "lt-é"]),
        ("lt-.", ["lt-a", "lt-b", "lt-é"]),
        (r"lt-\w", ["lt-a", "lt-b"]),
        ("lt-[[:alpha:]]", ["lt-a", "lt-b"]),
        (r"\Qlt-a\E", ["lt-a"]),
        (r"lt-\pL", ["lt-a", "lt-b", "lt-é"]),
        ("lt-(?i)A", ["lt-a"]),
        ("lt", []),
        (r"(l)t-\1", None),
        ("lt-(?=a).*", None),
        ("lt-a{1001}", None),
        ("a{99999999999}", None),
        ("(", None),
        ("(" * 3000, None),
    ],
)
def test_transactions_are_listed_by_re2_patterns(
    client: Client, pattern: str, found: list[str] | None
) -> None:
    for transactional_id in ("lt-a", "lt-b", "lt-é"):
        begin(client, transactional_id)
    if found is None:
        assert listed(client, pattern) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])
    else:
        assert listed(client, pattern) == (0, found)


def test_patterns_are_matched_in_linear_time(client: Client) -> None:
    begin(client, "a" * 40 + "!")
    assert listed(client, "(a*)*b") == (0, [])


def test_unknown_state_filters_are_returned_once(client: Client) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Foo", "foo", "Foo"], duration_filter=-1)
    assert client.call(2, request).unknown_state_filters == ["Foo", "foo"]
