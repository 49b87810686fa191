"""ListConfigResources v0–1. KIP-1000 (v0: client metrics alone), KIP-1142 (types, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Message):
    """List what has configuration; no types means every type."""

    resource_types: list[Int8] = field("1+")


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Message):
    """The resources found."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    config_resources: list[ConfigResource] = field()


class ConfigResource(Message):
    """One resource."""

    resource_name: Str = field()
    resource_type: Int8 = field("1+", ignorable=True, default=16)
