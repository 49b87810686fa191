"""UnregisterBroker v0. KIP-500."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest(Message):
    """A request to remove a broker's registration."""

    broker_id: Int32 = field()


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
