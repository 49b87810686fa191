"""SaslHandshake v0–1. KIP-43; KIP-152 (SaslAuthenticate follows, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Message, Str, field, message


@message(key=17, versions="0-1")
class SaslHandshakeRequest(Message):
    """A request to use a SASL mechanism."""

    mechanism: Str = field()


@message(key=17, versions="0-1")
class SaslHandshakeResponse(Message):
    """The enabled mechanisms, and an error if the requested one is not among them."""

    error_code: Int16 = field()
    mechanisms: list[Str] = field()
