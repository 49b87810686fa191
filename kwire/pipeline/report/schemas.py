"""A JSON Schema inferred from a sample of JSON values, and its fields as a table.

A property is required if every object of the sample has it. A string property gets a format if every string
has that format. The number of property names is limited, because an object with many different names is
probably a map and not a record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

MAX_PROPERTIES: Final = 200
MAX_DEPTH: Final = 8
EXAMPLE_LENGTH: Final = 60

FORMATS: Final = {
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}


class Field(NamedTuple):
    """A row of the table of fields."""

    path: str
    types: str
    share: float
    """The fraction of parent objects that have this field."""
    example: str


class InferredSchema(NamedTuple):
    """The JSON Schema of a sample of values."""

    sampled: int
    """The number of values in the sample."""
    parsed: int
    """The number of sampled values that were JSON."""
    schema: dict[str, Any]
    fields: list[Field]


class _Node:
    """All values of the sample at one path."""

    def __init__(self) -> None:
        self.seen = 0
        self.types: Counter[str] = Counter()
        self.formats: Counter[str] = Counter()
        self.properties: dict[str, _Node] = {}
        self.items: _Node | None = None
        self.truncated = False
        self.example: Any = None

    def add(self, value: Any, depth: int = 0) -> None:
        self.seen += 1
        kind = _type_of(value)
        self.types[kind] += 1
        if self.example is None and kind not in ("object", "array"):
            self.example = value
        if kind == "string":
            self.formats.update(name for name, form in FORMATS.items() if form.fullmatch(value))
        elif kind in ("object", "array") and depth >= MAX_DEPTH:
            self.truncated = True
        elif kind == "object":
            for name, inner in value.items():
                if name not in self.properties:
                    if len(self.properties) >= MAX_PROPERTIES:
                        self.truncated = True
                        continue
                    self.properties[name] = _Node()
                self.properties[name].add(inner, depth + 1)
        elif kind == "array":
            self.items = self.items or _Node()
            for inner in value:
                self.items.add(inner, depth + 1)

    def names(self) -> list[str]:
        """Return the JSON types. `number` replaces `integer` if there are other numbers, too."""
        return sorted(name for name in self.types if name != "integer" or "number" not in self.types)

    def format(self) -> str | None:
        """Return the format that all strings have, if any."""
        return next((name for name in FORMATS if self.formats[name] == self.types["string"] > 0), None)

    def schema(self) -> dict[str, Any]:
        names = self.names()
        if not names:
            return {}
        found: dict[str, Any] = {"type": names[0] if len(names) == 1 else names}
        if (form := self.format()) is not None:
            found["format"] = form
        if self.properties:
            found["properties"] = {name: node.schema() for name, node in sorted(self.properties.items())}
            required = [
                name for name, node in sorted(self.properties.items()) if node.seen == self.types["object"]
            ]
            if required:
                found["required"] = required
        if self.items is not None:
            found["items"] = self.items.schema()
        if self.truncated:
            found["additionalProperties"] = True
        return found

    def fields(self, path: str, around: int) -> Iterable[Field]:
        if path:
            form = self.format()
            types = " or ".join(self.names()) + (f" ({form})" if form else "")
            yield Field(path, types, self.seen / around if around else 0.0, _example(self.example))
        for name, node in sorted(self.properties.items()):
            yield from node.fields(f"{path}.{name}" if path else name, self.types["object"])
        if self.items is not None and self.items.seen:
            yield from self.items.fields(f"{path}[]", self.items.seen)


def infer(values: Iterable[bytes]) -> InferredSchema:
    """Infer a JSON Schema from those of the values that are JSON."""
    root, sampled = _Node(), 0
    for value in values:
        sampled += 1
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            continue
        root.add(found)
    return InferredSchema(sampled, root.seen, root.schema(), list(root.fields("", 0)))


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _example(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= EXAMPLE_LENGTH else f"{text[: EXAMPLE_LENGTH - 1]}…"
