"""BrokerHeartbeat v0–2. KIP-631, KIP-858 (offline directories, v1), KIP-1066 (cordoned directories, v2)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, field, message


@message(key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest(Message):
    """A broker's heartbeat: its metadata offset, and requests to fence it or to shut it down."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field(default=-1)
    current_metadata_offset: Int64 = field()
    want_fence: Bool = field()
    want_shut_down: Bool = field()
    offline_log_dirs: list[Uuid] = field("1+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("2+", nullable="2+", tag=1, default=None)


@message(key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse(Message):
    """The state of the broker, as the controller decided it."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    is_caught_up: Bool = field()
    is_fenced: Bool = field(default=True)
    should_shut_down: Bool = field()
