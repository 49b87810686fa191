"""DataFrames with decoded values.

An archive's file `_values.json` has the type of the column with decoded values, so that the job infers a type
from JSON only once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructField, StructType

from kwire.pipeline.archive.manifest import DATA as FILES
from kwire.pipeline.archive.manifest import Archive, ArchiveError
from kwire.pipeline.archive.reading import escape_glob
from kwire.pipeline.config import ConfigError
from kwire.pipeline.values.avro import column_of
from kwire.pipeline.values.avro_members import moved_members
from kwire.pipeline.values.avro_schema import AvroSchema
from kwire.pipeline.values.columns import DecodeError
from kwire.pipeline.values.decoder import AVRO, DATA, DATA_ERROR, JSON, Plan, with_data
from kwire.pipeline.values.json_numbers import sample_of
from kwire.pipeline.values.json_text import JsonReader, document_of
from kwire.pipeline.values.registry import Registry
from kwire.pipeline.values.settings import ValuesConfig
from kwire.pipeline.values.types import duplicate_fields, incompatible_fields

NOTE: Final = "_values.json"
SAMPLE_RECORDS: Final = 1_000


def plan_of(
    spark: SparkSession,
    config: ValuesConfig,
    sample: Callable[[], DataFrame],
    known: DataType | None = None,
) -> Plan:
    """Plan the decoding of a job's values. Raises ConfigError or RegistryError.

    If there is neither a schema nor a `known` type for JSON, the type is inferred from the records of
    `sample`.
    """
    try:
        plan = Plan(config.format)
        if config.format == AVRO:
            plan = _avro_plan(config)
        elif config.format == JSON:
            type_ = arrow_type(_ddl(config.schema) if config.schema else known or _inferred(spark, sample()))
            JsonReader(type_)
            plan = Plan(JSON, type_)
    except DecodeError as fault:
        raise ConfigError(f"values cannot be decoded: {fault}") from None
    _check_names(spark, spark_type(plan))
    return plan


def _check_names(spark: SparkSession, type_: DataType) -> None:
    """Raise ConfigError if Spark would treat the names of two fields as equal."""
    if spark.conf.get("spark.sql.caseSensitive") == "true":
        return
    for both in duplicate_fields(_type_json(type_), DATA):
        raise ConfigError(
            f"{both}, which Spark does not distinguish: set values.schema with one of these fields"
        )


def _avro_plan(config: ValuesConfig) -> Plan:
    with Registry(config.registry, dict(config.registry_settings)) as registry:
        if config.schema:
            registry.check()
            texts = [config.schema]
        else:
            texts = registry.latest(config.subject)
    column_of(AvroSchema(texts))
    return Plan(AVRO, None, tuple(texts), config.registry, config.registry_settings)


def arrow_type(type_: DataType) -> pa.DataType:
    """Convert a Spark type to an Arrow type, in which timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(type_, timezone="UTC")


def spark_type(plan: Plan) -> DataType:
    """Return the Spark type of the values that a plan decodes."""
    from pyspark.sql.pandas.types import from_arrow_type

    if plan.format == AVRO:
        return from_arrow_type(column_of(AvroSchema(plan.reader)).type)
    # Use the column's own type. Every field in it is nullable, even if the DDL says NOT NULL.
    return StringType() if plan.type is None else from_arrow_type(JsonReader(plan.type).column.type)


def _ddl(text: str) -> DataType:
    try:
        return DataType.fromDDL(text)
    except Exception as error:
        # Spark's parser raises its own exceptions, with messages of many lines.
        lines = filter(None, map(str.strip, str(error).splitlines()))
        raise ConfigError(f"values.schema is not a valid DDL: {next(lines, type(error).__name__)}") from None


def _inferred(spark: SparkSession, sample: DataFrame) -> DataType:
    rows = sample.select("value").where("value IS NOT NULL").limit(SAMPLE_RECORDS).collect()
    documents = []
    for row in rows:
        with suppress(DecodeError):
            documents.append(document_of(bytes(row.value)))
    texts = spark.sparkContext.parallelize(sample_of(documents))
    # Use a random name, because a field may have the default name of the column for values that are not JSON.
    reader = spark.read.option("mode", "DROPMALFORMED").option("columnNameOfCorruptRecord", uuid4().hex)
    found = reader.json(texts).schema
    if not found.fields:
        raise ConfigError("the input has no JSON to infer a schema from: set values.schema")
    return found


def decode_values(frame: DataFrame, plan: Plan) -> DataFrame:
    """Add the columns `data` and `data_error` to a table of records."""
    schema = StructType(
        [*frame.schema.fields, StructField(DATA, spark_type(plan)), StructField(DATA_ERROR, StringType())]
    )
    return frame.mapInArrow(partial(_decode, plan), schema)


def _decode(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from with_data(plan, batch)


def record_type(archive: Path, plan: Plan, type_: DataType) -> None:
    """Record the plan, and the type of the decoded values, in `_values.json`. Replaces the file atomically.

    Raises ConfigError if existing files cannot be read with the new type, or ArchiveError.
    """
    type_json = _type_json(type_)
    earlier = [earlier_type for earlier_type in _all_recorded_types(archive) if earlier_type != type_json]
    if earlier and not Archive(archive).files():
        earlier = []
    faults = [why for one in earlier for why in incompatible_fields(one, type_json, DATA)]
    if earlier and plan.format == AVRO:
        faults += _moved_members(archive, plan)
    if faults:
        raise ConfigError(
            f"{archive} has values of a schema that could not be read any more: {faults[0]}; "
            f"set values.schema to a compatible one, or archive to another directory"
        )
    content = {"format": plan.format, "type": type_json, "reader": list(plan.reader), "earlier": earlier}
    temporary = archive / f".{NOTE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.rename(archive / NOTE)


def _moved_members(archive: Path, plan: Plan) -> list[str]:
    """Describe the unions whose members differ from those of the last recorded schema."""
    texts = json.loads((archive / NOTE).read_text(encoding="utf-8")).get("reader")
    if not texts:
        return []
    return list(moved_members(AvroSchema(texts).type, AvroSchema(plan.reader).type, DATA))


def _type_json(type_: DataType) -> Any:
    return type_.jsonValue()


def _all_recorded_types(archive: Path) -> list[Any]:
    """Return all types that the archive's decoded values have had, as JSON. Raises ArchiveError."""
    last = recorded_type(archive)
    if last is None:
        return []
    earlier = json.loads((archive / NOTE).read_text(encoding="utf-8")).get("earlier", [])
    return [*earlier, _type_json(last)]


def recorded_type(archive: Path, format_: str | None = None) -> DataType | None:
    """Return the recorded type of an archive's decoded values, or None if no type is recorded.

    With `format_`, the type of another format counts as not recorded. Raises ArchiveError if `_values.json`
    is malformed.
    """
    path = archive / NOTE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if format_ is not None and content["format"] != format_:
            return None
        return _of_json(content["type"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} does not contain the type of values: {error!r}") from None


def _of_json(content: Any) -> DataType:
    # Spark parses only struct types from JSON, so wrap the type in a struct.
    around = {"type": "struct", "fields": [{"name": DATA, "type": content, "nullable": True, "metadata": {}}]}
    found: DataType = StructType.fromJson(around).fields[0].dataType
    return found


def load_archived(spark: SparkSession, archive: Archive) -> DataFrame:
    """Load an archive with its decoded values. All files are read with the latest type.

    A field that an older file does not have is null, and narrower numbers are widened. Raises ArchiveError.
    """
    type_ = recorded_type(archive.directory)
    files = archive.files()
    if type_ is None or not files:
        raise ArchiveError(f"{archive.directory} has no decoded values")
    root = archive.directory
    fields = [
        "offset BIGINT, timestamp TIMESTAMP, timestampType INT, key BINARY, value BINARY",
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
        "topic STRING, date DATE, partition INT",
    ]
    schema = StructType(DataType.fromDDL(", ".join(fields)).fields)
    schema = StructType([*schema.fields, StructField(DATA, type_), StructField(DATA_ERROR, StringType())])
    paths = [escape_glob(root / file.path) for file in files]
    return spark.read.schema(schema).option("basePath", f"{root}/{FILES}").parquet(*paths)
