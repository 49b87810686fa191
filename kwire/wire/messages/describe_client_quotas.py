"""DescribeClientQuotas v0–1. KIP-546."""

from __future__ import annotations

from kwire.wire.schema import Bool, Float64, Int8, Int16, Int32, Message, Str, field, message


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = field()
    strict: Bool = field()


class ComponentData(Message):
    """A filter: an entity type, and how to match the entity's name."""

    entity_type: Str = field()
    match_type: Int8 = field()
    match: Str | None = field(nullable="0+")


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse(Message):
    """The quotas of the matching entities."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    entries: list[EntryData] | None = field(nullable="0+")


class EntryData(Message):
    entity: list[EntityData] = field()
    values: list[ValueData] = field()


class EntityData(Message):
    """A component of the entity: its type and name."""

    entity_type: Str = field()
    entity_name: Str | None = field(nullable="0+")


class ValueData(Message):
    key: Str = field()
    value: Float64 = field()
