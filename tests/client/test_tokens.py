"""CreateDelegationToken is not repeated when its response is lost."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.client.connection import Connection
from kwire.client.errors import Disconnected
from kwire.client.tokens import create_token
from kwire.testing import Broker
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tests.client.clients import connect_cluster


@pytest.mark.parametrize("error", [Disconnected("a:1: no answer in time"), ErrorCode.REQUEST_TIMED_OUT])
def test_create_token_with_an_unknown_outcome_is_not_repeated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: Disconnected | ErrorCode
) -> None:
    requests: list[CreateDelegationTokenRequest] = []
    with pytest.raises(Disconnected if isinstance(error, Disconnected) else ApiError):
        _correlation_id(broker, monkeypatch, requests, error)
    assert len(requests) == 1


def test_create_token_is_retried_after_not_controller(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[CreateDelegationTokenRequest] = []
    assert _correlation_id(broker, monkeypatch, requests, ErrorCode.NOT_CONTROLLER) == "t"
    assert len(requests) == 2


def _correlation_id(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    requests: list[CreateDelegationTokenRequest],
    error: Disconnected | ErrorCode,
) -> str:
    """Create a token while the first request fails; return the correlation id of the successful request."""
    ask = Connection.send

    def send_with_fault(self: Connection, request: Any, *more: Any) -> Any:
        if not isinstance(request, CreateDelegationTokenRequest):
            return ask(self, request, *more)
        requests.append(request)
        if len(requests) > 1:
            return CreateDelegationTokenResponse(token_id="t")
        if isinstance(error, Disconnected):
            raise error
        return CreateDelegationTokenResponse(error_code=error)

    monkeypatch.setattr(Connection, "send", send_with_fault)
    with connect_cluster(broker.bootstrap_servers) as cluster:
        return create_token(cluster).token_id
