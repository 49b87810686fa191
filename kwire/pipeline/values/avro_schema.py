"""Avro schemas as objects. References to named types are references to the same object.

https://avro.apache.org/docs/1.12.0/specification/#schema-declaration
A writer's schema comes from the registry, and a job must not end because of it. So every fault of a schema is
a DecodeError. Names and default values of a writer's schema are not checked, because they do not change how
its values are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.pipeline.values.columns import DecodeError
from kwire.wire.avro_logical import LogicalType, logical_type_of

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")
RECORD, ENUM, FIXED = "record", "enum", "fixed"
NAMED: Final = {"record": RECORD, "error": RECORD, "enum": ENUM, "fixed": FIXED}
ARRAY, MAP, UNION = "array", "map", "union"
NO_DEFAULT: Final = object()
WIDER: Final = [({"int", "long"}, "long"), ({"float", "double"}, "double")]
"""The types whose union is a column of one type."""
MAX_SIZE: Final = (1 << 31) - 1


@dataclass(eq=False, slots=True)
class AvroType:
    """A type of a schema. Only the attributes of its `kind` are set."""

    kind: str
    """A primitive type, or `record`, `enum`, `fixed`, `array`, `map` or `union`."""
    logical: LogicalType | None = None
    name: str = ""
    """The name with the namespace."""
    aliases: tuple[str, ...] = ()
    """Other names, with namespaces."""
    fields: list[Field] = field(default_factory=list)
    items: list[AvroType] = field(default_factory=list)
    """The type of the items of an array or of the values of a map, or the branches of a union."""
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0

    @property
    def unqualified(self) -> str:
        """The name without the namespace."""
        return self.name.rpartition(".")[2]

    @property
    def item(self) -> AvroType:
        return self.items[0]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record. `default` is a JSON value, or NO_DEFAULT."""

    name: str
    type: AvroType
    aliases: tuple[str, ...]
    default: Any


class AvroSchema:
    """A schema. `type` is its type, and `texts` its JSON, preceded by the schemas that it refers to."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Parse a schema. Raises DecodeError.

        The last text is the schema. The texts before it are the schemas that it refers to.
        """
        self.texts = tuple(texts)
        parser = _Parser()
        try:
            for text in texts:
                self.type = parser.parse(json.loads(text), "")
        except DecodeError as fault:
            raise DecodeError(f"not a valid Avro schema: {fault}") from None
        except ValueError as error:
            raise DecodeError(f"not a valid Avro schema: {error}") from None
        except RecursionError:
            raise DecodeError("not a valid Avro schema: it is nested too deeply") from None


def members_of(union: AvroType) -> list[AvroType]:
    """Return the branches of a union that are members of the column's struct, in order.

    The list is empty if the column is not a struct: the union has at most one branch besides null, or its
    branches are numbers that have a common type.
    """
    others = [branch for branch in union.items if branch.kind != "null"]
    return [] if len(others) < 2 or common_number(others) else others


def common_number(branches: Sequence[AvroType]) -> str | None:
    """Return the wider type of two numeric branches without logical types, or None for other branches."""
    if any(branch.logical for branch in branches):
        return None
    kinds = {branch.kind for branch in branches}
    return next((wide for narrow, wide in WIDER if kinds == narrow), None)


class _Parser:
    """A parser of schemas that refer to each other. It keeps the named types."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str) -> AvroType:
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if not isinstance(schema, dict):
            raise DecodeError(f"{_shown(schema)} is not a type")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace)
        if not isinstance(kind, str):
            raise DecodeError(f"{_shown(schema)} has no type")
        if kind in PRIMITIVES:
            return AvroType(kind, logical_type_of(schema, kind, 0))
        if kind in (ARRAY, MAP):
            key = "items" if kind == ARRAY else "values"
            if key not in schema:
                raise DecodeError(f"{_shown(schema)} has no {key}")
            return AvroType(kind, items=[self.parse(schema[key], namespace)])
        if kind in NAMED:
            return self._definition(schema, NAMED[kind], namespace)
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise DecodeError(f"unknown type {name}")
        return found

    def _union(self, branches: list[Any], namespace: str) -> AvroType:
        found = [self.parse(branch, namespace) for branch in branches]
        seen: set[tuple[str, str]] = set()
        for branch in found:
            if branch.kind == UNION:
                raise DecodeError("a union has a union as a branch")
            if (branch.kind, branch.name) in seen:
                raise DecodeError(f"a union has {branch} twice")
            seen.add((branch.kind, branch.name))
        return AvroType(UNION, items=found)

    def _definition(self, schema: Mapping[str, Any], kind: str, namespace: str) -> AvroType:
        space = schema.get("namespace")
        name = _full_name(_text(schema, "name"), space if isinstance(space, str) else namespace)
        if name in self._named:
            raise DecodeError(f"{name} is defined twice")
        inside = name.rpartition(".")[0]
        aliases = tuple(_full_name(alias, inside) for alias in _aliases(schema))
        found = AvroType(kind, name=name, aliases=aliases)
        # Register the type before its fields, because they may refer to it.
        self._named[name] = found
        if kind == RECORD:
            found.fields = list(self._fields(schema, name, inside))
        elif kind == ENUM:
            found.symbols = _symbols(schema, name)
            default = schema.get("default")
            found.default_symbol = default if isinstance(default, str) else None
        else:
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
                raise DecodeError(f"{name} has no valid size")
            found.size = size
            found.logical = logical_type_of(schema, FIXED, size)
        return found

    def _fields(self, schema: Mapping[str, Any], record: str, namespace: str) -> Iterator[Field]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise DecodeError(f"{record} has no fields")
        seen: set[str] = set()
        for one in fields:
            if not isinstance(one, dict) or "type" not in one:
                raise DecodeError(f"a field of {record} has no type")
            name = _text(one, "name")
            if name in seen:
                raise DecodeError(f"{record} has two fields {name}")
            seen.add(name)
            type_ = self.parse(one["type"], namespace)
            yield Field(name, type_, _aliases(one), one.get("default", NO_DEFAULT))


def _full_name(name: str, namespace: str) -> str:
    name = name.removeprefix(".")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _text(schema: Mapping[str, Any], key: str) -> str:
    found = schema.get(key)
    if not isinstance(found, str) or not found:
        raise DecodeError(f"{_shown(schema)} has no {key}")
    return found


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = schema.get("aliases")
    return tuple(alias for alias in found if isinstance(alias, str)) if isinstance(found, list) else ()


def _symbols(schema: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = schema.get("symbols")
    if not isinstance(found, list) or not all(isinstance(symbol, str) for symbol in found):
        raise DecodeError(f"{name} has no symbols")
    if len(set(found)) < len(found):
        raise DecodeError(f"{name} has a symbol twice")
    return tuple(found)


def _shown(schema: Any) -> str:
    text = json.dumps(schema)
    return text if len(text) <= 60 else f"{text[:60]} …"
