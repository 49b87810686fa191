"""ACLs: who may perform an operation on the resources that a pattern describes. KIP-11, KIP-290."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import AccessControlEntryRecord

WILDCARD: Final = "*"
"""The resource name, as a literal, and the host that match all."""
EVERYONE: Final = "User:*"
"""The principal that matches all principals."""
ANY: Final = 1
"""The code that matches all values in each enum field of a filter."""
ALL_OPERATIONS: Final = 2
"""The operation of an ACL that applies to all operations."""


class PatternType(IntEnum):
    """The types of patterns, with the codes of Kafka's PatternType."""

    MATCH = 2
    """All patterns that apply to a name. Only filters use it."""
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The permissions of ACLs, with the codes of Kafka's AclPermissionType."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """An ACL. Its fields are in the order in which Apache Kafka examines ACLs of one resource name."""

    resource_type: int
    resource_name: str
    pattern_type: int
    operation: int
    principal: str
    host: str
    permission_type: int

    def __str__(self) -> str:
        """Return Apache Kafka's text, which its audit log has."""
        return (
            f"StandardAcl[resourceType={name_of(ResourceType, self.resource_type)}, "
            f"resourceName={self.resource_name}, patternType={name_of(PatternType, self.pattern_type)}, "
            f"principal={self.principal}, host={self.host}, operation={operation_name(self.operation)}, "
            f"permissionType={name_of(Permission, self.permission_type)}]"
        )


class AclFilter(NamedTuple):
    """A description of ACLs. A code ANY, and None for a text, match all."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    operation: int
    principal: str | None
    host: str | None
    permission_type: int

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter describes an ACL."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.operation in (ANY, acl.operation)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.permission_type in (ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (ANY, PatternType.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


Acls = Mapping[Uuid, AccessControlEntryRecord]
"""The ACLs of a metadata image by id."""


def acl_changes(before: Acls, after: Acls) -> tuple[list[Acl], list[Acl]]:
    """Return the ACLs that were removed from `before`, and those that were added, to get `after`."""
    if before is after:
        return [], []
    removed = [acl_of(before[one]) for one in before.keys() - after.keys()]
    return removed, [acl_of(after[one]) for one in after.keys() - before.keys()]


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """Return the ACL of a metadata record."""
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.operation,
        record.principal,
        record.host,
        record.permission_type,
    )


def acl_host(address: str) -> str:
    """Return the address of a client in Java's form, which ACLs have: `::1` is `0:0:0:0:0:0:0:1`."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    found = IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))


def name_of(kind: type[IntEnum], code: int) -> str:
    """Return the name of a code; UNKNOWN for a code of a newer release, as Apache Kafka does."""
    try:
        return kind(code).name
    except ValueError:
        return "ANY" if code == ANY else "UNKNOWN"


def operation_name(code: int) -> str:
    """Return the name of an operation, ALL included."""
    return "ALL" if code == ALL_OPERATIONS else name_of(Operation, code)
