"""Delegation token requests, compared with the responses of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from kwire.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from kwire.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.node_harness import NodeHarness

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
CREATE = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
DESCRIBE = DescribeDelegationTokenRequest(owners=None)
RENEW = RenewDelegationTokenRequest(hmac=b"?", renew_period_ms=-1)
EXPIRE = ExpireDelegationTokenRequest(hmac=b"?", expiry_time_period_ms=-1)
ALL = ((3, CREATE), (3, DESCRIBE), (2, RENEW), (2, EXPIRE))
SETTINGS = {"delegation.token.secret.key": "secret", "delegation.token.expiry.check.interval.ms": "60000"}
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


class TokenHarness(NodeHarness):
    """A broker with authenticated clients."""

    def __init__(self, settings: Mapping[str, str] = SETTINGS) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]

    def call_as(
        self,
        principal: Principal,
        version: int,
        request: Any,
        listener: str = "SASL_PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
    ) -> Any:
        return self.connect(listener, role, principal).call(version, request)

    def create_token(self, principal: Principal, **fields: Any) -> Any:
        response = self.call_as(principal, 3, CreateDelegationTokenRequest(max_lifetime_ms=-1, **fields))
        assert response.error_code == ErrorCode.NONE
        return response

    def described_tokens(self, principal: Principal, *owners: Principal) -> list[str]:
        requested_owners = [
            DescribeDelegationTokenOwner(principal_type=one.type, principal_name=one.name) for one in owners
        ]
        response = self.call_as(principal, 3, DescribeDelegationTokenRequest(owners=requested_owners or None))
        assert response.error_code == ErrorCode.NONE
        return [token.token_id for token in response.tokens]


@pytest.fixture
def harness() -> TokenHarness:
    return TokenHarness()


def test_a_token_is_created_described_renewed_and_expired(harness: TokenHarness) -> None:
    renewers = [CreatableRenewers(principal_type="User", principal_name="bob")]
    created = harness.create_token(
        ALICE, owner_principal_type="User", owner_principal_name="zoe", renewers=renewers
    )
    assert (created.principal_name, created.token_requester_principal_name) == ("zoe", "alice")
    (token_description,) = harness.call_as(BOB, 3, DESCRIBE).tokens
    assert (token_description.token_id, bytes(token_description.hmac)) == (
        created.token_id,
        bytes(created.hmac),
    )
    assert (token_description.principal_type, token_description.principal_name) == ("User", "zoe")
    assert (
        token_description.token_requester_principal_type,
        token_description.token_requester_principal_name,
    ) == ("User", "alice")
    assert [(one.principal_type, one.principal_name) for one in token_description.renewers] == [
        ("User", "bob")
    ]
    assert (
        token_description.issue_timestamp,
        token_description.expiry_timestamp,
        token_description.max_timestamp,
    ) == (
        created.issue_timestamp_ms,
        created.expiry_timestamp_ms,
        created.max_timestamp_ms,
    )
    harness.host.advance(1_000)
    renewal = RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=5_000)
    renewed = harness.call_as(BOB, 2, renewal)
    assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, created.issue_timestamp_ms + 6_000)
    mismatch = harness.call_as(ALICE, 2, renewal)
    assert (mismatch.error_code, mismatch.expiry_timestamp_ms) == (63, 0)
    ended = harness.call_as(BOB, 2, ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1))
    assert (ended.error_code, ended.expiry_timestamp_ms) == (0, created.issue_timestamp_ms + 1_000)
    assert harness.described_tokens(ALICE) == []


def test_versions_before_v3_create_tokens_for_the_requester(harness: TokenHarness) -> None:
    created = harness.call_as(ALICE, 2, CREATE)
    assert (created.error_code, created.principal_name) == (0, "alice")
    (token_description,) = harness.call_as(ALICE, 1, DESCRIBE).tokens
    assert (token_description.token_id, token_description.principal_name) == (created.token_id, "alice")


def test_tokens_are_described_by_owner_and_renewer(harness: TokenHarness) -> None:
    alices = harness.create_token(ALICE).token_id
    bobs = harness.create_token(
        BOB, renewers=[CreatableRenewers(principal_type="User", principal_name="carol")]
    ).token_id
    carol = Principal("User", "carol")
    assert harness.described_tokens(carol) == [alices, bobs]
    assert harness.described_tokens(carol, ALICE) == [alices]
    assert harness.described_tokens(ALICE, carol, Principal("Group", "alice")) == [bobs]
    no_owner = harness.call_as(ALICE, 3, DescribeDelegationTokenRequest(owners=[]))
    assert (no_owner.error_code, no_owner.tokens) == (0, [])


def test_expired_tokens_are_removed_at_the_next_check(harness: TokenHarness) -> None:
    kept = harness.create_token(ALICE)
    short = harness.create_token(ALICE)
    assert (
        harness.call_as(
            ALICE, 2, RenewDelegationTokenRequest(hmac=short.hmac, renew_period_ms=1_000)
        ).error_code
        == 0
    )
    harness.host.advance(30_000)
    late = harness.call_as(ALICE, 2, RenewDelegationTokenRequest(hmac=short.hmac, renew_period_ms=1_000))
    assert (late.error_code, late.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert harness.described_tokens(ALICE) == [kept.token_id, short.token_id]
    harness.host.advance(40_000)
    assert harness.described_tokens(ALICE) == [kept.token_id]


@pytest.mark.parametrize(
    ("principal", "listener"),
    [
        (ANONYMOUS, "PLAINTEXT"),
        (ALICE, "PLAINTEXT"),
        (ALICE._replace(token_authenticated=True), "SASL_PLAINTEXT"),
        (ANONYMOUS, "SSL"),
    ],
)
def test_token_requests_need_an_authenticated_principal(
    harness: TokenHarness, principal: Principal, listener: str
) -> None:
    for version, request in ALL:
        response = harness.call_as(principal, version, request, listener)
        assert response.error_code == NOT_ALLOWED
        if request is CREATE:
            assert (response.principal_name, response.token_requester_principal_name) == (
                principal.name,
                principal.name,
            )
            assert (
                response.issue_timestamp_ms == response.expiry_timestamp_ms == response.max_timestamp_ms == -1
            )
        elif request is not DESCRIBE:
            assert response.expiry_timestamp_ms == -1
    # A client with a TLS certificate may create tokens.
    assert harness.call_as(ALICE, 3, CREATE, "SSL").error_code == ErrorCode.NONE


def test_token_requests_to_the_controller_listener(harness: TokenHarness) -> None:
    for version, request in ALL:
        is_unknown = request is DESCRIBE
        for principal, listener, code in (
            (ALICE, "PLAINTEXT", NOT_ALLOWED),
            (ALICE._replace(token_authenticated=True), "SASL_PLAINTEXT", NOT_ALLOWED),
            (ALICE, "SASL_PLAINTEXT", ErrorCode.NONE if request is CREATE else 62),
        ):
            response = harness.call_as(principal, version, request, listener, ListenerRole.CONTROLLER)
            assert response.error_code == (ErrorCode.UNKNOWN_SERVER_ERROR if is_unknown else code)


def test_renewers_and_owner_need_a_valid_principal_type(harness: TokenHarness) -> None:
    renewers = [CreatableRenewers(principal_type="Group", principal_name="g")]
    response = harness.call_as(
        ALICE, 3, CreateDelegationTokenRequest(renewers=renewers, owner_principal_name=None)
    )
    assert (response.error_code, response.max_timestamp_ms) == (ErrorCode.INVALID_PRINCIPAL_TYPE, -1)
    without_type = CreateDelegationTokenRequest(
        owner_principal_type=None, owner_principal_name="x", renewers=[]
    )
    response = harness.call_as(ALICE, 3, without_type)
    assert (response.error_code, response.principal_name) == (ErrorCode.INVALID_PRINCIPAL_TYPE, "ANONYMOUS")


def test_without_a_secret_there_are_no_tokens() -> None:
    harness = TokenHarness({"delegation.token.secret.key": ""})
    for version, request in ALL:
        response = harness.call_as(ALICE, version, request)
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if request is CREATE:
            assert (response.principal_name, response.issue_timestamp_ms) == ("alice", 0)


def test_credentials_are_derived_when_a_token_is_created() -> None:
    sasl = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,SASL_PLAINTEXT://127.0.0.1:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required;",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    harness = TokenHarness({**SETTINGS, **sasl})
    created = harness.create_token(ALICE)
    harness.host.run_pending()
    assert list(harness.node.users._cached) == [("SCRAM-SHA-256", created.token_id)]
    harness.call_as(ALICE, 2, ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1))
    harness.host.run_pending()
    assert not harness.node.users._cached


class NothingAllowed(StandardAuthorizer):
    """Rules that allow nothing."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return False

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return False


def test_the_owner_of_a_token_is_checked_before_its_renewers(harness: TokenHarness) -> None:
    harness.node.gate.authorizer = NothingAllowed(frozenset(), allows_without_acls=False)
    for owner, code in (
        ("bob", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
        ("alice", ErrorCode.INVALID_PRINCIPAL_TYPE),
    ):
        request = CreateDelegationTokenRequest(
            owner_principal_type="User",
            owner_principal_name=owner,
            renewers=[CreatableRenewers(principal_type="Group", principal_name="a")],
            max_lifetime_ms=-1,
        )
        assert harness.call_as(ALICE, 3, request).error_code == code
