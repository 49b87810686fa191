"""SaslAuthenticate v0–2. KIP-152; KIP-368 (session lifetime, v1)."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int64, Message, Str, field, message


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Message):
    """A client's message in the exchange of a SASL mechanism."""

    auth_bytes: Bytes = field()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse(Message):
    """The server's message in the exchange, or an error."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    auth_bytes: Bytes = field()
    session_lifetime_ms: Int64 = field("1+", ignorable=True)
