"""SaslHandshake v0–1. KIP-43; KIP-152 (SaslAuthenticate follows, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Message, Str, field, message


@message(key=17, versions="0-1")
class SaslHandshakeRequest(Message):
    """Choose a mechanism."""

    mechanism: Str = field()


@message(key=17, versions="0-1")
class SaslHandshakeResponse(Message):
    """Whether it may be used, and which may."""

    error_code: Int16 = field()
    mechanisms: list[Str] = field()
