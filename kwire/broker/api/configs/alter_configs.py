"""AlterConfigs v0–2: replaces a resource's whole configuration. KIP-133."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import (
    AlterOperation,
    ConfigChange,
    Fault,
    LegacyAlterConfigs,
    ResourceChange,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, context: RequestContext, request: AlterConfigsRequest) -> Parked:
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

    node.controller.submit(LegacyAlterConfigs(resources, request.validate_only), done)
    return PARKED
