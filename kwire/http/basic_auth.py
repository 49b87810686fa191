"""User names and passwords in HTTP requests: Basic authentication. RFC 7617."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

UNAUTHORIZED: Final = 401
CHALLENGE: Final[Mapping[str, str]] = {"www-authenticate": 'Basic realm="kwire", charset="UTF-8"'}
"""The header of a 401 response, after which a browser shows its login dialog."""
MAX_BYTES: Final = 4096
"""The limit for the header's value. Longer ones are rejected."""


class MalformedAuthorization(ValueError):
    """An Authorization header without a valid user name and password. The message has no part of it."""


class BasicCredentials(NamedTuple):
    """A user name and a password, neither of which is empty."""

    username: str
    password: str

    def digest(self, key: bytes) -> bytes:
        """Return a keyed hash, by which a process finds logins without keeping passwords."""
        # A user name has no colon (RFC 7617), so the text is unambiguous.
        return hmac.digest(key, f"{self.username}:{self.password}".encode(), "sha256")

    def __repr__(self) -> str:
        return "BasicCredentials([hidden])"


def basic_credentials(headers: Iterable[tuple[bytes, bytes]]) -> BasicCredentials | None:
    """Return the credentials in the headers of a request; None without an Authorization header.

    Raises MalformedAuthorization.
    """
    values = [value for name, value in headers if name.lower() == b"authorization"]
    if not values:
        return None
    if len(values) > 1:
        raise MalformedAuthorization("the request has several Authorization headers")
    if len(values[0]) > MAX_BYTES:
        raise MalformedAuthorization(f"the Authorization header is longer than {MAX_BYTES} bytes")
    scheme, _, encoded = values[0].partition(b" ")
    if scheme.lower() != b"basic":
        raise MalformedAuthorization("the Authorization header must have the scheme Basic")
    try:
        text = b64decode(encoded.strip(b" "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        # Without the cause, whose text and attributes contain parts of the password.
        raise MalformedAuthorization("the Authorization header is not base64 of UTF-8") from None
    username, colon, password = text.partition(":")
    if not colon or not username or not password:
        raise MalformedAuthorization("the user name or the password is missing")
    if any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in text):
        raise MalformedAuthorization("the user name or the password has a control character")
    return BasicCredentials(username, password)
