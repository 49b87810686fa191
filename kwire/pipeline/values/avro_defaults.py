"""Default values of a reader's fields, in the form that the columns of `avro.py` take."""

from __future__ import annotations

import struct
from typing import Any, Final

from kwire.pipeline.values.avro_schema import (
    ARRAY,
    ENUM,
    FIXED,
    MAP,
    NO_DEFAULT,
    RECORD,
    UNION,
    AvroType,
    Field,
    members_of,
)
from kwire.pipeline.values.columns import DecodeError

BITS: Final = {"int": 32, "long": 64}


def default_of(field: Field) -> Any:
    """Return the default value of a field. Raises DecodeError if there is none, or if it is invalid."""
    if field.default is NO_DEFAULT:
        raise DecodeError(f"the field {field.name} has no default value")
    try:
        return _value(field.type, field.default)
    except DecodeError as fault:
        raise DecodeError(f"the default value of the field {field.name} is invalid: {fault}") from None


def _value(type_: AvroType, default: Any) -> Any:
    kind = type_.kind
    if kind == UNION:
        return _of_union(type_, default)
    if kind == "null" and default is None:
        return None
    if kind == "boolean" and isinstance(default, bool):
        return default
    if kind in BITS and _is_number(default, int) and -1 << BITS[kind] - 1 <= default < 1 << BITS[kind] - 1:
        return default
    if kind in ("float", "double") and _is_number(default, int | float | str):
        return _float(kind, default)
    if kind == "string" and isinstance(default, str):
        return default
    if kind in ("bytes", FIXED) and isinstance(default, str):
        return _bytes(type_, default)
    if kind == ENUM and default in type_.symbols:
        return default
    if kind == ARRAY and isinstance(default, list):
        return [_value(type_.item, value) for value in default]
    if kind == MAP and isinstance(default, dict):
        return {key: _value(type_.item, value) for key, value in default.items()}
    if kind == RECORD and isinstance(default, dict):
        return {
            field.name: _value(field.type, default[field.name])
            if field.name in default
            else default_of(field)
            for field in type_.fields
        }
    raise DecodeError(f"{default!r} is not a value of {type_}")


def _of_union(union: AvroType, default: Any) -> Any:
    """Return the value of the first branch that the default value fits."""
    members = members_of(union)
    for branch in union.items:
        try:
            value = _value(branch, default)
        except DecodeError:
            continue
        return (members.index(branch), value) if branch in members else value
    raise DecodeError(f"{default!r} is not a value of a branch of the union")


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _float(kind: str, value: int | float | str) -> float:
    try:
        # Avro's Java library accepts numbers as text, too. JSON has no other form for NaN and infinity.
        found = float(value)
        return float(struct.unpack("<f", struct.pack("<f", found))[0]) if kind == "float" else found
    except (OverflowError, ValueError):
        raise DecodeError(f"{value!r} is not a value of {kind}") from None


def _bytes(type_: AvroType, text: str) -> bytes:
    try:
        # One character for each byte.
        found = text.encode("latin-1")
    except UnicodeEncodeError:
        raise DecodeError("a character is greater than ff") from None
    if type_.kind == FIXED and len(found) != type_.size:
        raise DecodeError(f"the size {len(found)} is not the size {type_.size} of {type_}")
    return found
