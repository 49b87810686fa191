"""A Spark data source in Python that reads no data, but repeats the same records of 100 bytes.

It has the columns of Spark's Kafka source. No source in Python with these columns can be faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kwire.pipeline.segments.read import SCHEMA, TYPES

VALUE_BYTES = 100
BATCH_RECORDS = 10_000
"""The number of records in an Arrow batch, similar to that of the segment source."""
TASKS = 8


class RecordShare(InputPartition):
    def __init__(self, records_count: int) -> None:
        super().__init__(records_count)
        self.records_count = records_count


class EmptySource(DataSource):
    """The data source. Use it with `spark.read.format("empty").option("records", N)`."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return ", ".join(f"{name} {type_}" for name, type_ in TYPES.items() if name != "headers")

    def reader(self, schema: StructType) -> EmptyReader:
        return EmptyReader(int(self.options["records"]))


class EmptyReader(DataSourceReader):
    """A reader that divides the records equally among the tasks."""

    def __init__(self, records_count: int) -> None:
        self.records_count = records_count

    def partitions(self) -> Sequence[InputPartition]:
        share, rest = divmod(self.records_count, TASKS)
        return [RecordShare(share + (number < rest)) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RecordShare)
        batch = _batch()
        left = partition.records_count
        while left > 0:
            yield batch if left >= BATCH_RECORDS else batch.slice(0, left)
            left -= BATCH_RECORDS


def _batch() -> pa.RecordBatch:
    values: dict[str, Any] = {
        "key": [None] * BATCH_RECORDS,
        "value": [os.urandom(VALUE_BYTES) for _ in range(BATCH_RECORDS)],
        "topic": ["records"] * BATCH_RECORDS,
        "partition": [0] * BATCH_RECORDS,
        "offset": list(range(BATCH_RECORDS)),
        "timestamp": [1_700_000_000_000_000] * BATCH_RECORDS,
        "timestampType": [0] * BATCH_RECORDS,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )
