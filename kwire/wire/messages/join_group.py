"""JoinGroup v0–9.

KIP-394 (required member id, v4), KIP-345 (instance id, v5), KIP-559 (protocol type, v7), KIP-800 (v8).
"""

from __future__ import annotations

from kwire.wire.schema import Bool, Bytes, Int16, Int32, Message, Str, field, message


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Message):
    """A request to join a group, or to join its next generation."""

    group_id: Str = field()
    session_timeout_ms: Int32 = field()
    rebalance_timeout_ms: Int32 = field("1+", ignorable=True, default=-1)
    member_id: Str = field()
    group_instance_id: Str | None = field("5+", nullable="5+", default=None)
    protocol_type: Str = field()
    protocols: list[JoinGroupRequestProtocol] = field()
    reason: Str | None = field("8+", nullable="8+", ignorable=True, default=None)


class JoinGroupRequestProtocol(Message):
    """An assignor that the member supports, with its subscription."""

    name: Str = field()
    metadata: Bytes = field()


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse(Message):
    """The generation and its leader. The leader also gets all members."""

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    error_code: Int16 = field()
    generation_id: Int32 = field(default=-1)
    protocol_type: Str | None = field("7+", nullable="7+", ignorable=True, default=None)
    protocol_name: Str | None = field(nullable="7+")
    leader: Str = field()
    skip_assignment: Bool = field("9+")
    member_id: Str = field()
    members: list[JoinGroupResponseMember] = field()


class JoinGroupResponseMember(Message):
    """A member and its subscription, which only the leader gets."""

    member_id: Str = field()
    group_instance_id: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
    metadata: Bytes = field()
