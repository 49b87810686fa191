"""ControllerRegistration v0. KIP-919."""

from __future__ import annotations

from kwire.wire.messages.broker_registration import Feature as Feature
from kwire.wire.messages.broker_registration import Listener as Listener
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest(Message):
    controller_id: Int32 = field()
    incarnation_id: Uuid = field()
    zk_migration_ready: Bool = field()
    listeners: list[Listener] = field()
    features: list[Feature] = field()


@message(key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
