"""Compatibility of Spark types: whether one type can read a column that was written with another type.

Types are in Spark's JSON form. A Parquet reader widens numbers, and returns null for fields that are missing:
https://spark.apache.org/docs/latest/sql-data-sources-parquet.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

WIDER: Final = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")


def incompatible_fields(written: Any, wanted: Any, name: str) -> Iterator[str]:
    """Yield a description of each part of the type `written` that the type `wanted` cannot read.

    `name` is the name of the column or field in the description.
    """
    kind = _kind(written)
    if kind != _kind(wanted):
        yield f"{name} is {_shown(written)} in the archive and {_shown(wanted)} now"
    elif kind == "struct":
        known = {field["name"].lower(): field["type"] for field in written["fields"]}
        for field in wanted["fields"]:
            if field["name"].lower() in known:
                yield from incompatible_fields(
                    known[field["name"].lower()], field["type"], f"{name}.{field['name']}"
                )
    elif kind == "array":
        yield from incompatible_fields(written["elementType"], wanted["elementType"], f"{name}[]")
    elif kind == "map":
        yield from incompatible_fields(written["keyType"], wanted["keyType"], f"the key of {name}")
        yield from incompatible_fields(written["valueType"], wanted["valueType"], f"{name}[]")
    elif not _is_read(written, wanted):
        yield f"{name} is {_shown(written)} in the archive and {_shown(wanted)} now"


def duplicate_fields(type_: Any, name: str) -> Iterator[str]:
    """Yield a description of each pair of fields in a type whose names differ only in case.

    `name` is the name of the column or field in the description.
    """
    kind = _kind(type_)
    if kind == "struct":
        known: dict[str, str] = {}
        for field in type_["fields"]:
            lower = field["name"].lower()
            if lower in known:
                yield f"{name} has {known[lower]!r} and {field['name']!r}"
            known[lower] = field["name"]
            yield from duplicate_fields(field["type"], f"{name}.{field['name']}")
    elif kind == "array":
        yield from duplicate_fields(type_["elementType"], f"{name}[]")
    elif kind == "map":
        yield from duplicate_fields(type_["valueType"], f"{name}[]")


def _kind(type_: Any) -> str:
    """Return `struct`, `array` or `map` for a nested type in Spark's JSON form; empty for other types."""
    return str(type_["type"]) if isinstance(type_, dict) else ""


def _is_read(written: str, wanted: str) -> bool:
    if written == wanted or wanted in WIDER.get(written, ()):
        return True
    old, new = _DECIMAL.fullmatch(written), _DECIMAL.fullmatch(wanted)
    if old is None or new is None:
        return False
    scales = int(old[2]), int(new[2])
    return scales[0] <= scales[1] and int(old[1]) - scales[0] <= int(new[1]) - scales[1]


def _shown(type_: Any) -> str:
    return _kind(type_) or str(type_)
