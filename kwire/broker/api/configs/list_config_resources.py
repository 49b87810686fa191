"""ListConfigResources v0–1: what has configuration. KIP-1000 (v0: client metrics alone), KIP-1142 (types)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kwire.broker.api.context import RequestContext
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_WITH_TYPES: Final = 1


def handle(
    node: Node, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """The resources of the types asked for, of all types where none is named."""
    wanted = set(request.resource_types) or set(NAMES)
    if context.api_version < FIRST_WITH_TYPES:
        wanted = {RESOURCE_CLIENT_METRICS}
    if not wanted <= set(NAMES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
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
"""The resources of each type. Topics and brokers are there without any configuration, too."""
