"""Conversion of Python values to Arrow columns.

A column is built for many records at once. If that fails, `decoder.py` finds the values that do not fit. None
becomes null in every column. Timestamps are in microseconds, in UTC or without a time zone, as in Spark.
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
    """A value does not match its schema, or a schema cannot be used. The message has the reason."""


DECODE_ERRORS: Final = (DecodeError, ValueError, TypeError, ArithmeticError, pa.ArrowException)
"""The exceptions that a column raises if a value does not fit."""


class Column(abc.ABC):
    """A converter of Python values to an Arrow array of one type."""

    type: pa.DataType

    @abc.abstractmethod
    def array(self, values: Sequence[Any]) -> pa.Array:
        """Convert the values. Raises one of DECODE_ERRORS if a value does not fit."""


class Leaf(Column):
    """A column of simple values. `convert` prepares each value if Arrow cannot convert it directly."""

    def __init__(self, type_: pa.DataType, convert: Callable[[Any], Any] | None = None) -> None:
        self.type = type_
        self._convert = convert

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self._convert is not None:
            convert = self._convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.type)


class Time(Column):
    """A column of timestamps. It converts numbers of `unit` (ms, us or ns) since 1970 to microseconds."""

    def __init__(self, unit: str, type_: pa.DataType) -> None:
        self.type = type_
        self._given = pa.timestamp(unit, tz=type_.tz)
        self._finer = unit == "ns"

    def array(self, values: Sequence[Any]) -> pa.Array:
        # Nanoseconds are truncated to microseconds. Values in other units must fit without loss.
        return pa.array(values, self._given).cast(self.type, safe=not self._finer)


class Record(Column):
    """A column of dictionaries as a struct. It ignores keys that are not fields."""

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
    """A column of lists with items of one type."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.list_(item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        items = self._item.array([item for value in values if value is not None for item in value])
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.type)


class Mapping(Column):
    """A column of maps from text to items of one type."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.map_(pa.string(), item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        inside = [value for value in values if value is not None]
        keys = pa.array([key for value in inside for key in value], pa.string())
        items = self._item.array([item for value in inside for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)


class Choice(Column):
    """A column of values of several types: a struct with one member for each type.

    A value is a pair: the position of its member, and the member's value. The other members are null.
    """

    def __init__(self, members: Sequence[Column]) -> None:
        self._members = list(members)
        self.type = pa.struct(
            [pa.field(f"member{number}", column.type) for number, column in enumerate(members)]
        )

    def array(self, values: Sequence[Any]) -> pa.Array:
        columns = [
            column.array([value[1] if value is not None and value[0] == number else None for value in values])
            for number, column in enumerate(self._members)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return Arrow's list offsets: the index of each list's first item, and the number of all items.

    The offset of a null list is null.
    """
    starts = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    starts_or_null: list[int | None] = [
        None if value is None else start for value, start in zip(values, starts, strict=False)
    ]
    return pa.array([*starts_or_null, starts[-1]], pa.int32())
