"""BrokerRegistration v0–4.

KIP-631, KIP-858 (log directories, v2), KIP-966 (previous epoch, v3). Features whose minimum level is 0 are
sent only from version 4 on.
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, UInt16, field, message


@message(key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest(Message):
    broker_id: Int32 = field()
    cluster_id: Str = field()
    incarnation_id: Uuid = field()
    listeners: list[Listener] = field()
    features: list[Feature] = field()
    rack: Str | None = field(nullable="0+")
    is_migrating_zk_broker: Bool = field("1+")
    log_dirs: list[Uuid] = field("2+", ignorable=True)
    previous_broker_epoch: Int64 = field("3+", ignorable=True, default=-1)


class Listener(Message):
    """A listener of a broker or controller."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()
    security_protocol: Int16 = field()


class Feature(Message):
    """A feature and the range of levels that the node supports."""

    name: Str = field()
    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse(Message):
    """The broker's new epoch, or an error."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    broker_epoch: Int64 = field(default=-1)
