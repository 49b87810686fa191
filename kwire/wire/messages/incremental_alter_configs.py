"""IncrementalAlterConfigs v0–1. KIP-339."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Message):
    """Set, delete, append to or subtract from configuration values."""

    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = field()


class AlterConfigsResource(Message):
    """What to configure, and what to change of it: the rest stays."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    configs: list[AlterableConfig] = field()


class AlterableConfig(Message):
    """A key, and whether to set it, delete it, or add to or take from its list."""

    name: Str = field()
    config_operation: Int8 = field()
    value: Str | None = field(nullable="0+")


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Message):
    """What became of each resource."""

    throttle_time_ms: Int32 = field()
    responses: list[AlterConfigsResourceResponse] = field()


class AlterConfigsResourceResponse(Message):
    """Whether the resource was changed."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    resource_type: Int8 = field()
    resource_name: Str = field()
