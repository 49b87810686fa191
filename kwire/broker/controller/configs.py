"""IncrementalAlterConfigs and AlterConfigs: requests become ConfigRecords. KIP-226, KIP-339.

Either all changes of one resource are made, or none of them. An error of one resource does not affect the
other resources. If the request needs too many records, every resource is refused. The broker that received
the request has already checked the request's form and the values of broker configs (`broker.api.configs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.broker.config.definition import parse_integer
from kwire.broker.controller.client_metrics import subscription_fault
from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    TOO_MANY_RECORDS,
    AlterOperation,
    ConfigRules,
    ControllerResult,
    Fault,
    IncrementalAlterConfigs,
    LegacyAlterConfigs,
    ResourceChange,
)
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.metadata import ClearElrRecord, ConfigRecord

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"

MAX_VALUE_BYTES: Final = 32767
"""The maximum size of a config value in UTF-8. An APPEND that would exceed it is refused."""


def incremental_alter_configs(
    command: IncrementalAlterConfigs, image: MetadataImage, rules: ConfigRules
) -> ControllerResult[list[Fault | None]]:
    """Change single keys with SET and DELETE, or change lists with APPEND and SUBTRACT."""
    return _alter(command.resources, command.validate_only, image, rules, incremental=True)


def legacy_alter_configs(
    command: LegacyAlterConfigs, image: MetadataImage, rules: ConfigRules
) -> ControllerResult[list[Fault | None]]:
    """Replace the complete configuration of each resource.

    Keys that the request does not name are reset to their defaults.
    """
    return _alter(command.resources, command.validate_only, image, rules, incremental=False)


def _alter(
    resources: Sequence[ResourceChange],
    validate_only: bool,
    image: MetadataImage,
    rules: ConfigRules,
    *,
    incremental: bool,
) -> ControllerResult[list[Fault | None]]:
    decide = alter_resource if incremental else _replace_resource
    outcomes: list[Fault | None] = []
    records: list[StoredRecord] = []
    try:
        for resource in resources:
            outcome = decide(resource, image, rules)
            if isinstance(outcome, Fault):
                outcomes.append(outcome)
                continue
            outcomes.append(None)
            records.extend(outcome)
            if len(records) > MAX_RECORDS_PER_REQUEST:
                raise ApiError(*TOO_MANY_RECORDS)
    except ApiError as error:
        return ControllerResult([], [Fault(error.code, error.message)] * len(resources))
    return ControllerResult([] if validate_only else records, outcomes)


def alter_resource(
    resource: ResourceChange, image: MetadataImage, rules: ConfigRules, *, is_new: bool = False
) -> Fault | list[StoredRecord]:
    """Return the records for one resource's changes, or why a change is invalid.

    `is_new`: the same request creates the resource, so the resource need not exist in `image`.
    """
    resource_type, resource_name, changes = resource
    before = {} if is_new else image.config(resource_type, resource_name)
    after = dict(before)
    records: list[StoredRecord] = []
    for change in {change.name: change for change in changes}.values():
        old_value = before.get(change.name)
        new_value: str | None
        if change.operation == AlterOperation.SET:
            new_value = change.value
        elif change.operation == AlterOperation.DELETE:
            new_value = None
        elif change.operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
            if not rules.is_list(resource_type, change.name):
                verb = AlterOperation(change.operation).name
                text = f"Can't {verb} to key {change.name} because its type is not LIST."
                return Fault(ErrorCode.INVALID_CONFIG, text)
            current = rules.default(resource_type, change.name) if old_value is None else old_value
            new_value = _edit_list(current, change.operation, change.value or "")
        else:
            return Fault(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
        # Unchanged broker configs are written, too, because the record makes brokers reload their key stores.
        if new_value != old_value or resource_type == RESOURCE_BROKER:
            records.extend(_config_records(image, resource_type, resource_name, change.name, new_value))
        if new_value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = new_value
    return _validate(resource, image, rules, before, after, records, is_new=is_new)


def _replace_resource(
    resource: ResourceChange, image: MetadataImage, rules: ConfigRules
) -> Fault | list[StoredRecord]:
    resource_type, resource_name, changes = resource
    before = image.config(resource_type, resource_name)
    after = {change.name: change.value or "" for change in changes}
    records: list[StoredRecord] = []
    for name, value in after.items():
        if before.get(name) != value or resource_type == RESOURCE_BROKER:
            records.extend(_config_records(image, resource_type, resource_name, name, value))
    for name in before:
        if name not in after:
            records.extend(_config_records(image, resource_type, resource_name, name, None))
    return _validate(resource, image, rules, before, after, records, is_new=False)


def _validate(
    resource: ResourceChange,
    image: MetadataImage,
    rules: ConfigRules,
    before: object,
    after: dict[str, str],
    records: list[StoredRecord],
    *,
    is_new: bool,
) -> Fault | list[StoredRecord]:
    fault = _records_fault(resource, image, records)
    if fault is None:
        fault = _values_fault(resource, rules, after)
    if fault is None and not is_new:
        fault = _existence_fault(resource, image)
    return records if fault is None else fault


def _values_fault(resource: ResourceChange, rules: ConfigRules, values: dict[str, str]) -> Fault | None:
    resource_type, name, _ = resource
    text: str | None = None
    if resource_type == RESOURCE_TOPIC:
        if not name:
            return Fault(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        text = topic_name_fault(name)
        if text is not None:
            return Fault(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        text = rules.topic_fault(values)
    elif resource_type == RESOURCE_GROUP:
        if not name:
            return Fault(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        text = rules.group_fault(values)
    elif resource_type == RESOURCE_CLIENT_METRICS:
        if not name:
            return Fault(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        return subscription_fault(values)
    elif resource_type == RESOURCE_BROKER and name:
        # The broker that received the request has checked the values. The controller only checks the broker
        # id.
        broker_id = parse_integer(name)
        if broker_id is None:
            return Fault(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
        if broker_id < 0:
            return Fault(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    return None if text is None else Fault(ErrorCode.INVALID_CONFIG, text)


def _existence_fault(resource: ResourceChange, image: MetadataImage) -> Fault | None:
    resource_type, name, _ = resource
    if resource_type == RESOURCE_TOPIC and name not in image.topics:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if resource_type == RESOURCE_BROKER and name:
        node_id = int(name)
        if node_id not in image.brokers and node_id not in image.controllers:
            return Fault(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node_id} found.")
    return None


def _records_fault(
    resource: ResourceChange, image: MetadataImage, records: Sequence[StoredRecord]
) -> Fault | None:
    """Return why a record is not allowed, or None: its value is too long, or it conflicts with ELR (KIP-966).

    ELR needs the same min.insync.replicas on all brokers, so single brokers must not override it.
    """
    is_elr_setting = resource.resource_type == RESOURCE_BROKER and image.elr_enabled
    for record, _ in records:
        if not isinstance(record, ConfigRecord):
            continue
        if is_elr_setting and record.name == MIN_INSYNC_REPLICAS:
            if resource.resource_name:
                text = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
                return Fault(ErrorCode.INVALID_CONFIG, text)
            if record.value is None:
                text = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
                return Fault(ErrorCode.INVALID_CONFIG, text)
        if record.value is not None and len(record.value.encode()) > MAX_VALUE_BYTES:
            text = (
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_BYTES} bytes."
            )
            return Fault(ErrorCode.INVALID_CONFIG, text)
    return None


def _config_records(
    image: MetadataImage, resource_type: int, resource_name: str, name: str, value: str | None
) -> list[StoredRecord]:
    records = [
        StoredRecord(
            ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
        )
    ]
    if name == MIN_INSYNC_REPLICAS and image.elr_enabled:
        # KIP-966: the ELR is based on the old value, so clear the ELR.
        if resource_type == RESOURCE_TOPIC:
            records.append(StoredRecord(ClearElrRecord(topic_name=resource_name)))
        elif resource_type == RESOURCE_BROKER and not resource_name:
            records.append(StoredRecord(ClearElrRecord(topic_name="")))
    return records


def _edit_list(current: str | None, operation: int, value: str) -> str:
    """Return the list after APPEND or SUBTRACT. Empty items of `current` are dropped."""
    parts = [part for part in (current or "").split(",") if part]
    for part in split_list(value):
        if operation == AlterOperation.APPEND:
            if part not in parts:
                parts.append(part)
        elif part in parts:
            parts.remove(part)
    return ",".join(parts)


def split_list(text: str) -> list[str]:
    """Split at commas as Java's String.split does: drop empty items at the end, but keep an empty text."""
    if not text:
        return [""]
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()
    return parts
