"""Delegation tokens in the controller, and their expiration."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import (
    CreateToken,
    ExpireToken,
    Fault,
    RemoveExpiredTokens,
    RenewToken,
)
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.topics import TopicDefaults
from kwire.broker.security.delegation_tokens import NO_TOKENS, DelegationTokenSettings, token_hmac
from kwire.broker.security.principal import Principal
from kwire.wire.records.metadata import DelegationTokenRecord
from tests.broker.controller.conftest import StubConfigRules

SECRET = b"secret"
DAY_MS = 86_400_000
SETTINGS = DelegationTokenSettings(SECRET, max_lifetime_ms=7 * DAY_MS, expiry_time_ms=DAY_MS)
NOW_MS = 1_700_000_000_000
ALICE, BOB, ZOE = (Principal("User", name) for name in ("alice", "bob", "zoe"))
MAX_INT64 = 2**63 - 1


@pytest.fixture
def tokens(cluster: Any) -> Any:
    """Return a cluster that issues tokens."""
    return with_settings(cluster, SETTINGS)


def with_settings(cluster: Any, settings: DelegationTokenSettings) -> Any:
    cluster.controller = Controller(1, StubConfigRules(), TopicDefaults(1, 1), token_settings=settings)
    return cluster


def create(cluster: Any, max_lifetime_ms: int = -1, owner: Principal = ALICE) -> DelegationTokenRecord:
    created = cluster.run(CreateToken(ALICE, owner, [BOB], max_lifetime_ms, NOW_MS))
    assert isinstance(created, DelegationTokenRecord)
    stored = cluster.image.delegation_tokens[created.token_id]
    assert isinstance(stored, DelegationTokenRecord)
    return stored


def hmac_of(token: DelegationTokenRecord) -> bytes:
    return token_hmac(SECRET, token.token_id)


def code(reply: Any) -> str:
    assert isinstance(reply, Fault)
    return reply.code.name


@pytest.mark.parametrize(
    ("requested_ms", "max_ms", "ends_ms"),
    [
        (-1, 7 * DAY_MS, DAY_MS),
        (0, 7 * DAY_MS, DAY_MS),
        (2 * DAY_MS, 2 * DAY_MS, DAY_MS),
        (1_000, 1_000, 1_000),
        (MAX_INT64, 7 * DAY_MS, DAY_MS),
    ],
)
def test_a_token_has_the_requested_lifetime_up_to_the_maximum(
    tokens: Any, requested_ms: int, max_ms: int, ends_ms: int
) -> None:
    created = create(tokens, requested_ms, ZOE)
    assert (created.owner, created.requester, created.renewers) == ("User:zoe", "User:alice", ["User:bob"])
    assert created.issue_timestamp == NOW_MS
    assert (created.max_timestamp - NOW_MS, created.expiration_timestamp - NOW_MS) == (max_ms, ends_ms)
    assert len(created.token_id) == 22


def test_expiration_is_limited_to_the_largest_timestamp(cluster: Any) -> None:
    created = create(with_settings(cluster, DelegationTokenSettings(SECRET, MAX_INT64, MAX_INT64)))
    assert (created.max_timestamp, created.expiration_timestamp) == (MAX_INT64, MAX_INT64)


def test_renewers_must_be_users(tokens: Any) -> None:
    assert code(tokens.run(CreateToken(ALICE, ALICE, [Principal("Group", "g")], -1, NOW_MS))) == (
        "INVALID_PRINCIPAL_TYPE"
    )


def test_a_token_is_renewed_up_to_its_maximum_lifetime(tokens: Any) -> None:
    token = create(tokens)
    for period_ms, later_ms, ends_ms in (
        (-1, 10, 10 + DAY_MS),
        (5_000, 20, 5_020),
        (MAX_INT64, 30, 30 + DAY_MS),
    ):
        assert tokens.run(RenewToken(BOB, hmac_of(token), period_ms, NOW_MS + later_ms)) == NOW_MS + ends_ms
        after = tokens.image.delegation_tokens[token.token_id]
        assert after.expiration_timestamp == NOW_MS + ends_ms
        assert (after.owner, after.renewers, after.max_timestamp) == (
            token.owner,
            token.renewers,
            token.max_timestamp,
        )
    short = create(tokens, 1_000)
    assert tokens.run(RenewToken(ALICE, hmac_of(short), 5_000, NOW_MS + 10)) == NOW_MS + 1_000


def test_expire_token_changes_or_ends_its_lifetime(tokens: Any) -> None:
    token = create(tokens)
    assert tokens.run(ExpireToken(ALICE, hmac_of(token), MAX_INT64, NOW_MS + 1)) == token.max_timestamp
    assert tokens.run(ExpireToken(ALICE, hmac_of(token), 0, NOW_MS + 2)) == NOW_MS + 2
    assert code(tokens.run(ExpireToken(ALICE, hmac_of(token), 0, NOW_MS + 3))) == "DELEGATION_TOKEN_EXPIRED"
    assert tokens.run(ExpireToken(BOB, hmac_of(token), -1, NOW_MS + 4)) == NOW_MS + 4
    assert tokens.image.delegation_tokens == {}
    assert code(tokens.run(ExpireToken(BOB, hmac_of(token), -1, NOW_MS))) == "DELEGATION_TOKEN_NOT_FOUND"


@pytest.mark.parametrize("command", [RenewToken, ExpireToken])
def test_renewing_or_expiring_needs_a_valid_token_and_its_owner(tokens: Any, command: Any) -> None:
    token = create(tokens, owner=ZOE)
    # The requester of a token is not its owner.
    assert code(tokens.run(command(ALICE, hmac_of(token), 1, NOW_MS))) == "DELEGATION_TOKEN_OWNER_MISMATCH"
    assert code(tokens.run(command(ZOE, b"", 1, NOW_MS))) == "DELEGATION_TOKEN_NOT_FOUND"
    late_ms = token.expiration_timestamp + 1
    assert code(tokens.run(command(ZOE, hmac_of(token), 1, late_ms))) == "DELEGATION_TOKEN_EXPIRED"


@pytest.mark.parametrize(
    ("level", "settings", "expected"),
    [
        (13, SETTINGS, "UNSUPPORTED_VERSION"),
        (13, NO_TOKENS, "DELEGATION_TOKEN_AUTH_DISABLED"),
        (30, NO_TOKENS, "DELEGATION_TOKEN_AUTH_DISABLED"),
    ],
)
def test_tokens_may_be_disabled_or_unsupported(
    bare_cluster: Any, level: int, settings: DelegationTokenSettings, expected: str
) -> None:
    cluster = with_settings(bare_cluster([("metadata.version", level)]), settings)
    assert code(cluster.run(CreateToken(ALICE, ALICE, [], -1, NOW_MS))) == expected
    assert code(cluster.run(RenewToken(ALICE, b"", -1, NOW_MS))) == expected
    assert code(cluster.run(ExpireToken(ALICE, b"", -1, NOW_MS))) == expected


def test_expired_tokens_are_removed(tokens: Any) -> None:
    short, longer = create(tokens, 1_000), create(tokens, 2_000)
    tokens.run(RemoveExpiredTokens(NOW_MS + 1_000))
    assert set(tokens.image.delegation_tokens) == {short.token_id, longer.token_id}
    tokens.run(RemoveExpiredTokens(NOW_MS + 1_001))
    assert set(tokens.image.delegation_tokens) == {longer.token_id}


@pytest.mark.parametrize("kind", [RenewToken, ExpireToken])
def test_repr_of_a_command_hides_the_hmac(kind: Any) -> None:
    assert repr(kind(ALICE, b"proof", 1, 2)) == f"{kind.__name__}(User:alice, [hidden], 1, 2)"
    assert repr(SETTINGS) == f"DelegationTokenSettings([hidden], {7 * DAY_MS}, {DAY_MS})"
