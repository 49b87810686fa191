"""Delegation tokens: what proves that one has a token, and who is in its record. KIP-48, KIP-373.

A token is its id, which anybody may know, and the HMAC of that id by the cluster's secret. Its record in the
metadata has no more than the id, the people and the times: every node makes the HMAC anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kwire.broker.config import BrokerConfig
from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.stored.metadata import DelegationTokenRecord

DIGEST: Final = "sha512"


class TokenTerms(NamedTuple):
    """On which terms a node issues tokens."""

    secret: bytes
    """delegation.token.secret.key; empty where there are no tokens."""
    max_lifetime_ms: int
    """delegation.token.max.lifetime.ms: no renewal goes beyond it."""
    renewed_ms: int
    """delegation.token.expiry.time.ms: for how long it is good before it has to be renewed."""


NO_TOKENS: Final = TokenTerms(b"", 0, 0)


def token_terms(config: BrokerConfig) -> TokenTerms:
    """The terms of a node's settings."""
    return TokenTerms(
        (config.delegation_token_secret_key or "").encode(),
        config.delegation_token_max_lifetime_ms,
        config.delegation_token_expiry_time_ms,
    )


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """What whoever has the token shows."""
    import hmac  # with OpenSSL, which most nodes never need

    return hmac.digest(secret, token_id.encode(), DIGEST)


def find_token(
    tokens: Iterable[DelegationTokenRecord], secret: bytes, shown: bytes
) -> DelegationTokenRecord | None:
    """The token whose HMAC was shown, if there is one."""
    from hmac import compare_digest

    for token in tokens:
        if compare_digest(token_hmac(secret, token.token_id), shown):
            return token
    return None


def principal_of(text: str) -> Principal:
    """A principal as records have it: KIND:NAME."""
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def is_owner_or_renewer(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Whether somebody may let a token live longer, or end it."""
    name = str(principal)
    return token.owner == name or name in token.renewers


def concerns(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Whether it is somebody's own, one that he has asked for, or one that he may renew."""
    return token.requester == str(principal) or is_owner_or_renewer(token, principal)
