"""DescribeConfigs v1–4: what holds for topics, brokers and groups, and why. KIP-133, KIP-226."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kwire.broker.api.configs.loggers import describe_loggers
from kwire.broker.api.context import RequestContext
from kwire.broker.config.definition import parse_integer
from kwire.broker.config.describe import (
    ConfigEntry,
    ConfigSource,
    Synonym,
    describe_broker,
    describe_brokers_default,
    describe_group,
    describe_topic,
)
from kwire.broker.config.topic import TOPIC_KEYS_BY_NAME
from kwire.broker.controller.client_metrics import shown
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from kwire.broker.metadata.names import name_fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java import hash_map_order, string_hash
from kwire.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

LIST_KIND: Final = 7
INT_KIND: Final = 3
CLIENT_METRICS_KEYS: Final = (
    ("interval.ms", "300000", INT_KIND, "How often clients are to send what they measured, in milliseconds."),
    ("match", "", LIST_KIND, "Which clients are asked: pairs of an attribute and a regular expression."),
    ("metrics", "", LIST_KIND, "Which of their metrics they send, by the beginnings of their names."),
)
"""What can be set for a subscription, with defaults, types and documentation. KIP-714."""

DESCRIBABLE: Final = {
    RESOURCE_TOPIC,
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
}


def handle(node: Node, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """One result a resource; a resource that cannot be described has its error.

    ApiError: INVALID_REQUEST for all of them, where one has no type that there is.
    """
    # Kafka asks first who may see each resource, and gives the request up at a type that it cannot name.
    if any(resource.resource_type not in DESCRIBABLE for resource in request.resources):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    results: list[DescribeConfigsResult] = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            wanted = set(resource.configuration_keys) if resource.configuration_keys else None
            result.configs = [
                _result(entry, request)
                for entry in _entries(node, resource)
                if wanted is None or entry.name in wanted
            ]
        except ApiError as error:
            result.error_code = error.code
            if error.message is not None:
                result.error_message = error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        config_type=entry.kind,
        documentation=entry.documentation if request.include_documentation else None,
    )
    if entry.source is ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG:
        # Loggers have no documentation, and Apache Kafka says so with an empty text, asked or not.
        result.documentation = ""
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
    return result


def _entries(node: Node, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == RESOURCE_TOPIC:
        fault = name_fault(name)
        if fault is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name not in node.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _in_order(describe_topic(node.config, node.image.config(RESOURCE_TOPIC, name)))
    if kind == RESOURCE_BROKER:
        if not name:
            return describe_brokers_default(node.config)
        if _broker_id(name) != node.node_id:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node.node_id} or empty string, but received {name}",
            )
        return describe_broker(node.config)
    if kind == RESOURCE_GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return _in_order(describe_group(node.config, node.image.config(RESOURCE_GROUP, name)))
    if kind == RESOURCE_CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return _client_metrics(node, name)
    return describe_loggers(node.node_id, name)


def _in_order(entries: Iterable[ConfigEntry]) -> list[ConfigEntry]:
    """The entries as the map tells them that Kafka puts them into; before it what is shown only where set."""
    by_name = {entry.name: entry for entry in entries}
    internal = [name for name in by_name if name in TOPIC_KEYS_BY_NAME and TOPIC_KEYS_BY_NAME[name].internal]
    others = [name for name in by_name if name not in internal]
    return [by_name[name] for name in (*internal, *hash_map_order(others, string_hash))]


def _broker_id(name: str) -> int:
    broker_id = parse_integer(name)
    if broker_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return broker_id


def _client_metrics(node: Node, name: str) -> list[ConfigEntry]:
    """What holds for a subscription, whether there is one of this name or not. KIP-714."""
    overrides = node.image.config(RESOURCE_CLIENT_METRICS, name)
    return [
        ConfigEntry(
            name=key,
            value=shown(key, overrides[key]) if key in overrides else default,
            source=ConfigSource.CLIENT_METRICS_CONFIG if key in overrides else ConfigSource.DEFAULT_CONFIG,
            synonyms=[Synonym(key, shown(key, overrides[key]), ConfigSource.CLIENT_METRICS_CONFIG)]
            if key in overrides
            else [],
            kind=kind,
            read_only=False,
            is_sensitive=False,
            documentation=documentation,
        )
        for key, default, kind, documentation in CLIENT_METRICS_KEYS
    ]
