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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import fastavro
import pyarrow as pa

from kwire.pipeline.values.avro_schema import (
    NAMED,
    RECORDS,
    AvroSchema,
    logical_type,
    logical_type_mismatch,
    type_of,
)
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

MAGIC: Final = 0
HEAD_BYTES: Final = 5
DECIMAL_DIGITS: Final = 38
"""The maximum precision of a decimal in Spark, in digits."""

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
PYTHON: Final[dict[str, type]] = {
    "boolean": bool,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "array": list,
    "map": dict,
}
WIDER: Final = [({"int", "long"}, "long"), ({"float", "double"}, "double")]
_DIGITS: Final = decimal.Context(prec=DECIMAL_DIGITS * 2)


class AvroReader:
    """A reader of values that were written with any schema. It converts them to the reader's schema."""

    def __init__(self, reader: AvroSchema, registry: Registry) -> None:
        """Create a reader. Raises DecodeError if Spark does not support a type of the schema."""
        self.column = column_of(reader)
        self._reader = reader
        self._registry = registry
        self._with_names = _has_choice(reader.full)
        self._writers: dict[int, tuple[Any, Any] | str] = {}

    def read(self, value: bytes) -> Any:
        """Decode a value without applying logical types. Raises DecodeError or RegistryError."""
        if len(value) < HEAD_BYTES:
            raise DecodeError(f"{len(value)} bytes are too few for a schema id")
        if value[0] != MAGIC:
            raise DecodeError(f"the first byte is {value[0]}, not {MAGIC}")
        writer, reader = self._schemas(int.from_bytes(value[1:HEAD_BYTES], "big"))
        stream = io.BytesIO(value)
        stream.seek(HEAD_BYTES)
        try:
            found = fastavro.schemaless_reader(stream, writer, reader, return_named_type=self._with_names)
        except EOFError:
            raise DecodeError("the value ends within its record") from None
        except fastavro.read.SchemaResolutionError as error:
            raise DecodeError(f"the reader's schema does not fit the writer's: {_short(error)}") from None
        except Exception as error:
            # Catch every exception, because arbitrary bytes can cause any exception in fastavro.
            raise DecodeError(f"the value does not match its schema: {_short(error)}") from None
        left_bytes = len(value) - stream.tell()
        if left_bytes:
            raise DecodeError(f"{left_bytes} bytes follow the record")
        return found

    def _schemas(self, schema_id: int) -> tuple[Any, Any]:
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

    def _resolved(self, writer: AvroSchema) -> tuple[Any, Any]:
        why = logical_type_mismatch(writer, self._reader)
        if why:
            raise DecodeError(f"the reader's schema does not fit the writer's: {why}")
        return writer.stored, None if writer.stored == self._reader.stored else self._reader.stored

    def forget_missing_schemas(self) -> None:
        """Forget which schemas were missing or unusable, so that the next read looks them up again.

        A schema may be registered after its first record.
        """
        self._writers = {key: found for key, found in self._writers.items() if not isinstance(found, str)}


def _short(error: Exception) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= 200 else f"{text[:200]} …"


class _Named(Column):
    """A column of union values, which fastavro returns as pairs of type name and value."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self.type = column.type

    def array(self, values: Sequence[Any]) -> pa.Array:
        return self._column.array([value[1] if isinstance(value, tuple) else value for value in values])


def column_of(schema: AvroSchema) -> Column:
    """Return a column for values of a schema. Raises DecodeError if Spark does not support its type."""
    return _column(schema, schema.full, ())


def _column(schema: AvroSchema, at: Any, inside: tuple[str, ...]) -> Column:
    at = schema.named.get(at, at) if isinstance(at, str) else at
    kind = type_of(at)
    if kind == "union":
        return _union(schema, at, inside)
    if kind in RECORDS:
        name = at["name"]
        if name in inside:
            raise DecodeError(f"the record {name} contains itself, which a column cannot represent")
        if not at["fields"]:
            raise DecodeError(f"the record {name} has no fields, which Parquet cannot represent")
        return Record(
            [(field["name"], _column(schema, field["type"], (*inside, name))) for field in at["fields"]]
        )
    if kind == "array":
        return Listing(_column(schema, at["items"], inside))
    if kind == "map":
        return Mapping(_column(schema, at["values"], inside))
    return _leaf(at, kind)


def _leaf(at: Any, kind: str) -> Column:
    logical = logical_type(at)
    if logical == "date":
        return Leaf(pa.date32())
    if logical is not None and "timestamp-" in logical:
        unit = {"millis": "ms", "micros": "us", "nanos": "ns"}[logical.rpartition("-")[2]]
        return Time(unit, LOCAL_MICROSECONDS if logical.startswith("local-") else MICROSECONDS)
    if logical == "decimal":
        precision, scale = at["precision"], at.get("scale", 0)
        if precision > DECIMAL_DIGITS:
            raise DecodeError(f"a decimal with {precision} digits exceeds the maximum of {DECIMAL_DIGITS}")
        return Leaf(pa.decimal128(precision, scale), partial(_decimal, scale))
    if logical == "uuid" and kind == "fixed":
        return Leaf(pa.string(), lambda value: str(uuid.UUID(bytes=_bytes(value))))
    if kind in ("bytes", "fixed"):
        return Leaf(PRIMITIVE[kind], _bytes)
    if kind not in PRIMITIVE:
        raise DecodeError(f"unknown Avro type {kind}")
    return Leaf(PRIMITIVE[kind])


def _bytes(value: Any) -> bytes:
    # A default value for bytes in a schema is text with one character for each byte.
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(scale: int, value: Any) -> decimal.Decimal:
    return decimal.Decimal(int.from_bytes(_bytes(value), "big", signed=True)).scaleb(-scale, _DIGITS)


def _union(schema: AvroSchema, branches: list[Any], inside: tuple[str, ...]) -> Column:
    others = [branch for branch in branches if type_of(branch) != "null"]
    kinds = {type_of(branch) for branch in others}
    wide = next((wider for narrow, wider in WIDER if kinds == narrow), None)
    if not others:
        return Leaf(PRIMITIVE["null"])
    if wide is not None and not any(logical_type(branch) for branch in others):
        return Leaf(PRIMITIVE[wide])
    if len(others) == 1:
        return _Named(_column(schema, others[0], inside))
    resolved = [schema.named.get(branch, branch) if isinstance(branch, str) else branch for branch in others]
    kinds = {type_of(branch) for branch in resolved}
    return Choice([(_test(branch, kinds), _Named(_column(schema, branch, inside))) for branch in resolved])


def _test(branch: Any, kinds: set[str]) -> Callable[[Any], bool]:
    """Return a function that tests whether a value belongs to a branch of a union.

    `kinds` has the kinds of all branches of the union.
    """
    kind = type_of(branch)
    if kind in NAMED:
        python: type = {"enum": str, "fixed": bytes}.get(kind, dict)
        unqualified = branch["name"].rpartition(".")[2]
        # A value without a type name was not written as a union.
        return lambda value: (
            value[0].rpartition(".")[2] == unqualified
            if isinstance(value, tuple)
            else isinstance(value, python)
        )
    if (kind, True) in (("int", "long" in kinds), ("float", "double" in kinds)):
        return lambda value: False
    if kind in ("int", "long"):
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    wanted = PYTHON[kind]
    return lambda value: isinstance(value, wanted)


def _has_choice(schema: Any) -> bool:
    """Return whether a schema has a union of several types besides null.

    The values of such a union need type names.
    """
    if isinstance(schema, list):
        others = [branch for branch in schema if type_of(branch) != "null"]
        return len(others) > 1 or any(_has_choice(branch) for branch in others)
    if not isinstance(schema, dict):
        return False
    parts = [
        schema.get("items"),
        schema.get("values"),
        *(field["type"] for field in schema.get("fields", ())),
    ]
    return any(_has_choice(part) for part in parts)
