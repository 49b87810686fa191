"""LeaveGroup v0–5. KIP-345 (many members, v3), KIP-800 (reason, v5)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Message):
    """A request to remove members from a group."""

    group_id: Str = field()
    member_id: Str = field("0-2")
    members: list[MemberIdentity] = field("3+")


class MemberIdentity(Message):
    """A member, by its id or by its instance id (KIP-345)."""

    member_id: Str = field("3+")
    group_instance_id: Str | None = field("3+", nullable="3+", default=None)
    reason: Str | None = field("5+", nullable="5+", ignorable=True, default=None)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse(Message):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field()
    members: list[MemberResponse] = field("3+")


class MemberResponse(Message):
    member_id: Str = field("3+")
    group_instance_id: Str | None = field("3+", nullable="3+")
    error_code: Int16 = field("3+")
