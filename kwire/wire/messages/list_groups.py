"""ListGroups v0–5. KIP-518 (states, v4), KIP-848 (types, v5)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Message):
    states_filter: list[Str] = field("4+")
    types_filter: list[Str] = field("5+")


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse(Message):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field()
    groups: list[ListedGroup] = field()


class ListedGroup(Message):
    """A group, its type and its state."""

    group_id: Str = field()
    protocol_type: Str = field()
    group_state: Str = field("4+", ignorable=True)
    group_type: Str = field("5+", ignorable=True)
