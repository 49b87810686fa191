"""ListConfigResources v0–1. KIP-1000 (client metrics only, v0), KIP-1142 (types, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Message):
    """A request for the resources that have a configuration. No types means all types."""

    resource_types: list[Int8] = field("1+")


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    config_resources: list[ConfigResource] = field()


class ConfigResource(Message):
    resource_name: Str = field()
    resource_type: Int8 = field("1+", ignorable=True, default=16)
