"""Decoding of JSON values by a schema of Spark types. A document that does not fit the schema is undecodable.

A missing field is null, and a field that the schema does not have is ignored. A text column accepts any
value: a string unchanged, a number with its original digits, and any other value as JSON. Numeric columns
accept integers that they can hold exactly. Columns for floating-point numbers round other numbers, unless a
number is too large or would become zero. Times are ISO 8601, in UTC if they have no time zone. Binary values
are base64.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from kwire.pipeline.values.columns import (
    LOCAL_MICROSECONDS,
    MICROSECONDS,
    Column,
    DecodeError,
    Leaf,
    Listing,
    Mapping,
    Record,
)
from kwire.pipeline.values.json_numbers import Number, dumps, loads

FRAME_BYTES: Final = 5
"""The size of the zero byte and the schema id that Confluent's JSON serializer prepends.

JSON itself never begins with a zero byte.
"""
WHOLE: Final = re.compile(r"-?\d+")
NOT_ZERO: Final = re.compile(r"-?[0.]*[1-9]")
"""The beginning of a number that is not zero."""


class JsonReader:
    def __init__(self, type_: pa.DataType) -> None:
        """Create a reader for a type. Raises DecodeError if JSON cannot represent it."""
        self.column = _column(type_)

    def read(self, value: bytes) -> Any:
        """Parse a document. The column later converts it. Raises DecodeError if it is null or not JSON."""
        return document_of(value)


def document_of(value: bytes) -> Any:
    """Parse a value with `loads`, after removing Confluent's prefix.

    Raises DecodeError if the value is null or not JSON.
    """
    if value[:1] == b"\0":
        value = value[FRAME_BYTES:]
    try:
        found = loads(value.decode())
    except UnicodeDecodeError as error:
        raise DecodeError(f"not valid UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not valid JSON: {error}") from None
    if found is None:
        raise DecodeError("the document is null")
    return found


class _Checked(Column):
    """A column whose values must be None or have a given Python type."""

    def __init__(self, kind: type, name: str, column: Column) -> None:
        self._kind = kind
        self._name = name
        self._column = column
        self.type = column.type

    def array(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, self._kind):
                raise DecodeError(f"{_shown(value)} is not {self._name}")
        return self._column.array(values)


def _shown(value: Any) -> str:
    text = dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def _column(type_: pa.DataType) -> Column:
    if pa.types.is_struct(type_):
        return _Checked(dict, "an object", Record([(field.name, _column(field.type)) for field in type_]))
    if pa.types.is_list(type_):
        return _Checked(list, "a list", Listing(_column(type_.value_type)))
    if pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return _Checked(dict, "an object", Mapping(_column(type_.item_type)))
    if pa.types.is_decimal(type_):
        return Leaf(type_, _decimal)
    if pa.types.is_timestamp(type_):
        return Leaf(MICROSECONDS, _instant) if type_.tz else Leaf(LOCAL_MICROSECONDS, _local)
    for is_of, convert in LEAVES:
        if is_of(type_):
            return Leaf(type_, convert)
    raise DecodeError(f"JSON cannot represent the type {type_}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DecodeError(f"{_shown(value)} is not true or false")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, Number) and WHOLE.fullmatch(value.text):
        return int(value.text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DecodeError(f"{_shown(value)} is not an integer")
    return value


def _double(value: Any) -> float:
    return _number(value, float)


def _float(value: Any) -> float:
    return _number(value, _rounded)


def _rounded(value: float) -> float:
    """Round to the nearest number with 32 bits. Raises OverflowError if the number is too large."""
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


def _number(value: Any, rounded: Callable[[float], float]) -> float:
    if isinstance(value, bool) or not isinstance(value, Number | int | float):
        raise DecodeError(f"{_shown(value)} is not a number")
    text = value.text if isinstance(value, Number) else str(value)
    try:
        exact = float(text)
        found = rounded(exact)
    except OverflowError:
        exact = found = math.inf
    if isinstance(value, float):
        return found  # Python's parser accepts NaN and Infinity.
    if math.isinf(found):
        raise DecodeError(f"{_shown(value)} is too large")
    if WHOLE.fullmatch(text):
        if found != int(text):
            raise DecodeError(f"{_shown(value)} has too many digits for the column")
    elif not found and NOT_ZERO.match(text):
        raise DecodeError(f"{_shown(value)} is too small")
    return found


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Number):
        return Decimal(value.text)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DecodeError(f"{_shown(value)} is not a decimal")
    return Decimal(value)


def _binary(value: Any) -> bytes:
    return base64.b64decode(_string(value), validate=True)


def _date(value: Any) -> date:
    return date.fromisoformat(_string(value))


def _time(value: Any) -> datetime:
    return datetime.fromisoformat(_string(value))


def _instant(value: Any) -> datetime:
    found = _time(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _local(value: Any) -> datetime:
    found = _time(value)
    if found.tzinfo:
        raise DecodeError(f"{_shown(value)} has a time zone")
    return found


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError(f"{_shown(value)} is not text")
    return value


LEAVES: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]]] = (
    (pa.types.is_string, _text),
    (pa.types.is_boolean, _flag),
    (pa.types.is_integer, _integer),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _double),
    (pa.types.is_binary, _binary),
    (pa.types.is_date32, _date),
)
