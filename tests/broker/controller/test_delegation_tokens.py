"""Delegation tokens as the controller decides on them, and their end."""

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
from tests.broker.controller.conftest import Rules

SECRET = b"secret"
DAY_MS = 86_400_000
TERMS = DelegationTokenSettings(SECRET, max_lifetime_ms=7 * DAY_MS, expiry_time_ms=DAY_MS)
NOW_MS = 1_700_000_000_000
ALICE, BOB, ZOE = (Principal("User", name) for name in ("alice", "bob", "zoe"))
FOR_EVER = 2**63 - 1


@pytest.fixture
def tokens(cluster: Any) -> Any:
    """A cluster that issues tokens."""
    return under(cluster, TERMS)


def under(cluster: Any, terms: DelegationTokenSettings) -> Any:
    cluster.controller = Controller(1, Rules(), TopicDefaults(1, 1), token_settings=terms)  # type: ignore[arg-type]
    return cluster


def create(cluster: Any, max_lifetime_ms: int = -1, owner: Principal = ALICE) -> DelegationTokenRecord:
    made = cluster.run(CreateToken(ALICE, owner, [BOB], max_lifetime_ms, NOW_MS))
    assert isinstance(made, DelegationTokenRecord)
    return cluster.image.delegation_tokens[made.token_id]


def shown(token: DelegationTokenRecord) -> bytes:
    return token_hmac(SECRET, token.token_id)


def code(reply: Any) -> str:
    assert isinstance(reply, Fault)
    return reply.code.name


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "ends_ms"),
    [
        (-1, 7 * DAY_MS, DAY_MS),
        (0, 7 * DAY_MS, DAY_MS),
        (2 * DAY_MS, 2 * DAY_MS, DAY_MS),
        (1_000, 1_000, 1_000),
        (FOR_EVER, 7 * DAY_MS, DAY_MS),
    ],
)
def test_a_token_lives_as_long_as_the_cluster_allows(
    tokens: Any, asked_ms: int, max_ms: int, ends_ms: int
) -> None:
    made = create(tokens, asked_ms, ZOE)
    assert (made.owner, made.requester, made.renewers) == ("User:zoe", "User:alice", ["User:bob"])
    assert made.issue_timestamp == NOW_MS
    assert (made.max_timestamp - NOW_MS, made.expiration_timestamp - NOW_MS) == (max_ms, ends_ms)
    assert len(made.token_id) == 22


def test_times_stop_where_numbers_do(cluster: Any) -> None:
    made = create(under(cluster, DelegationTokenSettings(SECRET, FOR_EVER, FOR_EVER)))
    assert (made.max_timestamp, made.expiration_timestamp) == (FOR_EVER, FOR_EVER)


def test_renewers_are_users(tokens: Any) -> None:
    assert code(tokens.run(CreateToken(ALICE, ALICE, [Principal("Group", "g")], -1, NOW_MS))) == (
        "INVALID_PRINCIPAL_TYPE"
    )


def test_it_is_renewed_up_to_its_maximum(tokens: Any) -> None:
    token = create(tokens)
    for period_ms, later_ms, ends_ms in (
        (-1, 10, 10 + DAY_MS),
        (5_000, 20, 5_020),
        (FOR_EVER, 30, 30 + DAY_MS),
    ):
        assert tokens.run(RenewToken(BOB, shown(token), period_ms, NOW_MS + later_ms)) == NOW_MS + ends_ms
        after = tokens.image.delegation_tokens[token.token_id]
        assert after.expiration_timestamp == NOW_MS + ends_ms
        assert (after.owner, after.renewers, after.max_timestamp) == (
            token.owner,
            token.renewers,
            token.max_timestamp,
        )
    short = create(tokens, 1_000)
    assert tokens.run(RenewToken(ALICE, shown(short), 5_000, NOW_MS + 10)) == NOW_MS + 1_000


def test_it_can_be_made_to_end(tokens: Any) -> None:
    token = create(tokens)
    assert tokens.run(ExpireToken(ALICE, shown(token), FOR_EVER, NOW_MS + 1)) == token.max_timestamp
    assert tokens.run(ExpireToken(ALICE, shown(token), 0, NOW_MS + 2)) == NOW_MS + 2
    assert code(tokens.run(ExpireToken(ALICE, shown(token), 0, NOW_MS + 3))) == "DELEGATION_TOKEN_EXPIRED"
    assert tokens.run(ExpireToken(BOB, shown(token), -1, NOW_MS + 4)) == NOW_MS + 4
    assert tokens.image.delegation_tokens == {}
    assert code(tokens.run(ExpireToken(BOB, shown(token), -1, NOW_MS))) == "DELEGATION_TOKEN_NOT_FOUND"


@pytest.mark.parametrize("command", [RenewToken, ExpireToken])
def test_who_may_not(tokens: Any, command: Any) -> None:
    token = create(tokens, owner=ZOE)
    # To have asked for it is not to own it.
    assert code(tokens.run(command(ALICE, shown(token), 1, NOW_MS))) == "DELEGATION_TOKEN_OWNER_MISMATCH"
    assert code(tokens.run(command(ZOE, b"", 1, NOW_MS))) == "DELEGATION_TOKEN_NOT_FOUND"
    late_ms = token.expiration_timestamp + 1
    assert code(tokens.run(command(ZOE, shown(token), 1, late_ms))) == "DELEGATION_TOKEN_EXPIRED"


@pytest.mark.parametrize(
    ("level", "terms", "told"),
    [
        (13, TERMS, "UNSUPPORTED_VERSION"),
        (13, NO_TOKENS, "DELEGATION_TOKEN_AUTH_DISABLED"),
        (30, NO_TOKENS, "DELEGATION_TOKEN_AUTH_DISABLED"),
    ],
)
def test_there_may_be_no_tokens(
    bare_cluster: Any, level: int, terms: DelegationTokenSettings, told: str
) -> None:
    cluster = under(bare_cluster([("metadata.version", level)]), terms)
    assert code(cluster.run(CreateToken(ALICE, ALICE, [], -1, NOW_MS))) == told
    assert code(cluster.run(RenewToken(ALICE, b"", -1, NOW_MS))) == told
    assert code(cluster.run(ExpireToken(ALICE, b"", -1, NOW_MS))) == told


def test_what_has_run_out_is_forgotten(tokens: Any) -> None:
    short, longer = create(tokens, 1_000), create(tokens, 2_000)
    tokens.run(RemoveExpiredTokens(NOW_MS + 1_000))
    assert set(tokens.image.delegation_tokens) == {short.token_id, longer.token_id}
    tokens.run(RemoveExpiredTokens(NOW_MS + 1_001))
    assert set(tokens.image.delegation_tokens) == {longer.token_id}


@pytest.mark.parametrize("kind", [RenewToken, ExpireToken])
def test_what_proves_a_token_is_not_shown_with_its_command(kind: Any) -> None:
    assert repr(kind(ALICE, b"proof", 1, 2)) == f"{kind.__name__}(User:alice, [hidden], 1, 2)"
    assert repr(TERMS) == f"DelegationTokenSettings([hidden], {7 * DAY_MS}, {DAY_MS})"
