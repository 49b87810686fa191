"""Avro schemas as JSON with inlined references, in one form with logical types and in one form without them.

Values are decoded without logical types. Logical types are applied to complete columns later. So fastavro
resolves a writer's schema to a reader's schema only by the stored types, as Avro's own implementations do.
`logical_type_mismatch` finds differences in logical types, so that milliseconds are not read as microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from kwire.pipeline.values.columns import DecodeError

RECORDS: Final = ("record", "error", "request")
NAMED: Final = (*RECORDS, "enum", "fixed")
LOGICAL: Final = {
    ("int", "date"), ("int", "time-millis"), ("long", "time-micros"),
    ("long", "timestamp-millis"), ("long", "timestamp-micros"), ("long", "timestamp-nanos"),
    ("long", "local-timestamp-millis"), ("long", "local-timestamp-micros"), ("long", "local-timestamp-nanos"),
    ("bytes", "decimal"), ("fixed", "decimal"), ("string", "uuid"), ("fixed", "uuid"),
}  # fmt: skip
"""The logical types of each stored type. Avro's specification requires readers to ignore other ones."""


class AvroSchema:
    """A schema whose references are replaced with their definitions.

    `full` is the schema with logical types, and `stored` the schema without them. `named` has the definition
    of each named type.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Parse a schema. Raises DecodeError.

        The last text is the schema. The texts before it are the schemas that it refers to.
        """
        self.texts = tuple(texts)
        known: dict[str, Any] = {}
        try:
            for text in texts:
                parsed = fastavro.parse_schema(json.loads(text), named_schemas=known)
            self.full = _inline_references(parsed, known, set())
            self.stored = fastavro.parse_schema(_without_logical_types(self.full))
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DecodeError(f"not a valid Avro schema: {error!r}") from None
        self.named: dict[str, Any] = {}
        _collect(self.full, self.named)


def _inline_references(schema: Any, known: Mapping[str, Any], seen: set[str]) -> Any:
    """Replace the first reference to each name with its definition."""
    if isinstance(schema, str):
        return (
            _inline_references(known[schema], known, seen)
            if schema in known and schema not in seen
            else schema
        )
    if isinstance(schema, list):
        return [_inline_references(branch, known, seen) for branch in schema]
    if isinstance(schema["type"], dict | list):
        return _inline_references(schema["type"], known, seen)
    if schema["type"] in NAMED:
        if schema["name"] in seen:
            return schema["name"]
        seen.add(schema["name"])
    found = {key: value for key, value in schema.items() if not key.startswith("__")}
    for key in ("items", "values"):
        if key in found:
            found[key] = _inline_references(found[key], known, seen)
    if schema["type"] in RECORDS:
        found["fields"] = [
            {**field, "type": _inline_references(field["type"], known, seen)} for field in schema["fields"]
        ]
    elif schema["type"] in known:
        return _inline_references(schema["type"], known, seen)
    return found


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    found = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values"):
        if key in found:
            found[key] = _without_logical_types(found[key])
    if schema["type"] in RECORDS:
        found["fields"] = [
            {**field, "type": _without_logical_types(field["type"])} for field in schema["fields"]
        ]
        for field in found["fields"]:
            if "default" in field:
                field["default"] = _default(field["default"], field["type"])
    return found


def _default(value: Any, schema: Any) -> Any:
    """Complete the default value of a record with the defaults of the fields that the value omits."""
    if isinstance(value, dict) and isinstance(schema, dict) and schema["type"] in RECORDS:
        return {
            field["name"]: _default(value.get(field["name"], field.get("default")), field["type"])
            for field in schema["fields"]
        }
    return value


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema["type"] in NAMED:
            named[schema["name"]] = schema
        for part in (schema.get("items"), schema.get("values")):
            _collect(part, named)
        for field in schema.get("fields", ()):
            _collect(field["type"], named)


def type_of(schema: Any) -> str:
    """Return the name of a schema's type; `union` for a list."""
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def logical_type(schema: Any) -> str | None:
    """Return the logical type of a schema, or None if Avro's specification does not define it."""
    if not isinstance(schema, dict):
        return None
    name = schema.get("logicalType")
    return name if (schema["type"], name) in LOGICAL else None


def logical_type_mismatch(writer: AvroSchema, reader: AvroSchema) -> str:
    """Describe where a stored value would have another meaning with the reader's logical types.

    The result is empty if there is no such place.
    """
    return _logical_type_mismatch(writer, writer.full, reader, reader.full, set())


def _logical_type_mismatch(
    writer: AvroSchema, written: Any, reader: AvroSchema, wanted: Any, seen: set[tuple[str, str]]
) -> str:
    written = _single(writer.named.get(written, written) if isinstance(written, str) else written)
    wanted = _single(reader.named.get(wanted, wanted) if isinstance(wanted, str) else wanted)
    if isinstance(written, str):
        written = writer.named.get(written, written)
    if isinstance(wanted, str):
        wanted = reader.named.get(wanted, wanted)
    if not (isinstance(written, dict) and isinstance(wanted, dict)):
        return ""
    if written["type"] in RECORDS and wanted["type"] in RECORDS:
        if (written["name"], wanted["name"]) in seen:
            return ""
        seen.add((written["name"], wanted["name"]))
        fields = {field["name"]: field["type"] for field in written["fields"]}
        for field in wanted["fields"]:
            for name in (field["name"], *field.get("aliases", ())):
                if name in fields:
                    found = _logical_type_mismatch(writer, fields[name], reader, field["type"], seen)
                    if found:
                        return f"{field['name']}: {found}"
                    break
        return ""
    for key in ("items", "values"):
        if key in written and key in wanted:
            return _logical_type_mismatch(writer, written[key], reader, wanted[key], seen)
    left, right = _meaning(written), _meaning(wanted)
    return f"written as {left}, read as {right}" if left and right and left != right else ""


def _single(schema: Any) -> Any:
    """Return the other type if a schema is a union of null and one type, or else the schema itself."""
    if isinstance(schema, list):
        others = [branch for branch in schema if type_of(branch) != "null"]
        return others[0] if len(others) == 1 else schema
    return schema


def _meaning(schema: Any) -> str:
    name = logical_type(schema)
    if name == "decimal":
        return f"decimal of scale {schema.get('scale', 0)}"
    return (name or "").removeprefix("local-")
