"""Delegation tokens: their HMACs and the principals of their records. KIP-48, KIP-373.

A token consists of a public id and an HMAC, which is the HMAC of the id with the cluster's secret key. The
token's record in the metadata log has the id, the principals and the timestamps. Each node computes the HMAC.
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
    """The configuration of delegation tokens."""

    secret: bytes
    """delegation.token.secret.key. It is empty if delegation tokens are disabled."""
    max_lifetime_ms: int
    """delegation.token.max.lifetime.ms: the age beyond which a token cannot be renewed."""
    expiry_time_ms: int
    """delegation.token.expiry.time.ms: the time within which a token must be renewed."""

    def __repr__(self) -> str:
        return f"DelegationTokenSettings([hidden], {self.max_lifetime_ms}, {self.expiry_time_ms})"


NO_TOKENS: Final = DelegationTokenSettings(b"", 0, 0)


def token_settings(config: BrokerConfig) -> DelegationTokenSettings:
    """Return the delegation token settings of a configuration."""
    return DelegationTokenSettings(
        (config.delegation_token_secret_key or "").encode(),
        config.delegation_token_max_lifetime_ms,
        config.delegation_token_expiry_time_ms,
    )


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """Compute the HMAC of a token. In base64, it is the password of the token."""
    import hmac  # imported here because it loads OpenSSL, which most nodes never need

    return hmac.digest(secret, token_id.encode(), DIGEST)


class TokenHmacs:
    """The HMACs of the current tokens. Each HMAC is computed once."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is delegation.token.secret.key."""
        self.secret = secret
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        """The tokens of the last call of `update_tokens`."""
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def __repr__(self) -> str:
        return f"TokenHmacs({len(self._ids)}, [hidden])"

    def __len__(self) -> int:
        return len(self._ids)

    def update_tokens(self, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """Replace the tokens. `tokens` is part of a metadata image, so the mapping never changes."""
        if tokens is self._tokens or not self.secret:
            return
        self._tokens = tokens
        for token_id in self._hmacs.keys() - tokens.keys():
            del self._ids[self._hmacs.pop(token_id)]
        for token_id in tokens.keys() - self._hmacs.keys():
            self._hmacs[token_id] = made = token_hmac(self.secret, token_id)
            self._ids[made] = token_id

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC of a token, even if `update_tokens` has not received the token yet."""
        made = self._hmacs.get(token_id)
        return token_hmac(self.secret, token_id) if made is None else made

    def find(self, tokens: Mapping[str, DelegationTokenRecord], hmac: bytes) -> DelegationTokenRecord | None:
        """Return the one of the current `tokens` that has this HMAC, or None."""
        if hmac not in self._ids:
            self.update_tokens(tokens)
        return tokens.get(self._ids.get(hmac, ""))


def parse_principal(text: str) -> Principal:
    """Parse the text `TYPE:NAME` of a principal in a record."""
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def is_owner_or_renewer(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Return whether the principal is allowed to renew or expire the token."""
    name = str(principal)
    return token.owner == name or name in token.renewers


def is_owner_requester_or_renewer(token: DelegationTokenRecord, principal: Principal) -> bool:
    """Return whether the principal is the owner, the requester or a renewer of the token."""
    return token.requester == str(principal) or is_owner_or_renewer(token, principal)
