"""The credentials of a cluster's users: SCRAM credentials and delegation tokens. KIP-84, KIP-48."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class ScramCredential(NamedTuple):
    """A stored SCRAM credential. The broker can verify a password with it, but not recover the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential([hidden])"


class TokenCredential(NamedTuple):
    """A delegation token: its owner, the wall-clock time of its expiry, and its SCRAM credential."""

    owner: Principal
    expires_ms: int
    credential: ScramCredential


class Users(Protocol):
    """The users that can authenticate to this cluster."""

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism; None if the user has none."""

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """Return a delegation token with its credential for a mechanism; None if there is no such token.

        The password of a token is its HMAC in base64.
        """
