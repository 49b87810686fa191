"""The principal of a forwarded request. An Envelope carries it with a version prefix. KIP-590."""

from __future__ import annotations

from kwire.wire.schema import Bool, Message, Str, field, message


@message(versions="0", flexible="0+")
class DefaultPrincipalData(Message):
    """A principal, as DefaultKafkaPrincipalBuilder serializes it."""

    type: Str = field()
    name: Str = field()
    token_authenticated: Bool = field()
