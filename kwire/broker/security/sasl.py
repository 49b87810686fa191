"""Protocols of SASL mechanisms: a server side and a client side that exchange messages.

There is one server side per exchange, for a mechanism and the settings of a listener
(`broker.security.mechanisms`). The client side is made from credentials. Neither side does I/O: random
numbers and the time are arguments. RFC 4422; KIP-43 (mechanisms per listener), KIP-84 (SCRAM), KIP-48
(tokens).
"""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class AuthenticationFailed(Exception):
    """Authentication failed: wrong credentials or an invalid message.

    The text of the exception is for the log. `client_message` is sent to the client; None if Kafka sends only
    that the credentials are invalid.
    """

    def __init__(self, reason: str, client_message: str | None = None) -> None:
        super().__init__(reason)
        self.client_message = client_message


class AuthenticationResult(NamedTuple):
    """The result of a successful exchange."""

    principal: Principal
    expires_ms: int | None = None
    """The wall-clock time at which the credential expires. Only delegation tokens expire."""


class SaslServer(Protocol):
    """The server side of one exchange."""

    def evaluate(self, response: bytes) -> bytes:
        """Check a client's message, and return the response. AuthenticationFailed, WireError."""

    @property
    def outcome(self) -> AuthenticationResult | None:
        """Set once the exchange is complete and the client is authenticated."""


class SaslClient(Protocol):
    """The client side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, for SaslHandshake."""

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the next message for the server; None if there is no more. `challenge` is empty at first.

        AuthenticationFailed: the server has not proved that it has the user's credential.
        """

    @property
    def is_complete(self) -> bool:
        """Whether no more message of the server is expected."""
