"""IncrementalAlterConfigs v0–1, AlterConfigs v0–2.

The first sets, deletes, appends to and subtracts from keys (KIP-339), and sets the levels of the broker's
loggers (KIP-412); the other replaces a resource's whole configuration (KIP-133).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kwire.broker.api.configs.loggers import alter_loggers
from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import (
    AlterOperation,
    ConfigChange,
    Fault,
    IncrementalAlterConfigs,
    LegacyAlterConfigs,
    ResourceChange,
)
from kwire.broker.controller.configs import REPEATED, form_fault
from kwire.broker.metadata.image import RESOURCE_BROKER_LOGGER
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from kwire.wire.messages.alter_configs import AlterConfigsResourceResponse as LegacyResourceResponse
from kwire.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def incremental_alter_configs(
    node: Node, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Parked:
    """One outcome a resource, in the order of the request."""
    resources = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]

    # Loggers are the broker's own affair, and no record tells of them.
    times = Counter(
        resource.resource_name for resource in resources if resource.resource_type == RESOURCE_BROKER_LOGGER
    )
    outcomes = {
        resource.resource_name: (
            REPEATED
            if times[resource.resource_name] > 1
            else _alter_loggers(node, resource, request.validate_only)
        )
        for resource in resources
        if resource.resource_type == RESOURCE_BROKER_LOGGER
    }
    forwarded = [resource for resource in resources if resource.resource_type != RESOURCE_BROKER_LOGGER]

    def done(decided: list[Fault | None] | ApiError) -> None:
        if isinstance(decided, ApiError):
            decided = [Fault(decided.code, decided.message)] * len(forwarded)
        left = iter(decided)
        reply = [
            outcomes[resource.resource_name]
            if resource.resource_type == RESOURCE_BROKER_LOGGER
            else next(left)
            for resource in resources
        ]
        context.complete(
            IncrementalAlterConfigsResponse(
                responses=[
                    AlterConfigsResourceResponse(
                        error_code=ErrorCode.NONE if fault is None else fault.code,
                        error_message=None if fault is None else fault.message,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
                    for resource, fault in zip(resources, reply, strict=True)
                ]
            )
        )

    node.controller.submit(IncrementalAlterConfigs(forwarded, request.validate_only), done)
    return PARKED


def _alter_loggers(node: Node, resource: ResourceChange, validate_only: bool) -> Fault | None:
    return form_fault(resource) or alter_loggers(
        node.node_id, resource.resource_name, resource.changes, validate_only=validate_only
    )


def alter_configs(node: Node, context: RequestContext, request: AlterConfigsRequest) -> Parked:
    """One outcome a resource, in the order of the request."""
    resources = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, AlterOperation.SET, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]

    def done(reply: list[Fault | None] | ApiError) -> None:
        if isinstance(reply, ApiError):
            reply = [Fault(reply.code, reply.message)] * len(resources)
        context.complete(
            AlterConfigsResponse(
                responses=[
                    LegacyResourceResponse(
                        error_code=ErrorCode.NONE if fault is None else fault.code,
                        error_message=None if fault is None else fault.message,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
                    for resource, fault in zip(resources, reply, strict=True)
                ]
            )
        )

    node.controller.submit(LegacyAlterConfigs(resources, request.validate_only), done)
    return PARKED
