"""Protocols of SASL mechanisms: a server side and a client side that exchange messages.

A server side object handles one exchange, for a mechanism and the settings of a listener
(`broker.security.mechanisms`). A client side object is created from credentials. Neither does I/O; random
numbers and the time are passed as arguments. RFC 4422; KIP-43 (mechanisms per listener), KIP-84 (SCRAM),
KIP-48 (tokens).
"""

from __future__ import annotations

from typing import Protocol

from kwire.broker.security.principal import Principal
from kwire.wire.named_tuple import NamedTuple


class AuthenticationFailed(Exception):
    """Authentication has failed because of wrong credentials or an invalid message.

    The text of the exception is for the log. `client_message` is the text for the client. It is None if Kafka
    sends only that the credentials are invalid.
    """

    def __init__(self, reason: str, client_message: str | None = None) -> None:
        super().__init__(reason)
        self.client_message = client_message


class AuthenticationResult(NamedTuple):
    """The result of a successful exchange."""

    principal: Principal
    expires_ms: int | None = None
    """The wall-clock time at which the credential expires; None if never. Only delegation tokens expire."""


class SaslServer(Protocol):
    """The server side of one exchange."""

    def evaluate(self, response: bytes) -> bytes:
        """Check a client's message and return the response.

        Raises AuthenticationFailed, or WireError if Kafka closes the connection without an error response.
        """

    @property
    def outcome(self) -> AuthenticationResult | None:
        """The result of the exchange; None until the client is authenticated."""


class SaslClient(Protocol):
    """The client side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The mechanism name to send in SaslHandshake."""

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the next message for the server; None if there is none. The first `challenge` is empty.

        Raises AuthenticationFailed if `challenge` is invalid, or does not prove that the server has the
        user's credential.
        """

    @property
    def is_complete(self) -> bool:
        """Whether the client expects no further message from the server."""
