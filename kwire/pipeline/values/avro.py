"""Decoding of Avro values in Confluent's wire format: a zero byte, the writer's schema id, and the record.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
The column types are those of Spark's own Avro reader: a union with null is nullable, any other union is a
struct of `member0`, `member1` and so on, an enum is text, `fixed` is binary, and a time of day is a number.
https://spark.apache.org/docs/latest/sql-data-sources-avro.html#supported-types-for-avro---spark-sql-conversion
"""

from __future__ import annotations

import decimal
import io
import uuid
from functools import partial
from typing import Any, Final

import fastavro
import pyarrow as pa

from kwire.pipeline.values.avro_defaults import default_of
from kwire.pipeline.values.avro_resolution import Convert, conversion
from kwire.pipeline.values.avro_schema import (
    ARRAY,
    MAP,
    NO_DEFAULT,
    RECORD,
    UNION,
    AvroSchema,
    AvroType,
    common_number,
    members_of,
)
from kwire.pipeline.values.avro_stored import OPTIONS, stored_schema
from kwire.pipeline.values.columns import (
    LOCAL_MICROSECONDS,
    MICROSECONDS,
    Choice,
    Column,
    DecodeError,
    Leaf,
    Listing,
    Mapping,
    Record,
    Time,
)
from kwire.pipeline.values.registry import Registry
from kwire.wire.plural import plural

MAGIC: Final = 0
HEAD_BYTES: Final = 5
DECIMAL_DIGITS: Final = 38
"""The maximum precision of a decimal in Spark, in digits."""
UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}

PRIMITIVE: Final = {
    # Parquet has no null type, so a column that is always null needs another type.
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_DIGITS: Final = decimal.Context(prec=DECIMAL_DIGITS * 2)


class AvroReader:
    """A reader of values that were written with any schema. It converts them to the reader's schema."""

    def __init__(self, reader: AvroSchema, registry: Registry) -> None:
        """Create a reader. Raises DecodeError if Spark does not support a type of the schema."""
        self.column = column_of(reader)
        self._reader = reader
        self._registry = registry
        self._writers: dict[int, tuple[Any, Convert | None] | str] = {}

    def read(self, value: bytes) -> Any:
        """Decode a value without applying logical types. Raises DecodeError or RegistryError."""
        if len(value) < HEAD_BYTES:
            raise DecodeError(f"{plural(len(value), 'byte')}: too few for a schema id")
        if value[0] != MAGIC:
            raise DecodeError(f"the first byte is {value[0]}, not {MAGIC}")
        stored, convert = self._schemas(int.from_bytes(value[1:HEAD_BYTES], "big"))
        stream = io.BytesIO(value)
        stream.seek(HEAD_BYTES)
        try:
            found: Any = fastavro.schemaless_reader(stream, stored, None, **OPTIONS)
        except EOFError:
            raise DecodeError("the value ends within its record") from None
        except Exception as error:
            # Catch every exception, because arbitrary bytes can cause any exception in fastavro.
            raise DecodeError(f"the value does not match its schema: {_short(error)}") from None
        left_bytes = len(value) - stream.tell()
        if left_bytes:
            raise DecodeError(f"{plural(left_bytes, 'byte')} after the record")
        return found if convert is None else convert(found)

    def _schemas(self, schema_id: int) -> tuple[Any, Convert | None]:
        found = self._writers.get(schema_id)
        if found is None:
            try:
                found = self._resolved(AvroSchema(self._registry.schema(schema_id)))
            except DecodeError as fault:
                found = str(fault)
            self._writers[schema_id] = found
        if isinstance(found, str):
            raise DecodeError(found)
        return found

    def _resolved(self, writer: AvroSchema) -> tuple[Any, Convert | None]:
        try:
            return stored_schema(writer.type), conversion(writer.type, self._reader.type)
        except RecursionError:
            raise DecodeError("the writer's schema is nested too deeply") from None

    def forget_missing_schemas(self) -> None:
        """Forget which schemas were missing or unusable, so that the next read looks them up again.

        A schema may be registered after its first record.
        """
        self._writers = {key: found for key, found in self._writers.items() if not isinstance(found, str)}


def _short(error: Exception) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= 200 else f"{text[:200]} …"


def column_of(schema: AvroSchema) -> Column:
    """Return a column for values of a reader's schema.

    Raises DecodeError if Spark does not support its type, or if a default value is invalid.
    """
    try:
        return _column(schema.type, ())
    except RecursionError:
        raise DecodeError("the schema is nested too deeply") from None


def _column(type_: AvroType, inside: tuple[str, ...]) -> Column:
    if type_.kind == UNION:
        return _union(type_, inside)
    if type_.kind == RECORD:
        return _record(type_, inside)
    if type_.kind == ARRAY:
        return Listing(_column(type_.item, inside))
    if type_.kind == MAP:
        return Mapping(_column(type_.item, inside))
    return _leaf(type_)


def _record(type_: AvroType, inside: tuple[str, ...]) -> Column:
    name = type_.name
    if name in inside:
        raise DecodeError(f"the record {name} contains itself, which a column cannot represent")
    if not type_.fields:
        raise DecodeError(f"the record {name} has no fields, which Parquet cannot represent")
    columns = [(field.name, _column(field.type, (*inside, name))) for field in type_.fields]
    for field in type_.fields:
        if field.default is not NO_DEFAULT:
            default_of(field)
    return Record(columns)


def _leaf(type_: AvroType) -> Column:
    kind, logical = type_.kind, type_.logical
    name = "" if logical is None else logical.name
    if name == "date":
        return Leaf(pa.date32())
    if "timestamp-" in name:
        unit = UNITS[name.rpartition("-")[2]]
        return Time(unit, LOCAL_MICROSECONDS if name.startswith("local-") else MICROSECONDS)
    if logical is not None and name == "decimal":
        precision, scale = logical.precision, logical.scale
        if precision > DECIMAL_DIGITS:
            raise DecodeError(f"a decimal with {precision} digits exceeds the maximum of {DECIMAL_DIGITS}")
        return Leaf(pa.decimal128(precision, scale), partial(_decimal, scale))
    if name == "uuid" and kind == "fixed":
        return Leaf(pa.string(), lambda value: str(uuid.UUID(bytes=value)))
    return Leaf(PRIMITIVE[kind])


def _decimal(scale: int, value: bytes) -> decimal.Decimal:
    return decimal.Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _DIGITS)


def _union(union: AvroType, inside: tuple[str, ...]) -> Column:
    others = [branch for branch in union.items if branch.kind != "null"]
    if not others:
        return Leaf(PRIMITIVE["null"])
    wide = common_number(others)
    if wide is not None:
        return Leaf(PRIMITIVE[wide])
    if len(others) == 1:
        return _column(others[0], inside)
    return Choice([_column(branch, inside) for branch in members_of(union)])
