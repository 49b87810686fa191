"""Conversion of Python values to Arrow columns.

A column is built for many records at once. If that fails, `decoder.py` finds the records that do not fit.
None is null in every column. The types are those of Spark: timestamps in microseconds, in UTC or without a
time zone.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
LOCAL_MICROSECONDS: Final = pa.timestamp("us")


class DecodeError(Exception):
    """A value does not match its schema. The message describes the error."""


DECODE_ERRORS: Final = (DecodeError, ValueError, TypeError, ArithmeticError, pa.ArrowException)
"""The exceptions of a column for values that do not fit, including Arrow's."""


class Column(abc.ABC):
    """A converter of values to an Arrow array of one type."""

    type: pa.DataType

    @abc.abstractmethod
    def array(self, values: Sequence[Any]) -> pa.Array:
        """Convert the values. Raises one of DECODE_ERRORS if a value does not fit."""


class Leaf(Column):
    """Values without parts. `convert` prepares each value that Arrow cannot convert itself."""

    def __init__(self, type_: pa.DataType, convert: Callable[[Any], Any] | None = None) -> None:
        self.type = type_
        self._convert = convert

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self._convert is not None:
            convert = self._convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.type)


class Time(Column):
    """Timestamps as numbers of units since 1970, converted to microseconds."""

    def __init__(self, unit: str, type_: pa.DataType) -> None:
        self.type = type_
        self._given = pa.timestamp(unit, tz=type_.tz)
        self._finer = unit == "ns"

    def array(self, values: Sequence[Any]) -> pa.Array:
        # Nanoseconds are truncated to microseconds. Other units must fit.
        return pa.array(values, self._given).cast(self.type, safe=not self._finer)


class Record(Column):
    """Dictionaries as a struct. Keys that are not fields are ignored."""

    def __init__(self, fields: Sequence[tuple[str, Column]]) -> None:
        self._fields = list(fields)
        self.type = pa.struct([pa.field(name, column.type) for name, column in fields])

    def array(self, values: Sequence[Any]) -> pa.Array:
        is_null = [value is None for value in values]
        if any(is_null):
            values = [{} if value is None else value for value in values]
        columns = []
        for name, column in self._fields:
            inside = [value.get(name) for value in values]
            try:
                columns.append(column.array(inside))
            except DecodeError as fault:
                raise DecodeError(f"{name}: {fault}") from None
        mask = pa.array(is_null, pa.bool_()) if any(is_null) else None
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)


class Listing(Column):
    """Lists with items of one type."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.list_(item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        items = self._item.array([item for value in values if value is not None for item in value])
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.type)


class Mapping(Column):
    """Maps from text to items of one type."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.map_(pa.string(), item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        inside = [value for value in values if value is not None]
        keys = pa.array([key for value in inside for key in value], pa.string())
        items = self._item.array([item for value in inside for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)


class Choice(Column):
    """Values of several types: a struct with a member for each type, of which at most one is not null."""

    def __init__(self, members: Sequence[tuple[Callable[[Any], bool], Column]]) -> None:
        """Create a column. Each member has a test for its values, and the first match wins."""
        self._members = list(members)
        self.type = pa.struct(
            [pa.field(f"member{number}", column.type) for number, (_, column) in enumerate(members)]
        )

    def array(self, values: Sequence[Any]) -> pa.Array:
        chosen = [self._member(value) for value in values]
        columns = [
            column.array([value if at == number else None for value, at in zip(values, chosen, strict=True)])
            for number, (_, column) in enumerate(self._members)
        ]
        mask = pa.array([at is None for at in chosen], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)

    def _member(self, value: Any) -> int | None:
        if value is None:
            return None
        for number, (is_of, _) in enumerate(self._members):
            if is_of(value):
                return number
        raise DecodeError(f"{value!r} has none of the types of the union")


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offset of each list among all items, null for a null list, followed by the end offset."""
    starts = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    starts_or_null: list[int | None] = [
        None if value is None else start for value, start in zip(values, starts, strict=False)
    ]
    return pa.array([*starts_or_null, starts[-1]], pa.int32())
