"""A writer's schema in the form in which fastavro reads it, so that the branch of a union is not lost.

fastavro returns a value of a union without the branch that was written: an int and a long are both `int`, and
two records may have equal names in different namespaces. So every branch of a union of several types becomes
a record with one field. Its encoding is that of the field, and fastavro returns the name of the record.
Logical types are omitted, because they are applied to complete columns later. Enums are read as their index.
"""

from __future__ import annotations

from typing import Any, Final

import fastavro

from kwire.pipeline.values.avro_schema import ARRAY, ENUM, FIXED, MAP, RECORD, UNION, AvroType

BRANCH_VALUE: Final = "value"
"""The field of the record that represents a branch."""
OPTIONS: Final[dict[str, Any]] = {"return_named_type": True, "return_named_type_override": True}
"""fastavro's options for reading values, with which it returns names for unions of several named types."""


def branch_name(position: int) -> str:
    """Return the prefix of the names of all records that represent the branch at this position of a union."""
    return f"Branch{position}"


def branch_position(name: str) -> int:
    """Return the position of a branch from the name of its record."""
    return int(name.partition("_")[0].removeprefix("Branch"))


def has_several_types(union: AvroType) -> bool:
    """Return whether a union has several branches besides null, which are then read as records."""
    return sum(branch.kind != "null" for branch in union.items) > 1


def stored_schema(writer: AvroType) -> Any:
    """Return the schema with which fastavro reads values of a writer's schema."""
    return fastavro.parse_schema(_Stored().schema(writer))


class _Stored:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """The names of the types that are already defined, by their identity."""
        self._branches = 0

    def schema(self, type_: AvroType) -> Any:
        kind = type_.kind
        if kind == UNION:
            return self._union(type_)
        if kind == ENUM:
            return "int"
        if kind == ARRAY:
            return {"type": kind, "items": self.schema(type_.item)}
        if kind == MAP:
            return {"type": kind, "values": self.schema(type_.item)}
        if kind not in (RECORD, FIXED):
            return kind
        known = self._names.get(id(type_))
        if known is not None:
            return known
        name = self._names[id(type_)] = f"Type{len(self._names)}"
        if kind == FIXED:
            return {"type": kind, "name": name, "size": type_.size}
        fields = [{"name": field.name, "type": self.schema(field.type)} for field in type_.fields]
        return {"type": kind, "name": name, "fields": fields}

    def _union(self, union: AvroType) -> list[Any]:
        if not has_several_types(union):
            return [self.schema(branch) for branch in union.items]
        return [
            "null" if branch.kind == "null" else self._branch(position, branch)
            for position, branch in enumerate(union.items)
        ]

    def _branch(self, position: int, branch: AvroType) -> Any:
        self._branches += 1
        name = f"{branch_name(position)}_{self._branches}"
        return {
            "type": RECORD,
            "name": name,
            "fields": [{"name": BRANCH_VALUE, "type": self.schema(branch)}],
        }
