"""CreateAcls and DeleteAcls: ACLs in the metadata. KIP-801.

An ACL that exists already is not created again, and that is no error.
"""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    TOO_MANY_RECORDS,
    ControllerResult,
    CreateAcls,
    DeleteAcls,
    Fault,
)
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.security.acl import (
    ALL_OPERATIONS,
    ANY,
    Acl,
    AclFilter,
    Acls,
    PatternType,
    Permission,
    acl_changes,
    acl_of,
    name_of,
    operation_name,
)
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord

_RESOURCE_TYPES: Final = frozenset(ResourceType)
_OPERATIONS: Final = frozenset({ALL_OPERATIONS, *Operation})
_PATTERN_TYPES: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_PERMISSIONS: Final = frozenset(Permission)


class AclCreator:
    """Creates ACLs. It remembers the ACLs of the last image, because a comparison with all would be slow."""

    def __init__(self) -> None:
        self._seen: Acls = {}
        self._existing: set[Acl] = set()

    def create(
        self, command: CreateAcls, image: MetadataImage, rng: random.Random
    ) -> ControllerResult[list[Fault | None]]:
        """Return a record for each new ACL, and an error or None for each ACL of the command.

        Raises ApiError POLICY_VIOLATION for too many ACLs.
        """
        removed, added = acl_changes(self._seen, image.acls)
        self._existing.difference_update(removed)
        self._existing.update(added)
        self._seen = image.acls
        faults = [acl_fault(acl) for acl in command.acls]
        valid = dict.fromkeys(acl for acl, fault in zip(command.acls, faults, strict=True) if fault is None)
        new = [acl for acl in valid if acl not in self._existing]
        _check_count(len(new))
        return ControllerResult([StoredRecord(_record(acl, rng)) for acl in new], faults)


def delete_acls(command: DeleteAcls, image: MetadataImage) -> ControllerResult[list[list[Acl] | Fault]]:
    """Return a record for each ACL that a filter describes, and the ACLs or the error of each filter.

    Raises ApiError POLICY_VIOLATION for too many ACLs.
    """
    records: dict[bytes, StoredRecord] = {}
    results: list[list[Acl] | Fault] = []
    for acl_filter in command.filters:
        fault = _filter_fault(acl_filter)
        if fault is not None:
            results.append(fault)
            continue
        found = []
        for record in image.acls.values():
            acl = acl_of(record)
            if acl_filter.matches(acl):
                found.append(acl)
                records[record.id] = StoredRecord(RemoveAccessControlEntryRecord(id=record.id))
        results.append(sorted(found))
    _check_count(len(records))
    return ControllerResult(list(records.values()), results)


def _check_count(count: int) -> None:
    if count > MAX_RECORDS_PER_REQUEST:
        raise ApiError(*TOO_MANY_RECORDS)


def _record(acl: Acl, rng: random.Random) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=new_uuid(rng),
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def acl_fault(acl: Acl) -> Fault | None:
    """Return why an ACL cannot be created, or None if it can. The checks are in Apache Kafka's order."""
    text = ""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        text = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        text = "Invalid empty resource name"
    elif acl.resource_type not in _RESOURCE_TYPES:
        text = f"Invalid resourceType {name_of(ResourceType, acl.resource_type)}"
    elif acl.pattern_type not in _PATTERN_TYPES:
        text = f"Invalid patternType {name_of(PatternType, acl.pattern_type)}"
    elif acl.operation not in _OPERATIONS:
        text = f"Invalid operation {operation_name(acl.operation)}"
    elif acl.permission_type not in _PERMISSIONS:
        text = f"Invalid permissionType {name_of(Permission, acl.permission_type)}"
    elif ":" not in acl.principal:
        text = (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    return Fault(ErrorCode.INVALID_REQUEST, text) if text else None


def _filter_fault(acl_filter: AclFilter) -> Fault | None:
    if acl_filter.resource_type not in _RESOURCE_TYPES | {ANY} or acl_filter.pattern_type not in {
        ANY,
        *PatternType,
    }:
        return Fault(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if acl_filter.operation not in _OPERATIONS | {ANY} or acl_filter.permission_type not in _PERMISSIONS | {
        ANY
    }:
        return Fault(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")
    return None
