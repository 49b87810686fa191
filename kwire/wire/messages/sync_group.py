"""SyncGroup v0–5. KIP-345 (instance id, v3), KIP-559 (protocol type, v5)."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int32, Message, Str, field, message


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupRequest(Message):
    """A request for a member's assignment. The leader sends the assignments of all members."""

    group_id: Str = field()
    generation_id: Int32 = field()
    member_id: Str = field()
    group_instance_id: Str | None = field("3+", nullable="3+", default=None)
    protocol_type: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
    protocol_name: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = field()


class SyncGroupRequestAssignment(Message):
    member_id: Str = field()
    assignment: Bytes = field()


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse(Message):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field()
    protocol_type: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
    protocol_name: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
    assignment: Bytes = field()
