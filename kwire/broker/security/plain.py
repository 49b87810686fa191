"""SASL PLAIN: user name and password in clear text, in one message. RFC 4616, KIP-43."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from kwire.broker.security.principal import USER, Principal
from kwire.broker.security.sasl import AuthenticationFailed, AuthenticationResult
from kwire.wire.mechanisms import PLAIN


class PlainServer:
    """The server side of one PLAIN exchange, with the passwords by user name."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self._outcome: AuthenticationResult | None = None

    @property
    def outcome(self) -> AuthenticationResult | None:
        """The result of the exchange; None until the client has sent the correct password."""
        return self._outcome

    def evaluate(self, response: bytes) -> bytes:
        """Check the client's message and return an empty response.

        Raises AuthenticationFailed for a malformed message, an unknown user or a wrong password.
        """
        tokens = response.decode(errors="replace").split("\0", 3)
        if len(tokens) != 3:
            raise _failed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}")
        authorization, name, password = tokens
        if not name:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        expected = self._passwords.get(name)
        if expected is None or not hmac.compare_digest(password.encode(), expected.encode()):
            raise _failed("Authentication failed: Invalid username or password")
        if authorization not in ("", name):
            raise _failed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._outcome = AuthenticationResult(Principal(USER, name))
        return b""


class PlainClient:
    """The client side of one PLAIN exchange."""

    mechanism: Final = PLAIN

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether the client has sent its message."""
        return self._is_complete

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the message with user name and password on the first call, then None."""
        if self._is_complete:
            return None
        self._is_complete = True
        return f"\0{self._username}\0{self._password}".encode()


def _failed(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, text)
