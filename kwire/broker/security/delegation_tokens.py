"""Delegation tokens: what proves that one has a token, and who is in its record. KIP-48, KIP-373.

A token is its id, which anybody may know, and the HMAC of that id by the cluster's secret. Its record in the
metadata has no more than the id, the people and the times: every node makes the HMAC anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.config import BrokerConfig
from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.records.metadata import DelegationTokenRecord

DIGEST: Final = "sha512"


class DelegationTokenSettings(NamedTuple):
    """On which terms a node issues tokens."""

    secret: bytes
    """delegation.token.secret.key; empty where there are no tokens."""
    max_lifetime_ms: int
    """delegation.token.max.lifetime.ms: no renewal goes beyond it."""
    expiry_time_ms: int
    """delegation.token.expiry.time.ms: for how long it is good before it has to be renewed."""

    def __repr__(self) -> str:
        return f"DelegationTokenSettings([hidden], {self.max_lifetime_ms}, {self.expiry_time_ms})"


NO_TOKENS: Final = DelegationTokenSettings(b"", 0, 0)


def token_settings(config: BrokerConfig) -> DelegationTokenSettings:
    """The terms of a node's settings."""
    return DelegationTokenSettings(
        (config.delegation_token_secret_key or "").encode(),
        config.delegation_token_max_lifetime_ms,
        config.delegation_token_expiry_time_ms,
    )


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """What whoever has the token shows."""
    import hmac  # with OpenSSL, which most nodes never need

    return hmac.digest(secret, token_id.encode(), DIGEST)


class TokenHmacs:
    """The HMACs of the tokens that there are: each made once, as its token comes, and forgotten with it."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is delegation.token.secret.key."""
        self.secret = secret
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        """Those that were followed last."""
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def __repr__(self) -> str:
        return f"TokenHmacs({len(self._ids)}, [hidden])"

    def __len__(self) -> int:
        return len(self._ids)

    def update_tokens(self, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """There are these tokens now, and no others. It is a part of an image: replaced, never changed."""
        if tokens is self._tokens or not self.secret:
            return
        self._tokens = tokens
        for token_id in self._hmacs.keys() - tokens.keys():
            del self._ids[self._hmacs.pop(token_id)]
        for token_id in tokens.keys() - self._hmacs.keys():
            self._hmacs[token_id] = made = token_hmac(self.secret, token_id)
            self._ids[made] = token_id

    def hmac_of(self, token_id: str) -> bytes:
        """What whoever has the token shows."""
        made = self._hmacs.get(token_id)
        return token_hmac(self.secret, token_id) if made is None else made

    def find(self, tokens: Mapping[str, DelegationTokenRecord], shown: bytes) -> DelegationTokenRecord | None:
        """The one of these tokens whose HMAC was shown, if there is one."""
        if shown not in self._ids:
            self.update_tokens(tokens)
        return tokens.get(self._ids.get(shown, ""))


def parse_principal(text: str) -> Principal:
    """A principal as records have it: KIND:NAME."""
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def is_owner_or_renewer(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Whether somebody may let a token live longer, or end it."""
    name = str(principal)
    return token.owner == name or name in token.renewers


def is_owner_requester_or_renewer(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Whether it is somebody's own, one that he has asked for, or one that he may renew."""
    return token.requester == str(principal) or is_owner_or_renewer(token, principal)
