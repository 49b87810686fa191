"""Requests for delegation tokens, as Apache Kafka 4.3.1 answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from kwire.broker.security.principal import ANONYMOUS, Principal
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


class Tokens(NodeHarness):
    """A broker that knows who asks."""

    def __init__(self, settings: Mapping[str, str] = SETTINGS) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]

    def ask(
        self,
        who: Principal,
        version: int,
        request: Any,
        listener: str = "SASL_PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
    ) -> Any:
        return self.connect(listener, role, who).call(version, request)

    def create(self, who: Principal, **fields: Any) -> Any:
        answer = self.ask(who, 3, CreateDelegationTokenRequest(max_lifetime_ms=-1, **fields))
        assert answer.error_code == ErrorCode.NONE
        return answer

    def described(self, who: Principal, *owners: Principal) -> list[str]:
        asked = [
            DescribeDelegationTokenOwner(principal_type=one.type, principal_name=one.name) for one in owners
        ]
        answer = self.ask(who, 3, DescribeDelegationTokenRequest(owners=asked or None))
        assert answer.error_code == ErrorCode.NONE
        return [token.token_id for token in answer.tokens]


@pytest.fixture
def harness() -> Tokens:
    return Tokens()


def test_a_token_and_its_life(harness: Tokens) -> None:
    renewers = [CreatableRenewers(principal_type="User", principal_name="bob")]
    made = harness.create(ALICE, owner_principal_type="User", owner_principal_name="zoe", renewers=renewers)
    assert (made.principal_name, made.token_requester_principal_name) == ("zoe", "alice")
    (told,) = harness.ask(BOB, 3, DESCRIBE).tokens
    assert (told.token_id, bytes(told.hmac)) == (made.token_id, bytes(made.hmac))
    assert (told.principal_type, told.principal_name) == ("User", "zoe")
    assert (told.token_requester_principal_type, told.token_requester_principal_name) == ("User", "alice")
    assert [(one.principal_type, one.principal_name) for one in told.renewers] == [("User", "bob")]
    assert (told.issue_timestamp, told.expiry_timestamp, told.max_timestamp) == (
        made.issue_timestamp_ms,
        made.expiry_timestamp_ms,
        made.max_timestamp_ms,
    )
    harness.host.advance(1_000)
    renewal = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=5_000)
    renewed = harness.ask(BOB, 2, renewal)
    assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, made.issue_timestamp_ms + 6_000)
    mismatch = harness.ask(ALICE, 2, renewal)
    assert (mismatch.error_code, mismatch.expiry_timestamp_ms) == (63, 0)
    ended = harness.ask(BOB, 2, ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1))
    assert (ended.error_code, ended.expiry_timestamp_ms) == (0, made.issue_timestamp_ms + 1_000)
    assert harness.described(ALICE) == []


def test_versions_before_somebody_else_could_be_the_owner(harness: Tokens) -> None:
    made = harness.ask(ALICE, 2, CREATE)
    assert (made.error_code, made.principal_name) == (0, "alice")
    (told,) = harness.ask(ALICE, 1, DESCRIBE).tokens
    assert (told.token_id, told.principal_name) == (made.token_id, "alice")


def test_tokens_are_looked_for_by_owner_requester_and_renewer(harness: Tokens) -> None:
    alices = harness.create(ALICE).token_id
    bobs = harness.create(
        BOB, renewers=[CreatableRenewers(principal_type="User", principal_name="carol")]
    ).token_id
    carol = Principal("User", "carol")
    assert harness.described(carol) == [alices, bobs]
    assert harness.described(carol, ALICE) == [alices]
    assert harness.described(ALICE, carol, Principal("Group", "alice")) == [bobs]
    nobodys = harness.ask(ALICE, 3, DescribeDelegationTokenRequest(owners=[]))
    assert (nobodys.error_code, nobodys.tokens) == (0, [])


def test_what_has_run_out_is_gone_after_the_next_round(harness: Tokens) -> None:
    kept = harness.create(ALICE)
    short = harness.create(ALICE)
    assert (
        harness.ask(ALICE, 2, RenewDelegationTokenRequest(hmac=short.hmac, renew_period_ms=1_000)).error_code
        == 0
    )
    harness.host.advance(30_000)
    late = harness.ask(ALICE, 2, RenewDelegationTokenRequest(hmac=short.hmac, renew_period_ms=1_000))
    assert (late.error_code, late.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert harness.described(ALICE) == [kept.token_id, short.token_id]
    harness.host.advance(40_000)
    assert harness.described(ALICE) == [kept.token_id]


@pytest.mark.parametrize(
    ("who", "listener"),
    [
        (ANONYMOUS, "PLAINTEXT"),
        (ALICE, "PLAINTEXT"),
        (ALICE._replace(token_authenticated=True), "SASL_PLAINTEXT"),
        (ANONYMOUS, "SSL"),
    ],
)
def test_who_may_not_ask(harness: Tokens, who: Principal, listener: str) -> None:
    for version, request in ALL:
        answer = harness.ask(who, version, request, listener)
        assert answer.error_code == NOT_ALLOWED
        if request is CREATE:
            assert (answer.principal_name, answer.token_requester_principal_name) == (who.name, who.name)
            assert answer.issue_timestamp_ms == answer.expiry_timestamp_ms == answer.max_timestamp_ms == -1
        elif request is not DESCRIBE:
            assert answer.expiry_timestamp_ms == -1
    # A client that has shown a certificate may.
    assert harness.ask(ALICE, 3, CREATE, "SSL").error_code == ErrorCode.NONE


def test_a_controller_asked_directly(harness: Tokens) -> None:
    for version, request in ALL:
        is_unknown = request is DESCRIBE
        for who, listener, code in (
            (ALICE, "PLAINTEXT", NOT_ALLOWED),
            (ALICE._replace(token_authenticated=True), "SASL_PLAINTEXT", NOT_ALLOWED),
            (ALICE, "SASL_PLAINTEXT", ErrorCode.NONE if request is CREATE else 62),
        ):
            answer = harness.ask(who, version, request, listener, ListenerRole.CONTROLLER)
            assert answer.error_code == (ErrorCode.UNKNOWN_SERVER_ERROR if is_unknown else code)


def test_a_renewer_that_is_no_user_and_an_owner_of_no_kind(harness: Tokens) -> None:
    renewers = [CreatableRenewers(principal_type="Group", principal_name="g")]
    answer = harness.ask(ALICE, 3, CreateDelegationTokenRequest(renewers=renewers, owner_principal_name=None))
    assert (answer.error_code, answer.max_timestamp_ms) == (ErrorCode.INVALID_PRINCIPAL_TYPE, -1)
    kindless = CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name="x", renewers=[])
    answer = harness.ask(ALICE, 3, kindless)
    assert (answer.error_code, answer.principal_name) == (ErrorCode.INVALID_PRINCIPAL_TYPE, "ANONYMOUS")


def test_without_a_secret_there_are_no_tokens() -> None:
    harness = Tokens({"delegation.token.secret.key": ""})
    for version, request in ALL:
        answer = harness.ask(ALICE, version, request)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if request is CREATE:
            assert (answer.principal_name, answer.issue_timestamp_ms) == ("alice", 0)


def test_what_proves_a_token_is_made_when_it_comes_and_not_when_it_is_shown() -> None:
    sasl = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,SASL_PLAINTEXT://127.0.0.1:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required;",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    harness = Tokens({**SETTINGS, **sasl})
    made = harness.create(ALICE)
    harness.host.run_pending()
    assert list(harness.node.users._cached) == [("SCRAM-SHA-256", made.token_id)]
    harness.ask(ALICE, 2, ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1))
    harness.host.run_pending()
    assert not harness.node.users._cached
