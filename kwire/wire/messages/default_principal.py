"""Whom a forwarded request is of: in an Envelope, with its version in front as if it were stored. KIP-590."""

from __future__ import annotations

from kwire.wire.schema import Bool, Message, Str, field, message


@message(versions="0", flexible="0+")
class DefaultPrincipalData(Message):
    """A principal as Kafka's own builder of principals writes it; other builders have their own ways."""

    type: Str = field()
    name: Str = field()
    token_authenticated: Bool = field()
