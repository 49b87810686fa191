"""ControllerRegistration v0. KIP-919."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, UInt16, field, message


@message(key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest(Message):
    controller_id: Int32 = field()
    incarnation_id: Uuid = field()
    zk_migration_ready: Bool = field()
    listeners: list[Listener] = field()
    features: list[Feature] = field()


class Listener(Message):
    """A listener of the controller."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()
    security_protocol: Int16 = field()


class Feature(Message):
    """A feature and the range of levels that the controller supports."""

    name: Str = field()
    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
