"""Heartbeat v0–4. KIP-345 (instance id, v3)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Message):
    group_id: Str = field()
    generation_id: Int32 = field()
    member_id: Str = field()
    group_instance_id: Str | None = field("3+", nullable="3+", default=None)


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse(Message):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field()
