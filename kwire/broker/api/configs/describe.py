"""DescribeConfigs v1–4, ListConfigResources v0–1.

DescribeConfigs returns the effective values and their sources (KIP-133, KIP-226). ListConfigResources returns
the resources that have a configuration: client metrics in v0 (KIP-1000), any type from v1 on (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final

from kwire.broker.api.configs.loggers import describe_loggers
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.slices import handle_in_slices
from kwire.broker.config.definition import parse_integer
from kwire.broker.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kwire.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ClusterView

DESCRIBABLE: Final = {
    RESOURCE_TOPIC,
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
}
FIRST_WITH_TYPES: Final = 1
RESOURCES_PER_SLICE: Final = 8
"""The number of resources in a slice. Each topic has about 40 configurations."""


def describe_configs(
    node: ClusterView, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Delayed:
    """Return one result per resource: its configuration or an error.

    If the request names keys, the result has those that exist, in the order of the request.

    Raises ApiError INVALID_REQUEST if a resource has an unknown type.
    """
    # Kafka authorizes all resources first, so an unknown type fails the whole request.
    if any(resource.resource_type not in DESCRIBABLE for resource in request.resources):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return handle_in_slices(context, _describe_configs(node, request))


def _describe_configs(
    node: ClusterView, request: DescribeConfigsRequest
) -> Generator[None, None, DescribeConfigsResponse]:
    results: list[DescribeConfigsResult] = []
    for number, resource in enumerate(request.resources, 1):
        if not number % RESOURCES_PER_SLICE:
            yield
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = {entry.name: entry for entry in _entries(node, resource)}
            wanted = dict.fromkeys(resource.configuration_keys or entries)
            result.configs = [_result(entries[name], request) for name in wanted if name in entries]
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
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
    if entry.source is ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG:
        # As in Apache Kafka, the documentation of a logger is empty, not null, even if it is not requested.
        result.documentation = ""
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
    return result


def _entries(node: ClusterView, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == RESOURCE_TOPIC:
        fault = topic_name_fault(name)
        if fault is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name not in node.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(node.config, node.image.config(RESOURCE_TOPIC, name))
    if kind == RESOURCE_BROKER:
        if not name:
            return describe_cluster_defaults(node.config)
        if _broker_id(name) != node.node_id:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node.node_id} or empty string, but received {name}",
            )
        return describe_broker(node.config)
    if kind == RESOURCE_GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(node.config, node.image.config(RESOURCE_GROUP, name))
    if kind == RESOURCE_CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics(node.image.config(RESOURCE_CLIENT_METRICS, name))
    return describe_loggers(node.loggers(), node.node_id, name)


def _broker_id(name: str) -> int:
    broker_id = parse_integer(name)
    if broker_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return broker_id


def list_config_resources(
    node: ClusterView, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Return the resources of the requested types. An empty list means all types.

    Raises ApiError UNSUPPORTED_VERSION if a type is unknown.
    """
    wanted = set(request.resource_types) or set(NAMES)
    if context.api_version < FIRST_WITH_TYPES:
        wanted = {RESOURCE_CLIENT_METRICS}
    if not wanted <= set(NAMES):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, names in NAMES.items()
            if kind in wanted
            for name in names(node.image)
        ]
    )


def _with_configs(kind: int) -> Callable[[MetadataImage], Iterable[str]]:
    return lambda image: [name for resource, name in image.configs if resource == kind]


def _brokers(image: MetadataImage) -> Iterable[str]:
    return [str(broker.broker_id) for broker in image.brokers.values() if not broker.fenced]


NAMES: Final[dict[int, Callable[[MetadataImage], Iterable[str]]]] = {
    RESOURCE_GROUP: _with_configs(RESOURCE_GROUP),
    RESOURCE_CLIENT_METRICS: _with_configs(RESOURCE_CLIENT_METRICS),
    RESOURCE_BROKER_LOGGER: _brokers,
    RESOURCE_BROKER: _brokers,
    RESOURCE_TOPIC: lambda image: image.topics,
}
"""By resource type, the functions that return the names of its resources.

These are all topics, all brokers that are not fenced, and the groups and client metrics with a configuration.
"""
