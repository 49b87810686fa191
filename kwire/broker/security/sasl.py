"""What a mechanism of SASL is to those who run an exchange: two sides, fed with one message after another.

A server's side comes of a mechanism's name and a listener's settings, one for each exchange
(`broker.security.mechanisms`); the client's of the settings of whoever connects. Neither touches the world:
chance and time are passed in. RFC 4422; KIP-43 (mechanisms by listener), KIP-84 (SCRAM), KIP-48 (tokens).
"""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class AuthenticationFailed(Exception):
    """The other side is not who it says that it is, or says it in a wrong way.

    `told` is what the client may be told of it; None where Kafka tells it no more than that its credentials
    are invalid. The text is for the log.
    """

    def __init__(self, reason: str, client_message: str | None = None) -> None:
        super().__init__(reason)
        self.client_message = client_message


class AuthenticationResult(NamedTuple):
    """What an exchange has come to."""

    principal: Principal
    expires_ms: int | None = None
    """The wall-clock time at which its credential ends: that of a delegation token."""


class SaslServer(Protocol):
    """The server's side of one exchange."""

    def evaluate(self, response: bytes) -> bytes:
        """What the client says, and what it is answered. AuthenticationFailed, WireError."""

    @property
    def outcome(self) -> AuthenticationResult | None:
        """Set when the last answer was the last one, and the client is who it says."""


class SaslClient(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> str:
        """Its name, for SaslHandshake."""

    def evaluate(self, challenge: bytes) -> bytes | None:
        """What the server says (nothing, at first), and what it is told: None where there is no more to say.

        AuthenticationFailed: the server has not shown that it knows the password.
        """

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is expected of the server."""
