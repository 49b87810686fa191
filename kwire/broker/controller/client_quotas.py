"""AlterClientQuotas: set and remove the quotas of clients. KIP-546, KIP-612 (connection creation rate).

An entity with an invalid change gets an error and stays unchanged. The changes of the other entities are
written. If a request names an entity twice, the last result is returned for both.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    TOO_MANY_RECORDS,
    AlterClientQuotas,
    ControllerResult,
    Fault,
)
from kwire.broker.metadata.image import MetadataImage, QuotaEntity
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.security.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.metadata import ClientQuotaRecord, EntityData

MAX_LONG: Final = 2**63 - 1
MAX_INT: Final = 2**31 - 1
FRACTION: Final = 1e-6
"""The largest fraction of a value that must be an integer."""
CLIENT_KEYS: Final[dict[str, tuple[float, str] | None]] = {
    PRODUCER_BYTE_RATE: (MAX_LONG, "LONG"),
    CONSUMER_BYTE_RATE: (MAX_LONG, "LONG"),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""The keys of users and client ids, with the maximum and the type of an integer."""
IP_KEYS: Final[dict[str, tuple[float, str] | None]] = {CONNECTION_CREATION_RATE: (MAX_INT, "INT")}


def alter_client_quotas(
    command: AlterClientQuotas, image: MetadataImage
) -> ControllerResult[dict[QuotaEntity, Fault | None]]:
    """Return the records for the valid entities, and an error or None for each entity.

    Raises ApiError POLICY_VIOLATION for too many changes.
    """
    faults: dict[QuotaEntity, Fault | None] = {}
    records: list[StoredRecord] = []
    for entity, ops in command.entries:
        changes: dict[str, float | None] = {}
        for key, value in ops:
            if key in changes:
                faults[entity] = _invalid(f"Duplicate quota key {key} not updating quota for this entity")
            changes[key] = value
        if entity in faults:
            faults[entity] = _invalid(f"Ignoring duplicate entity {_text(entity)}")
            continue
        faults[entity] = fault = entity_fault(entity) or _value_fault(entity, changes)
        if fault is None:
            records += _records(entity, changes, image)
    if len(records) > MAX_RECORDS_PER_REQUEST:
        raise ApiError(*TOO_MANY_RECORDS)
    return ControllerResult([] if command.validate_only else records, faults)


def _records(
    entity: QuotaEntity, changes: dict[str, float | None], image: MetadataImage
) -> list[StoredRecord]:
    """Return a record for each value that differs from the current one."""
    current = image.quotas.get(entity, {})
    return [
        StoredRecord(
            ClientQuotaRecord(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key,
                value=value or 0.0,
                remove=value is None,
            )
        )
        for key, value in changes.items()
        if current.get(key) != value
    ]


def entity_fault(entity: QuotaEntity) -> Fault | None:
    """Return why an entity cannot have quotas, or None if it can."""
    if not entity:
        return _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            return _invalid(f"Empty {kind} not supported")
    names = dict(entity)
    if IP not in names:
        return None
    if len(names) > 1:
        return _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    address = names[IP]
    if address is not None and not _is_ip(address):
        return _invalid(f"{address} is not a valid IP or resolvable host.")
    return None


def _value_fault(entity: QuotaEntity, changes: dict[str, float | None]) -> Fault | None:
    """Return why a value cannot be set, or None if all can. Any key can be removed."""
    keys = IP_KEYS if IP in dict(entity) else CLIENT_KEYS
    for key, value in changes.items():
        if value is None:
            continue
        if key not in keys:
            return _invalid(f"Invalid configuration key {key}")
        if value <= 0:
            return _invalid(f"Quota {key} must be greater than 0")
        integer = keys[key]
        if integer is None:
            continue
        maximum, kind = integer
        if value > maximum:
            article = "an" if kind == "INT" else "a"
            return _invalid(f"Proposed value for {key} is too large for {article} {kind}.")
        if abs(value % 1.0) > FRACTION:
            return _invalid(f"{key} cannot be a fractional value.")
    return None


def _text(entity: QuotaEntity) -> str:
    """Return the text of Kafka's ClientQuotaEntity."""
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _is_ip(address: str) -> bool:
    """Return whether this is an IP address. Apache Kafka also looks up host names, here in the controller."""
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _invalid(text: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, text)
