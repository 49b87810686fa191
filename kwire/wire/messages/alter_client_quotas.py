"""AlterClientQuotas v0–1. KIP-546."""

from __future__ import annotations

from kwire.wire.schema import Bool, Float64, Int16, Int32, Message, Str, field, message


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest(Message):
    entries: list[AlterEntryData] = field()
    validate_only: Bool = field()


class AlterEntryData(Message):
    """Changes of the quotas of one entity."""

    entity: list[EntityData] = field()
    ops: list[OpData] = field()


class EntityData(Message):
    """A component of an entity: its type and name. The name None is the default."""

    entity_type: Str = field()
    entity_name: Str | None = field(nullable="0+")


class OpData(Message):
    key: Str = field()
    value: Float64 = field()
    remove: Bool = field()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse(Message):
    throttle_time_ms: Int32 = field()
    entries: list[AlteredEntryData] = field()


class AlteredEntryData(Message):
    """The result for one entity."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    entity: list[EntityData] = field()
