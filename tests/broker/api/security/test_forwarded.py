"""Tokens and passwords asked for of brokers that are not the controller: it knows who has asked them."""

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
from kwire.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from kwire.wire.registry import decode_response, encode_request
from tests.broker.node.test_cluster import BOTH, COMMON, CONTROLLER, VirtualCluster, broker

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
BY_TOKEN = ALICE._replace(token_authenticated=True)
CREATE = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
DESCRIBE = DescribeDelegationTokenRequest(owners=None)
ROUND_MS = 60_000
# The controller is reached without security: it believes the brokers.
SETTINGS = {
    "listener.security.protocol.map": COMMON["listener.security.protocol.map"] + ",SASL:SASL_PLAINTEXT",
    "delegation.token.secret.key": "secret",
    "delegation.token.expiry.check.interval.ms": str(ROUND_MS),
}


@pytest.fixture(params=[CONTROLLER, BOTH], ids=["controller", "both"])
def cluster(request: pytest.FixtureRequest) -> VirtualCluster:
    nodes = (request.param, broker(2, "two"), broker(3, "three"))
    made = VirtualCluster(*(SETTINGS | node for node in nodes))
    made.events.advance(1_000)
    return made


def ask(cluster: VirtualCluster, node_id: int, version: int, request: Any, who: Principal = ALICE) -> Any:
    client = cluster.nodes[node_id].connect("SASL", principal=who)
    client.send(version, request)
    cluster.events.advance(1_000)
    return client.receive(version, type(request))


def test_who_has_asked_is_known_to_the_controller(cluster: VirtualCluster) -> None:
    made = ask(cluster, 2, 3, CREATE)
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
        0,
        "alice",
        "alice",
    )
    (told,) = ask(cluster, 3, 3, DESCRIBE, BOB).tokens
    assert (told.token_id, bytes(told.hmac)) == (made.token_id, bytes(made.hmac))
    renewal = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=5_000)
    assert ask(cluster, 3, 2, renewal, BOB).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert ask(cluster, 3, 2, renewal).error_code == ErrorCode.NONE
    end = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
    assert ask(cluster, 2, 2, end).error_code == ErrorCode.NONE
    assert all(not node.node.image.delegation_tokens for node in cluster.nodes.values())


def test_who_has_come_by_a_token_gets_no_other(cluster: VirtualCluster) -> None:
    not_allowed = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert ask(cluster, 2, 3, CREATE, BY_TOKEN).error_code == not_allowed
    # Nor of a controller whose broker has not looked.
    frame = encode_request(CREATE, 3, 0, "")[4:]
    answer = cluster.request("one", 0, envelope(frame, BY_TOKEN, "127.0.0.1"), port=9093)
    _, answer = decode_response(CreateDelegationTokenResponse, 3, answer.response_data)
    assert (answer.error_code, answer.principal_name) == (not_allowed, "alice")


def test_tokens_run_out_everywhere(cluster: VirtualCluster) -> None:
    made = ask(cluster, 2, 3, CREATE)
    renewal = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1)
    assert ask(cluster, 2, 2, renewal).error_code == ErrorCode.NONE
    cluster.events.advance(ROUND_MS + 1_000)
    assert all(not node.node.image.delegation_tokens for node in cluster.nodes.values())


def test_passwords_are_known_everywhere(cluster: VirtualCluster) -> None:
    given = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[given])
    (result,) = ask(cluster, 2, 0, request).results
    assert result.error_code == ErrorCode.NONE
    (told,) = ask(cluster, 3, 0, DescribeUserScramCredentialsRequest(users=None)).results
    assert (told.user, told.credential_infos[0].iterations) == ("alice", 4096)


def test_every_node_proves_tokens_alike(cluster: VirtualCluster) -> None:
    made = ask(cluster, 2, 3, CREATE)
    for node in cluster.nodes.values():
        found = node.node.users.token("SCRAM-SHA-256", made.token_id)
        assert found is not None
        assert (found.owner, found.expires_ms) == (BY_TOKEN, made.expiry_timestamp_ms)
