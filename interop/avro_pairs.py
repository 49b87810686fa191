"""Random pairs of a writer's and a reader's Avro schema, such as the versions of a schema that grows.

A schema is JSON in which each use of a named type is the same object. `text` writes references.
"""

from __future__ import annotations

import json
from collections.abc import Set
from random import Random
from typing import Any, NamedTuple

Schema = Any
"""A dictionary with a `type`, or a list of branches. Names always include the namespace."""

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
NAMED = ("record", "enum", "fixed")
PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
NAMESPACES = ["a", "b.c", ""]
MARKER = "is_"
MOVED = "moved."
UNITS: dict[str, list[dict[str, Any]]] = {
    "int": [{"logicalType": "date"}, {"logicalType": "time-millis"}],
    "long": [
        {"logicalType": "timestamp-millis"},
        {"logicalType": "timestamp-micros"},
        {"logicalType": "local-timestamp-nanos"},
        {"logicalType": "time-micros"},
    ],
    "bytes": [{"logicalType": "decimal", "precision": 9, "scale": scale} for scale in (0, 2, 4)],
}
"""Logical types of which one cannot be read as another, by stored type."""


class Pair(NamedTuple):
    """Two schemas. All values of the kind `changed` have another logical type in the reader's schema."""

    writer: Schema
    reader: Schema
    changed: str = ""


def is_union(schema: Schema) -> bool:
    return isinstance(schema, list)


def kind_of(schema: Schema) -> str:
    return "union" if is_union(schema) else str(schema["type"])


def others_than_null(union: Schema) -> list[Schema]:
    return [branch for branch in union if branch["type"] != "null"]


class Pairs:
    """A generator of pairs."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self._logical: dict[str, dict[str, Any]] = {}
        self._changes_units = False
        self._named: list[Schema] = []
        self._evolved: dict[int, Schema] = {}

    def pair(self) -> Pair:
        self._number, self._named, self._evolved = 0, [], {}
        self._changes_units = self._chance(0.25)
        # One logical type in a pair, so that only a wanted change is a change of units.
        changed = self._random.choice(list(UNITS))
        self._logical = {changed: self._random.choice(UNITS[changed])}
        writer = self._schema(3)
        if not is_union(writer) and self._chance(0.5):
            writer = self._record(3)
        # A type that the reader adds may refer only to types that the reader adds.
        self._named = []
        reader = self._reader(writer, 0.25)
        if not self._changes_units:
            return Pair(writer, reader)
        other = self._random.choice([unit for unit in UNITS[changed] if unit != self._logical[changed]])
        return Pair(writer, _with_unit(reader, changed, other, {}), changed)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _name(self, letter: str) -> str:
        self._number += 1
        space = self._random.choice(NAMESPACES)
        return f"{space}.{letter}{self._number}" if space else f"{letter}{self._number}"

    def _schema(self, depth: int, in_union: bool = False) -> Schema:
        """Return a random type. `depth` limits the nesting."""
        kinds = ["enum", "fixed", *PRIMITIVES, "known"]
        if depth:
            kinds += ["record", "array", "map", *(["union"] * (0 if in_union else 4))]
        kind = self._random.choice(kinds)
        if kind == "known" and self._named:
            return self._random.choice(self._named)
        if kind == "record":
            return self._record(depth)
        if kind in ("array", "map"):
            return {"type": kind, "items" if kind == "array" else "values": self._schema(depth - 1)}
        if kind == "union":
            return self._union([self._schema(depth - 1, True) for _ in range(self._random.randint(1, 4))])
        if kind == "enum":
            return self._defined({"type": kind, "name": self._name("E"), "symbols": self._symbols()})
        if kind == "fixed":
            return self._defined(self._fixed())
        return self._primitive(kind if kind != "known" else "long")

    def _defined(self, schema: Schema) -> Schema:
        self._named.append(schema)
        return schema

    def _primitive(self, kind: str) -> Schema:
        # A number or text without a unit could be promoted to a type with a unit.
        if (kind == "int" and self._changes_units and "long" in self._logical) or (
            kind == "string" and "bytes" in self._logical
        ):
            kind = "boolean"
        always = self._changes_units or kind == "bytes"
        has_unit = kind in self._logical and (always or self._chance(0.7))
        return {"type": kind, **(self._logical[kind] if has_unit else {})}

    def _fixed(self) -> Schema:
        size = self._random.choice([1, 3, 12, 16])
        found: Schema = {"type": "fixed", "name": self._name("F"), "size": size}
        if size == 16 and self._chance(0.5):
            found["logicalType"] = "uuid"
        if size == 3 and self._chance(0.5):
            found |= {"logicalType": "decimal", "precision": 6, "scale": 1}
        return found

    def _symbols(self) -> list[str]:
        return self._random.sample(["S0", "S1", "S2", "A"], self._random.randint(1, 4))

    def _record(self, depth: int) -> Schema:
        fields = [
            {"name": f"f{number}", "type": self._schema(depth - 1)}
            for number in range(self._random.randint(1, 4))
        ]
        return self._defined({"type": "record", "name": self._name("R"), "fields": fields})

    def _union(self, branches: list[Schema]) -> Schema:
        """Return a union of the branches without those that a union cannot have twice."""
        found: dict[str, Schema] = {}
        for branch in branches:
            for one in branch if is_union(branch) else [branch]:
                found.setdefault(one.get("name", one["type"]), one)
        return list(found.values())

    def _shuffled(self, items: list[Any]) -> list[Any]:
        return self._random.sample(items, len(items)) if self._chance(0.5) else items

    def _reader(self, schema: Schema, change: float) -> Schema:
        """Return the reader's type for a writer's type. `change` is the probability of changes."""
        if is_union(schema):
            return self._reader_union(schema, change)
        if schema["type"] in NAMED:
            if id(schema) not in self._evolved:
                self._evolved[id(schema)] = self._reader_named(schema, change)
            found = self._evolved[id(schema)]
        elif schema["type"] == "array":
            found = {"type": "array", "items": self._reader(schema["items"], change)}
        elif schema["type"] == "map":
            found = {"type": "map", "values": self._reader(schema["values"], change)}
        else:
            found = self._reader_primitive(schema, change)
        if not self._chance(change):
            return found
        more = [self._schema(1, True) for _ in range(self._random.randint(0, 3))]
        siblings = self._siblings(found)
        if siblings and self._chance(0.5) and _may_move(found):
            # No branch has the full name of the writer's record.
            return self._union(self._shuffled([*siblings, *self._sibling(found), {"type": "null"}, *more]))
        return self._union(self._shuffled([*siblings, found, {"type": "null"}, *more]))

    def _siblings(self, schema: Schema) -> list[Schema]:
        """Return a type with the same name in another namespace, or nothing."""
        if schema["type"] not in NAMED or not self._chance(0.4):
            return []
        if schema["type"] != "record" and schema["name"].startswith(MOVED) and "aliases" not in schema:
            return []  # Only one branch may have the name of a type whose namespace changes.
        return self._sibling(schema)

    def _sibling(self, schema: Schema) -> list[Schema]:
        name = f"other{self._number}.{schema['name'].rpartition('.')[2]}"
        self._number += 1
        return [{key: value for key, value in schema.items() if key != "aliases"} | {"name": name}]

    def _reader_primitive(self, schema: Schema, change: float) -> Schema:
        kind = schema["type"]
        if kind in PROMOTIONS and not self._changes_units and self._chance(change):
            return {"type": self._random.choice(PROMOTIONS[kind])}
        if self._chance(change / 10):
            return {
                "type": self._random.choice([other for other in PRIMITIVES if other not in self._logical])
            }
        if "logicalType" in schema and not self._changes_units and self._chance(change):
            return {"type": kind}
        return dict(schema)

    def _reader_union(self, union: Schema, change: float) -> Schema:
        branches = [self._reader(branch, change) for branch in union]
        if self._chance(change) and len(branches) > 1:
            branches.pop(self._random.randrange(len(branches)))
        if self._chance(change):
            branches.insert(self._random.randint(0, len(branches)), self._schema(1, True))
        if self._chance(change / 2):
            return self._random.choice(branches)
        return self._union(self._shuffled(branches) if self._chance(change) else branches)

    def _reader_named(self, schema: Schema, change: float) -> Schema:
        found = dict(schema)
        space, _, short = schema["name"].rpartition(".")
        if self._chance(change):
            # Avro's Java library applies aliases of fields only to a record with the reader's full name.
            # A type in a namespace cannot have an alias without one.
            found |= {"name": f"{MOVED}{short}" if space else f"Moved{short}", "aliases": [schema["name"]]}
            if space and self._chance(0.5):
                found["name"] = f"{MOVED}Renamed{short}"
        elif self._chance(change) and schema["type"] != "record":
            found["name"] = f"{MOVED}{short}"
        if schema["type"] == "record":
            found["fields"] = self._reader_fields(schema, change)
        elif schema["type"] == "enum" and self._chance(change):
            found["symbols"] = self._symbols()
            if self._chance(0.5):
                found["default"] = self._random.choice(found["symbols"])
        elif schema["type"] == "fixed" and self._chance(change / 5):
            found = {"type": "fixed", "name": found["name"], "size": schema["size"] + 1}
        return found

    def _reader_fields(self, record: Schema, change: float) -> list[Any]:
        fields = []
        for field in record["fields"]:
            found = {"name": field["name"], "type": self._reader(field["type"], change)}
            if self._chance(change / 2):
                found |= {"name": f"renamed_{field['name']}", "aliases": [field["name"]]}
            fields.append(found)
        if self._chance(change) and len(fields) > 1:
            fields.pop(self._random.randrange(len(fields)))
        if self._chance(change) and not self._changes_units:
            type_ = self._schema(1)
            added = {"name": f"added{self._number}", "type": type_}
            if self._chance(0.9):
                added["default"] = self._default(type_)
            fields.append(added)
        return self._shuffled(fields)

    def _default(self, schema: Schema) -> Any:
        if is_union(schema):
            return self._default(schema[0])
        kind = schema["type"]
        if kind == "record":
            return {field["name"]: self._default(field["type"]) for field in schema["fields"]}
        if kind in ("array", "map"):
            inside = [self._default(schema["items" if kind == "array" else "values"])] * self._random.randint(
                0, 2
            )
            return inside if kind == "array" else {f"k{number}": one for number, one in enumerate(inside)}
        simple: dict[str, Any] = {
            "null": None, "boolean": True, "int": -7, "long": 1 << 40, "float": 0.1, "double": 3,
            "string": "\u00e4", "bytes": "\u0001b",
        }  # fmt: skip
        if kind == "enum":
            return self._random.choice(schema["symbols"])
        return "\u0001" * schema["size"] if kind == "fixed" else simple[kind]


def _may_move(schema: Schema) -> bool:
    """Return whether a type is a record that Avro's Java library reads from a record in another namespace."""
    return (
        schema["type"] == "record"
        and "aliases" not in schema
        and not any("aliases" in field for field in schema["fields"])
    )


def _with_unit(schema: Schema, kind: str, unit: dict[str, Any], done: dict[int, Schema]) -> Schema:
    """Return a schema in which all values of a kind have a logical type."""
    if is_union(schema):
        return [_with_unit(branch, kind, unit, done) for branch in schema]
    if id(schema) in done:
        return done[id(schema)]
    found = done[id(schema)] = dict(schema)
    if schema["type"] == kind:
        found |= unit
    for key in ("items", "values"):
        if key in schema:
            found[key] = _with_unit(schema[key], kind, unit, done)
    if schema["type"] == "record":
        found["fields"] = [
            {**field, "type": _with_unit(field["type"], kind, unit, done)} for field in schema["fields"]
        ]
    return found


def text(schema: Schema, *, has_markers: bool = False, bare: Set[str] = frozenset()) -> str:
    """Return a schema as text.

    With `has_markers`, a record has a field of type null whose name is that of the record. The encoding does
    not change, and Avro's Java library then requires that the names of records match. The names in `bare`
    have no namespaces.
    """
    return json.dumps(_Text(has_markers, bare).schema(schema))


def bare_names(pair: Pair) -> Set[str]:
    """Return the names of enums and fixed types that both schemas have at most once without namespaces."""
    found: set[str] = set()
    ambiguous: set[str] = set()
    for schema in pair[:2]:
        names: dict[str, str] = {}
        for named in _named(schema, set()):
            name = named["name"]
            short = name.rpartition(".")[2]
            if named["type"] != "record" and names.setdefault(short, name) != name:
                ambiguous.add(short)
            # An alias without namespace would be in the namespace of its type.
            ambiguous |= {alias.rpartition(".")[2] for alias in named.get("aliases", ())}
        found |= set(names)
    return found - ambiguous


def _named(schema: Schema, seen: set[int]) -> list[Schema]:
    """Return each named type."""
    if is_union(schema):
        return [found for branch in schema for found in _named(branch, seen)]
    if id(schema) in seen:
        return []
    seen.add(id(schema))
    inside = [schema[key] for key in ("items", "values") if key in schema]
    inside += [field["type"] for field in schema.get("fields", ())]
    own = [schema] if "name" in schema else []
    return own + [found for one in inside for found in _named(one, seen)]


class _Text:
    def __init__(self, has_markers: bool, bare: Set[str]) -> None:
        self._has_markers = has_markers
        self._bare = bare
        self._defined: set[str] = set()

    def _name(self, name: str) -> str:
        short = name.rpartition(".")[2]
        return short if short in self._bare else name

    def schema(self, schema: Schema) -> Any:
        if is_union(schema):
            return [self.schema(branch) for branch in schema]
        found = dict(schema)
        for key in ("items", "values"):
            if key in schema:
                found[key] = self.schema(schema[key])
        if "name" not in schema:
            return found
        name = found["name"] = self._name(schema["name"])
        if schema["name"] in self._defined:
            return name
        self._defined.add(schema["name"])
        space, _, short = name.rpartition(".")
        if not space:
            # Otherwise, the namespace of the surrounding type would apply.
            found["namespace"] = ""
        elif len(self._defined) % 2:
            found |= {"name": short, "namespace": space}
        if "aliases" in schema:
            found["aliases"] = [self._name(alias) for alias in schema["aliases"]]
        if schema["type"] == "record":
            found["fields"] = [*self._markers(schema), *map(self._field, schema["fields"])]
        return found

    def _markers(self, record: Schema) -> list[Any]:
        if not self._has_markers:
            return []
        names = [MARKER + name.rpartition(".")[2] for name in (record["name"], *record.get("aliases", ()))]
        return [
            {"name": names[0], "type": "null", "aliases": [name for name in names[1:] if name != names[0]]}
        ]

    def _field(self, field: Any) -> Any:
        found = {**field, "type": self.schema(field["type"])}
        if "default" in field:
            found["default"] = self._default(field["type"], field["default"])
        return found

    def _default(self, schema: Schema, value: Any) -> Any:
        """Return a default value with the markers of the records in it."""
        if is_union(schema):
            return self._default(schema[0], value)
        if schema["type"] == "record":
            fields = {
                field["name"]: self._default(field["type"], value[field["name"]])
                for field in schema["fields"]
            }
            return {**{marker["name"]: None for marker in self._markers(schema)}, **fields}
        if schema["type"] == "array":
            return [self._default(schema["items"], item) for item in value]
        if schema["type"] == "map":
            return {key: self._default(schema["values"], item) for key, item in value.items()}
        return value
