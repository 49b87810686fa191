"""Envelope v0. KIP-590; from a broker to the controller, with the request of a client."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Message, field, message


@message(key=58, versions="0", flexible="0+")
class EnvelopeRequest(Message):
    """A client's request with its header, and the principal and address of the client."""

    request_data: Bytes = field()
    request_principal: Bytes | None = field(nullable="0+")
    client_host_address: Bytes = field()


@message(key=58, versions="0", flexible="0+")
class EnvelopeResponse(Message):
    """The response to the client's request with its header, or an error."""

    response_data: Bytes | None = field(nullable="0+", default=None)
    error_code: Int16 = field()
