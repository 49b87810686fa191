"""DescribeGroups v0–6.

KIP-430 (authorized operations, v3), KIP-345 (instance id, v4), KIP-1043 (errors for unknown groups, v6).
"""

from __future__ import annotations

from kwire.wire.schema import Bool, Bytes, Int16, Int32, Message, Str, field, message


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Message):
    groups: list[Str] = field()
    include_authorized_operations: Bool = field("3+")


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse(Message):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    groups: list[DescribedGroup] = field()


class DescribedGroup(Message):
    error_code: Int16 = field()
    error_message: Str | None = field("6+", nullable="6+", default=None)
    group_id: Str = field()
    group_state: Str = field()
    protocol_type: Str = field()
    protocol_data: Str = field()
    members: list[DescribedGroupMember] = field()
    authorized_operations: Int32 = field("3+", default=-2147483648)


class DescribedGroupMember(Message):
    """A member, its subscription and its assignment."""

    member_id: Str = field()
    group_instance_id: Str | None = field("4+", nullable="4+", ignorable=True, default=None)
    client_id: Str = field()
    client_host: Str = field()
    member_metadata: Bytes = field()
    member_assignment: Bytes = field()
