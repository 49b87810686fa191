"""Credentials of a cluster's users: SCRAM credentials and delegation tokens. KIP-84, KIP-48."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class ScramCredential(NamedTuple):
    """A stored SCRAM credential. It verifies the password but does not contain it. RFC 5802."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential([hidden])"


class TokenCredential(NamedTuple):
    """A delegation token: its owner, the wall-clock time at which it expires, and its SCRAM credential."""

    owner: Principal
    expires_ms: int
    credential: ScramCredential


class Users(Protocol):
    """The users that can authenticate."""

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism; None if the user has none."""

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """Return a delegation token, whose password is its HMAC in base64; None if it does not exist."""
