"""DescribeConfigs v1–4. KIP-226 (synonyms, v1), KIP-569 (types and documentation, v3)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = field()
    include_synonyms: Bool = field()
    include_documentation: Bool = field("3+")


class DescribeConfigsResource(Message):
    """A resource, and the keys to describe; null means all keys."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    configuration_keys: list[Str] | None = field(nullable="0+")


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[DescribeConfigsResult] = field()


class DescribeConfigsResult(Message):
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    resource_type: Int8 = field()
    resource_name: Str = field()
    configs: list[DescribeConfigsResourceResult] = field()


class DescribeConfigsResourceResult(Message):
    """A key, its value and the source of the value. The value of a sensitive key is null."""

    name: Str = field()
    value: Str | None = field(nullable="0+")
    read_only: Bool = field()
    config_source: Int8 = field(default=-1)
    is_sensitive: Bool = field()
    synonyms: list[DescribeConfigsSynonym] = field()
    config_type: Int8 = field("3+", ignorable=True)
    documentation: Str | None = field("3+", nullable="3+", ignorable=True)


class DescribeConfigsSynonym(Message):
    """A source of the value. Sources with a higher precedence come first."""

    name: Str = field()
    value: Str | None = field(nullable="0+")
    source: Int8 = field()
