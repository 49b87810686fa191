"""Decoding of many values at once into two Arrow columns: the decoded values, and the errors.

This module runs in Spark's Python workers and does not depend on Spark. For an undecodable value, the decoded
value is null and there is an error. For a record without a value, both are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from kwire.pipeline.values.avro import AvroReader
from kwire.pipeline.values.avro_schema import AvroSchema
from kwire.pipeline.values.columns import DECODE_ERRORS, Column, DecodeError, Leaf
from kwire.pipeline.values.json_text import JsonReader
from kwire.pipeline.values.registry import Registry

AVRO, JSON, TEXT, BYTES = "avro", "json", "text", "bytes"
FORMATS: Final = (AVRO, JSON, TEXT, BYTES)
ROWS_AT_ONCE: Final = 8192
"""The maximum number of values that exist as Python objects at the same time."""


class Plan(NamedTuple):
    """The parameters for decoding values, which are sent to the executors."""

    format: str
    type: pa.DataType | None = None
    """The Arrow type of the decoded values, for JSON."""
    reader: tuple[str, ...] = ()
    """The texts of the reader's Avro schema, preceded by its references, as AvroSchema takes them."""
    registry: str = ""
    registry_settings: tuple[tuple[str, Any], ...] = ()


class Reader(Protocol):
    """A decoder of single values, with the column for its results."""

    column: Column

    def read(self, value: bytes) -> Any: ...


class TextReader:
    column: Column = Leaf(pa.string())

    def read(self, value: bytes) -> str:
        """Decode a value. Raises DecodeError if the value is not valid UTF-8."""
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"not valid UTF-8: {error.reason} at byte {error.start}") from None


class Decoder:
    """A decoder of many values according to a plan."""

    def __init__(self, plan: Plan, registry: Registry | None = None) -> None:
        """Create a decoder. Raises DecodeError if no column type fits the schema, or RegistryError.

        `registry` replaces the registry of the plan.
        """
        if registry is None and plan.format == AVRO:
            registry = Registry(plan.registry, dict(plan.registry_settings))
        self._registry = registry
        self._reader = _reader(plan, self._registry)
        self.type = self._reader.column.type

    def __enter__(self) -> Decoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._registry is not None:
            self._registry.__exit__(kind, error, trace)

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Decode values, and return an array of results and an array of errors. Raises RegistryError."""
        decoded: list[Any] = []
        faults: list[str | None] = []
        for value in values.to_pylist():
            found, fault = None, None
            if value is not None:
                try:
                    found = self._reader.read(value)
                except DecodeError as error:
                    fault = str(error)
            decoded.append(found)
            faults.append(fault)
        if isinstance(self._reader, AvroReader):
            self._reader.forget_missing_schemas()
        column = self._reader.column
        try:
            array = column.array(decoded)
        except DECODE_ERRORS:
            for at, why in misfits(column, decoded, 0):
                decoded[at], faults[at] = None, why
            array = column.array(decoded)
        return array, pa.array(faults, pa.string())


def misfits(column: Column, values: Sequence[Any], first: int) -> list[tuple[int, str]]:
    """Return the index and the error of each value that does not fit a column.

    The search bisects the values, because usually only a few of them do not fit. Indexes start at `first`.
    """
    try:
        column.array(values)
    except DECODE_ERRORS as error:
        if len(values) == 1:
            return [(first, f"the value does not fit: {error}")]
        middle = len(values) // 2
        return [
            *misfits(column, values[:middle], first),
            *misfits(column, values[middle:], first + middle),
        ]
    return []


def _reader(plan: Plan, registry: Registry | None) -> Reader:
    if registry is not None:
        return AvroReader(AvroSchema(plan.reader), registry)
    if plan.format == JSON:
        assert plan.type is not None
        return JsonReader(plan.type)
    assert plan.format == TEXT, "bytes are not decoded"
    return TextReader()


@lru_cache(maxsize=8)
def decoder_of(plan: Plan) -> Decoder:
    """Return the decoder of this process for a plan. The decoder keeps its cache of schemas.

    Raises DecodeError or RegistryError.
    """
    return Decoder(plan)


def with_data(plan: Plan, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return a batch in smaller parts, with the additional columns `data` and `data_error`.

    Raises RegistryError.
    """
    decoder = decoder_of(plan)
    found = []
    for first in range(0, batch.num_rows, ROWS_AT_ONCE):
        part = batch.slice(first, ROWS_AT_ONCE)
        data, faults = decoder.decode(part.column(part.schema.get_field_index("value")))
        names = [*part.schema.names, DATA, DATA_ERROR]
        found.append(pa.RecordBatch.from_arrays([*part.columns, data, faults], names=names))
    return found


DATA, DATA_ERROR = "data", "data_error"
