"""Forwarded requests for tokens and SCRAM credentials: the controller knows the client's principal."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.node.controller_requests import envelope
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kwire.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kwire.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kwire.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kwire.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kwire.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kwire.wire.registry import decode_response, encode_request
from tests.broker.node.test_cluster import BOTH, COMMON, CONTROLLER, VirtualCluster, broker

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
BY_TOKEN = ALICE._replace(token_authenticated=True)
CREATE = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
DESCRIBE = DescribeDelegationTokenRequest(owners=None)
CHECK_INTERVAL_MS = 60_000
# The controller listener is PLAINTEXT: the controller trusts the brokers.
SETTINGS = {
    "listener.security.protocol.map": COMMON["listener.security.protocol.map"] + ",SASL:SASL_PLAINTEXT",
    "delegation.token.secret.key": "secret",
    "delegation.token.expiry.check.interval.ms": str(CHECK_INTERVAL_MS),
}


@pytest.fixture(params=[CONTROLLER, BOTH], ids=["controller", "both"])
def cluster(request: pytest.FixtureRequest) -> VirtualCluster:
    nodes = (request.param, broker(2, "two"), broker(3, "three"))
    created = VirtualCluster(*(SETTINGS | node for node in nodes))
    created.events.advance(1_000)
    return created


def call_as(
    cluster: VirtualCluster, node_id: int, version: int, request: Any, principal: Principal = ALICE
) -> Any:
    client = cluster.nodes[node_id].connect("SASL", principal=principal)
    client.send(version, request)
    cluster.events.advance(1_000)
    return client.receive(version, type(request))


def test_the_controller_knows_the_principal_of_a_forwarded_request(cluster: VirtualCluster) -> None:
    created = call_as(cluster, 2, 3, CREATE)
    assert (created.error_code, created.principal_name, created.token_requester_principal_name) == (
        0,
        "alice",
        "alice",
    )
    (described,) = call_as(cluster, 3, 3, DESCRIBE, BOB).tokens
    assert (described.token_id, bytes(described.hmac)) == (created.token_id, bytes(created.hmac))
    renewal = RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=5_000)
    assert call_as(cluster, 3, 2, renewal, BOB).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert call_as(cluster, 3, 2, renewal).error_code == ErrorCode.NONE
    end = ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1)
    assert call_as(cluster, 2, 2, end).error_code == ErrorCode.NONE
    assert all(not node.node.image.delegation_tokens for node in cluster.nodes.values())


def test_a_principal_authenticated_by_token_cannot_create_tokens(cluster: VirtualCluster) -> None:
    not_allowed = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert call_as(cluster, 2, 3, CREATE, BY_TOKEN).error_code == not_allowed
    # The controller checks it even if the broker did not.
    frame = encode_request(CREATE, 3, 0, "")[4:]
    response = cluster.request("one", 0, envelope(frame, BY_TOKEN, "127.0.0.1"), port=9093)
    _, response = decode_response(CreateDelegationTokenResponse, 3, response.response_data)
    assert (response.error_code, response.principal_name) == (not_allowed, "alice")


def test_a_principal_authenticated_by_token_cannot_change_or_describe_tokens(cluster: VirtualCluster) -> None:
    """Not even the token with which the client has authenticated."""
    not_allowed = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    created = call_as(cluster, 2, 3, CREATE)
    assert call_as(cluster, 2, 3, DESCRIBE, BY_TOKEN).error_code == not_allowed
    for request, response_class in (
        (
            RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=5_000),
            RenewDelegationTokenResponse,
        ),
        (
            ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1),
            ExpireDelegationTokenResponse,
        ),
    ):
        assert call_as(cluster, 2, 2, request, BY_TOKEN).error_code == not_allowed
        frame = encode_request(request, 2, 0, "")[4:]
        response = cluster.request("one", 0, envelope(frame, BY_TOKEN, "127.0.0.1"), port=9093)
        _, response = decode_response(response_class, 2, response.response_data)
        assert response.error_code == not_allowed
    assert all(len(node.node.image.delegation_tokens) == 1 for node in cluster.nodes.values())


def test_expired_tokens_are_removed_on_every_node(cluster: VirtualCluster) -> None:
    created = call_as(cluster, 2, 3, CREATE)
    renewal = RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=1)
    assert call_as(cluster, 2, 2, renewal).error_code == ErrorCode.NONE
    cluster.events.advance(CHECK_INTERVAL_MS + 1_000)
    assert all(not node.node.image.delegation_tokens for node in cluster.nodes.values())


def test_scram_credentials_are_replicated_to_every_node(cluster: VirtualCluster) -> None:
    upsertion = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    (result,) = call_as(cluster, 2, 0, request).results
    assert result.error_code == ErrorCode.NONE
    (described,) = call_as(cluster, 3, 0, DescribeUserScramCredentialsRequest(users=None)).results
    assert (described.user, described.credential_infos[0].iterations) == ("alice", 4096)


def test_every_node_authenticates_tokens(cluster: VirtualCluster) -> None:
    created = call_as(cluster, 2, 3, CREATE)
    for node in cluster.nodes.values():
        found = node.node.users.token("SCRAM-SHA-256", created.token_id)
        assert found is not None
        assert (found.owner, found.expires_ms) == (BY_TOKEN, created.expiry_timestamp_ms)
