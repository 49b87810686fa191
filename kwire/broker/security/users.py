"""What a cluster knows of its users: what proves a password, and delegation tokens. KIP-84, KIP-48."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class ScramCredential(NamedTuple):
    """What is kept of a password: it proves that somebody knows it, and does not tell it. RFC 5802."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential([hidden])"


class TokenCredential(NamedTuple):
    """What proves a delegation token, whose it is, and the wall-clock time at which it ends."""

    owner: Principal
    expires_ms: int
    credential: ScramCredential


class Users(Protocol):
    """Those who may show a password or a token."""

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        """What a user's password is proved with, by the mechanism; None where he has none for it."""

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """The token of that id, whose password is its HMAC in base64; None where there is none."""
