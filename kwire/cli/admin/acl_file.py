"""Files with ACLs: the JSON output of `kwire acls list`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from kwire.broker.security.acl import ALL_OPERATIONS, WILDCARD, Acl, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.cli.admin.acl_options import check_operation
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import cannot_read

_DEFAULTS: Final = {"pattern_type": "LITERAL", "permission": "ALLOW", "host": WILDCARD}
_FIELDS: Final = (
    "resource_type",
    "resource_name",
    "pattern_type",
    "principal",
    "permission",
    "operation",
    "host",
)
_PATTERN_TYPES: Final = {one.name: int(one) for one in (PatternType.LITERAL, PatternType.PREFIXED)}


def read_acls(path: str) -> list[Acl]:
    """Read the ACLs of a file. Raises CommandError."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON ({error}): see 'kwire acls list --json'") from error
    if not isinstance(rows, list):
        raise CommandError(f"{path} is not a JSON array of ACLs: see 'kwire acls list --json'")
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(_acl(row))
        except (ValueError, CommandError) as error:
            raise CommandError(f"{path}, ACL {number}: {error}") from error
    return list(dict.fromkeys(found))


def _acl(row: object) -> Acl:
    """Return the ACL of a row. Raises ValueError, or UsageError for an operation that does not fit."""
    if not isinstance(row, Mapping):
        raise ValueError("expected an object")
    unknown = [name for name in row if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]}: expected {', '.join(_FIELDS)}")
    values: dict[str, str] = {}
    for name in _FIELDS:
        value = row.get(name, _DEFAULTS.get(name))
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} must be a text that is not empty")
        values[name] = value
    resource_type = _code("resource_type", values, _codes(ResourceType))
    operation = _code("operation", values, {"ALL": ALL_OPERATIONS, **_codes(Operation)})
    check_operation(resource_type, operation)
    return Acl(
        resource_type,
        values["resource_name"],
        _code("pattern_type", values, _PATTERN_TYPES),
        operation,
        values["principal"],
        values["host"],
        _code("permission", values, _codes(Permission)),
    )


def _codes(kind: type[IntEnum]) -> dict[str, int]:
    return {one.name: int(one) for one in kind}


def _code(field: str, values: Mapping[str, str], known: Mapping[str, int]) -> int:
    found = known.get(values[field].upper())
    if found is None:
        raise ValueError(f"{field} {values[field]}: expected one of {', '.join(known)}")
    return found
