"""IncrementalAlterConfigs v0–1, AlterConfigs v0–2.

IncrementalAlterConfigs sets, deletes, appends to and subtracts from keys (KIP-339), and sets logger levels
(KIP-412). AlterConfigs replaces the complete configuration of a resource (KIP-133). A broker checks the
request as far as it can and sets the levels of its own loggers, which are not in the metadata log. It
forwards all other changes to the active controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kwire.broker.api.configs.checks import ALTERABLE, faults
from kwire.broker.api.configs.loggers import alter_loggers
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.forwarding import Forward, PartialRequest
from kwire.broker.controller.commands import (
    AlterOperation,
    ConfigChange,
    Fault,
    IncrementalAlterConfigs,
    LegacyAlterConfigs,
    ResourceChange,
)
from kwire.broker.controller.config_rules import BrokerConfigRules
from kwire.broker.metadata.image import RESOURCE_BROKER_LOGGER
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages import alter_configs as legacy
from kwire.wire.messages import incremental_alter_configs as incremental

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import (
        BrokerRole,
        ClusterView,
        ControllerRequestContext,
        ControllerRole,
    )

Request = incremental.IncrementalAlterConfigsRequest | legacy.AlterConfigsRequest
Response = incremental.IncrementalAlterConfigsResponse | legacy.AlterConfigsResponse
DUPLICATE_RESOURCE = Fault(ErrorCode.INVALID_REQUEST, "Duplicate resource.")


def alter_configs(
    node: BrokerRole, context: RequestContext, request: Request, forward: Forward
) -> Response | Delayed:
    """Alter configurations on a broker. Return one result per resource.

    Forward the resources that this broker neither rejects nor alters.
    """
    changes = _changes(request)
    rules = BrokerConfigRules(node.config)
    found = faults(changes, node.image, rules, node.node_id, incremental=_is_incremental(request))
    own: dict[int, Fault | None] = {at: fault for at, fault in enumerate(found) if fault is not None}
    for at, change in enumerate(changes):
        if at not in own and change.resource_type == RESOURCE_BROKER_LOGGER:
            own[at] = _alter_loggers(node, change, request)
    left = [at for at in range(len(changes)) if at not in own]
    if not left:
        return _response(request, [own[at] for at in range(len(changes))])
    if not own:
        return forward(context, request)
    rest = type(request)(validate_only=request.validate_only)
    rest.resources = [request.resources[at] for at in left]  # type: ignore[assignment]

    def on_response(response: Response) -> None:
        results = {(one.resource_type, one.resource_name): one for one in response.responses}
        for at in left:
            one = results[changes[at].resource_type, changes[at].resource_name]
            own[at] = Fault(ErrorCode(one.error_code), one.error_message) if one.error_code else None
        context.complete(_response(request, [own[at] for at in range(len(changes))]))

    return forward(PartialRequest(context, rest, on_response), rest)


def alter_configs_on_controller(
    node: ControllerRole, context: ControllerRequestContext, request: Request
) -> Delayed:
    """Alter configurations on the controller. Return one result per resource.

    The request was forwarded by a broker or sent to a controller listener.
    """
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    # A resource that occurs several times gets one result, an error.
    named = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    request.resources = list(named.values())  # type: ignore[assignment]
    changes = _changes(request)
    outcomes = [
        DUPLICATE_RESOURCE
        if times[change.resource_type, change.resource_name] > 1
        else _type_fault(change.resource_type)
        for change in changes
    ]
    for at, change in enumerate(changes):
        if outcomes[at] is None and change.resource_type == RESOURCE_BROKER_LOGGER:
            outcomes[at] = _alter_loggers(node, change, request)
    left = [
        at
        for at, change in enumerate(changes)
        if outcomes[at] is None and change.resource_type != RESOURCE_BROKER_LOGGER
    ]

    def done(reply: list[Fault | None] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
            return
        for at, fault in zip(left, reply, strict=True):
            outcomes[at] = fault
        context.complete(_response(request, outcomes))

    command = IncrementalAlterConfigs if _is_incremental(request) else LegacyAlterConfigs
    node.own_controller.submit(command([changes[at] for at in left], request.validate_only), done)
    return DELAYED


def _is_incremental(request: Request) -> bool:
    return isinstance(request, incremental.IncrementalAlterConfigsRequest)


def _changes(request: Request) -> list[ResourceChange]:
    """Return the changes of each resource. Changes of AlterConfigs have the operation SET."""
    return [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [
                ConfigChange(
                    config.name, getattr(config, "config_operation", AlterOperation.SET), config.value
                )
                for config in resource.configs
            ],
        )
        for resource in request.resources
    ]


def _type_fault(kind: int) -> Fault | None:
    if kind in ALTERABLE or kind == RESOURCE_BROKER_LOGGER:
        return None
    return Fault(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {kind}.")


def _alter_loggers(node: ClusterView, change: ResourceChange, request: Request) -> Fault | None:
    return alter_loggers(
        node.loggers(),
        node.node_id,
        change.resource_name,
        change.changes,
        validate_only=request.validate_only,
    )


def _response(request: Request, outcomes: Sequence[Fault | None]) -> Response:
    messages: Any = incremental if _is_incremental(request) else legacy
    entries = [
        messages.AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE if fault is None else fault.code,
            error_message=None if fault is None else fault.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, fault in zip(list[Any](request.resources), outcomes, strict=True)
    ]
    if _is_incremental(request):
        return incremental.IncrementalAlterConfigsResponse(responses=entries)
    return legacy.AlterConfigsResponse(responses=entries)
