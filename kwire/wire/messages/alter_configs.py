"""AlterConfigs v0–2. KIP-133: replaces all configuration of a resource."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Message):
    """A request to replace the configurations of resources."""

    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = field()


class AlterConfigsResource(Message):
    """A resource and its complete new configuration. All other keys return to their defaults."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    configs: list[AlterableConfig] = field()


class AlterableConfig(Message):
    name: Str = field()
    value: Str | None = field(nullable="0+")


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = field()
    responses: list[AlterConfigsResourceResponse] = field()


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    resource_type: Int8 = field()
    resource_name: Str = field()
