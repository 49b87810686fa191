"""IncrementalAlterConfigs v0–1. KIP-339."""

from __future__ import annotations

from kwire.wire.messages.alter_configs import AlterConfigsResourceResponse as AlterConfigsResourceResponse
from kwire.wire.schema import Bool, Int8, Int32, Message, Str, field, message


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = field()


class AlterConfigsResource(Message):
    """A resource and the changes to its configuration. Other keys keep their values."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    configs: list[AlterableConfig] = field()


class AlterableConfig(Message):
    """A key and the operation on its value: set, delete, append or subtract."""

    name: Str = field()
    config_operation: Int8 = field()
    value: Str | None = field(nullable="0+")


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = field()
    responses: list[AlterConfigsResourceResponse] = field()
