"""DeleteGroups v0–2. KIP-229."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest(Message):
    groups_names: list[Str] = field()


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[DeletableGroupResult] = field()


class DeletableGroupResult(Message):
    group_id: Str = field()
    error_code: Int16 = field()
