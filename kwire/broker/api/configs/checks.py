"""Checks of AlterConfigs and IncrementalAlterConfigs on the broker, before the request is forwarded. KIP-226.

The checks, in this order: duplicate resources, duplicate keys, missing values, unknown resource types; for a
broker resource also the broker id, the client's rights, the operations, and whether the keys can be updated
without a restart. The last check reads the files that the new values name, such as key stores. Apache Kafka
checks the rights after the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from kwire.broker.config.definition import parse_integer
from kwire.broker.controller.commands import AlterOperation, ConfigRules, Fault, ResourceChange
from kwire.broker.controller.configs import split_list
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.wire.errors import ErrorCode

ALTERABLE: Final = (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)
_OPERATIONS: Final = tuple(AlterOperation)
_DUPLICATE_RESOURCE: Final = Fault(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def faults(
    resources: Sequence[ResourceChange],
    image: MetadataImage,
    rules: ConfigRules,
    node_id: int,
    authorization_fault: Callable[[ResourceChange], Fault | None],
    *,
    incremental: bool,
) -> list[Fault | None]:
    """Return the error of each resource; None for a valid resource.

    `authorization_fault` returns the error for a broker or its loggers if the client may not change it.
    `incremental` is whether the request is IncrementalAlterConfigs, the only one that accepts loggers.
    """
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return [
        _DUPLICATE_RESOURCE
        if times[resource.resource_type, resource.resource_name] > 1
        else _fault(resource, image, rules, node_id, authorization_fault, incremental=incremental)
        for resource in resources
    ]


def _fault(
    resource: ResourceChange,
    image: MetadataImage,
    rules: ConfigRules,
    node_id: int,
    authorization_fault: Callable[[ResourceChange], Fault | None],
    *,
    incremental: bool,
) -> Fault | None:
    kind = resource.resource_type
    fault = _form_fault(resource)
    if fault is not None:
        return fault
    if kind == RESOURCE_BROKER:
        return (
            _broker_id_fault(resource.resource_name, node_id)
            or authorization_fault(resource)
            or _broker_fault(resource, image, rules, incremental=incremental)
        )
    if incremental and kind == RESOURCE_BROKER_LOGGER:
        return authorization_fault(resource)
    if kind in ALTERABLE:
        return None
    return Fault(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _form_fault(resource: ResourceChange) -> Fault | None:
    """Return the error for duplicate keys or missing values, or None."""
    names = [change.name for change in resource.changes]
    if len(set(names)) < len(names):
        return Fault(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without_value = [
        change.name
        for change in resource.changes
        if change.value is None and change.operation != AlterOperation.DELETE
    ]
    if without_value:
        text = "Null value not supported for : " + ", ".join(without_value)
        return Fault(ErrorCode.INVALID_REQUEST, text)
    return None


def _broker_id_fault(name: str, node_id: int) -> Fault | None:
    """Return the error if a name is neither the id of this broker nor the empty name of the default."""
    if not name:
        return None
    broker_id = parse_integer(name)
    if broker_id is None:
        return Fault(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if broker_id != node_id:
        text = f"Unexpected broker id, expected {node_id}, but received {name}"
        return Fault(ErrorCode.INVALID_REQUEST, text)
    return None


def _broker_fault(
    resource: ResourceChange, image: MetadataImage, rules: ConfigRules, *, incremental: bool
) -> Fault | None:
    """Return the error in the changes of a broker or of the cluster-wide default; None if they are valid."""
    name = resource.resource_name
    for change in resource.changes:
        if change.operation not in _OPERATIONS:
            return Fault(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
    # An invalid value that is already stored is no reason to reject this change.
    stored = image.config(RESOURCE_BROKER, name) if incremental else {}
    values = rules.usable(stored, per_broker=bool(name))
    for change in resource.changes:
        if change.operation == AlterOperation.DELETE:
            values.pop(change.name, None)
            continue
        if change.operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
            verb = AlterOperation(change.operation).name.lower()
            if not rules.is_known_broker_key(change.name):
                return Fault(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
            if not rules.is_list(RESOURCE_BROKER, change.name):
                text = f"Config value {verb} is not allowed for config key: {change.name}"
                return Fault(ErrorCode.INVALID_CONFIG, text)
            before = values.get(change.name)
            if before is None:
                before = rules.default(RESOURCE_BROKER, change.name)
            values[change.name] = _edited(before or "", change.operation, change.value or "")
        else:
            values[change.name] = change.value or ""
    return rules.broker_fault(values, per_broker=bool(name))


def _edited(current: str, operation: int, value: str) -> str:
    """Return the value of a list key after an APPEND or SUBTRACT operation."""
    if operation == AlterOperation.APPEND:
        parts = split_list(current) if current else []
        return ",".join([*parts, *(part for part in split_list(value) if part not in parts)])
    parts = split_list(current)
    for part in split_list(value):
        if part in parts:
            parts.remove(part)
    return ",".join(parts)
