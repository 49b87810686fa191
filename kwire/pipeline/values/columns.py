"""Python values into Arrow columns, column by column: what a decoder gives for many records at once.

A column is built for all records in one go, and only where that fails is it known that one of them does not
fit; see `decoder.py`, which then looks for it. None is null everywhere. Types are such as Spark has: times
in microseconds, what is not in time zones in UTC.
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
    """A value that is not what its schema says; the message tells what is wrong with it."""


DECODE_ERRORS: Final = (DecodeError, ValueError, TypeError, ArithmeticError, pa.ArrowException)
"""What a column may say to values that do not fit; Arrow's own are of many kinds."""


class Column(abc.ABC):
    """How values become an array of a type."""

    type: pa.DataType

    @abc.abstractmethod
    def array(self, values: Sequence[Any]) -> pa.Array:
        """The values as Arrow has them. FAULTS where one does not fit."""


class Leaf(Column):
    """Values without parts. Those that Arrow cannot convert itself are converted one by one before."""

    def __init__(self, type_: pa.DataType, convert: Callable[[Any], Any] | None = None) -> None:
        self.type = type_
        self._convert = convert

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self._convert is not None:
            convert = self._convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.type)


class Time(Column):
    """Numbers that count units since 1970, as timestamps in microseconds."""

    def __init__(self, unit: str, type_: pa.DataType) -> None:
        self.type = type_
        self._given = pa.timestamp(unit, tz=type_.tz)
        self._finer = unit == "ns"

    def array(self, values: Sequence[Any]) -> pa.Array:
        # Of nanoseconds Spark has no more than the microseconds; what does not fit is an error otherwise.
        return pa.array(values, self._given).cast(self.type, safe=not self._finer)


class Record(Column):
    """Mappings with the same names, as a struct; what is not among the names is left out."""

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
    """Lists of one kind of item."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.list_(item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        items = self._item.array([item for value in values if value is not None for item in value])
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.type)


class Mapping(Column):
    """Maps from text to one kind of item."""

    def __init__(self, item: Column) -> None:
        self._item = item
        self.type = pa.map_(pa.string(), item.type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        inside = [value for value in values if value is not None]
        keys = pa.array([key for value in inside for key in value], pa.string())
        items = self._item.array([item for value in inside for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)


class Choice(Column):
    """Values of several kinds: a struct with a member for each, of which one at most is not null."""

    def __init__(self, members: Sequence[tuple[Callable[[Any], bool], Column]]) -> None:
        """Each with a test whether a value is of this kind; the first that says so has it."""
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
        raise DecodeError(f"{value!r} is none of what it may be")


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Where each list begins in all items; null says that a list is null, and the last is the end."""
    starts = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    starts_or_null: list[int | None] = [
        None if value is None else start for value, start in zip(values, starts, strict=False)
    ]
    return pa.array([*starts_or_null, starts[-1]], pa.int32())
