"""IncrementalAlterConfigs v0–1, AlterConfigs v0–2.

IncrementalAlterConfigs sets, deletes, appends to and subtracts from keys (KIP-339), and sets logger levels
(KIP-412). AlterConfigs replaces the complete configuration of a resource (KIP-133). A broker checks the
request as far as it can and sets the levels of its own loggers, which are not in the metadata log. It
forwards all other changes to the active controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.configs.checks import ALTERABLE, faults
from kwire.broker.api.configs.loggers import alter_loggers
from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.error_responses import NO_FAULT, ItemResults, with_results
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
from kwire.broker.security.authorizer import Operation
from kwire.wire.errors import DEFAULT_MESSAGES, ErrorCode
from kwire.wire.messages import alter_configs as legacy
from kwire.wire.messages import incremental_alter_configs as incremental
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import (
        BrokerRole,
        ClusterView,
        ControllerRequestContext,
        ControllerRole,
    )

Request = incremental.IncrementalAlterConfigsRequest | legacy.AlterConfigsRequest
DUPLICATE_RESOURCE = Fault(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
LEGACY_LOGGER = Fault(ErrorCode.INVALID_REQUEST, "Unexpected resource type BROKER_LOGGER.")


def alter_configs(
    node: BrokerRole, context: RequestContext, request: Request, forward: Forward
) -> Message | Delayed:
    """Alter configurations on a broker. Return one result per resource.

    Forward the resources that this broker neither rejects nor alters.
    """
    changes = _changes(request)
    rules = BrokerConfigRules(node.config)
    found = faults(
        changes,
        node.image,
        rules,
        node.node_id,
        partial(_authorization_fault, node, context),
        incremental=_is_incremental(request),
    )
    results = ItemResults(context.header.api_key, context.api_version)
    for at, (change, fault) in enumerate(zip(changes, found, strict=True)):
        if fault is None and change.resource_type == RESOURCE_BROKER_LOGGER:
            fault = _alter_loggers(node, change, request) or NO_FAULT
        if fault is not None:
            results.add(at, request.resources[at], fault)
    rest = results.rest_of(request)
    if not rest.resources:
        response = _response(context, rest, [])
        results.add_to(response)
        return response
    return forward(PartialRequest(context, rest, results), rest)


def _authorization_fault(node: BrokerRole, context: RequestContext, change: ResourceChange) -> Fault | None:
    """Return the error if the client may not change this broker. The controller authorizes other changes.

    The controller authorizes an allowed change of a configuration again. As in Apache Kafka, the audit log
    has only the check there.
    """
    is_logger = change.resource_type == RESOURCE_BROKER_LOGGER
    if not is_logger and node.gate.allows(context, Operation.ALTER_CONFIGS, references=0):
        return None
    if node.gate.allows(context, Operation.ALTER_CONFIGS):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    # As in Apache Kafka, the error of a logger has no message.
    return Fault(code, None if is_logger else DEFAULT_MESSAGES[code])


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
        else _type_fault(change.resource_type, incremental=_is_incremental(request))
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

    def respond(faults: list[Fault | None]) -> Message:
        for at, fault in zip(left, faults, strict=True):
            outcomes[at] = fault
        return _response(context, request, outcomes)

    command = IncrementalAlterConfigs if _is_incremental(request) else LegacyAlterConfigs
    return submit(node, context, command([changes[at] for at in left], request.validate_only), respond)


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


def _type_fault(kind: int, *, incremental: bool) -> Fault | None:
    if kind == RESOURCE_BROKER_LOGGER:
        return None if incremental else LEGACY_LOGGER
    if kind in ALTERABLE:
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


def _response(
    context: ControllerRequestContext, request: Request, outcomes: Sequence[Fault | None]
) -> Message:
    api_key = context.header.api_key
    return with_results(api_key, API_VERSIONS[api_key].response_class(), request, outcomes)
