"""`spark.read.format("kwire")`: Kafka's segment files as a data source of Spark, without a broker.

    from kwire.pipeline.source import SegmentSource
    spark.dataSource.register(SegmentSource)
    spark.read.format("kwire").option("path", "/var/lib/kafka").option("subscribe", "flights").load()

The columns and options are those of Spark's Kafka source (pipeline/segments/options.py). A Python data source
cannot find out which columns a query needs, so it reads all columns unless a schema names fewer:

    spark.read.schema("key binary, offset bigint").format("kwire")...

Spark does not push down filters either. To read less, use the options `assign`, `startingOffsets` and
`endingOffsets`, or `startingTimestamp` and `endingTimestamp`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kwire.pipeline.segments.options import Options, parse
from kwire.pipeline.segments.plan import Range, plan, tasks
from kwire.pipeline.segments.read import TYPES, check_columns, read
from kwire.pipeline.segments.stream import (
    Offsets,
    initial_offsets,
    latest_offsets,
    limit_offsets,
    micro_batch_starts,
    micro_batch_tasks,
)


class TaskPartition(InputPartition):
    """The offset ranges that one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class SegmentSource(DataSource):
    """A Spark data source for the topics of a data directory, as a table or a stream."""

    @classmethod
    def name(cls) -> str:
        return "kwire"

    def schema(self) -> str:
        headers = parse(self.options).headers
        return ", ".join(f"{name} {type_}" for name, type_ in TYPES.items() if headers or name != "headers")

    def reader(self, schema: StructType) -> SegmentReader:
        return SegmentReader(parse(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> SegmentStreamReader:
        return SegmentStreamReader(parse(self.options, streaming=True), _columns(schema))


def _columns(schema: StructType) -> list[str]:
    return check_columns({field.name: field.dataType.simpleString() for field in schema})


class SegmentReader(DataSourceReader):
    """The reader of a batch query.

    It does not implement pushFilters. Spark keeps one plan for all uses of a table, so the filter of one
    query would also apply to other queries (docs/decisions/0008-filters-are-options.md).
    """

    def __init__(self, options: Options, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [TaskPartition(ranges) for ranges in tasks(self.options, plan(self.options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.columns)


def _read(partition: InputPartition, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TaskPartition):
        return iter(())  # Spark adds a partition of its own if there is nothing to read.
    _freeze()
    return chain.from_iterable(read(range_, columns=columns) for range_ in partition.ranges)


@cache
def _freeze() -> None:
    """Exclude all existing objects from garbage collection.

    Spark's worker collects garbage after every task, which takes 20 ms with the loaded modules. This function
    runs only once per process, because frozen objects are never freed.
    """
    gc.freeze()


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream query, which follows a data directory while a broker writes to it."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self._last: Offsets | None = None
        """The end offsets of a query with the trigger availableNow; None for other triggers."""

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = latest_offsets(self.options)

    def initialOffset(self) -> dict[str, Any]:
        return initial_offsets(self.options, self.options.partitions())

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found = latest_offsets(self.options) if self._last is None else self._last
        if isinstance(limit, ReadMaxRows):
            return limit_offsets(micro_batch_starts(self.options, start, found), found, limit.max_rows)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return latest_offsets(self.options)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TaskPartition(ranges) for ranges in micro_batch_tasks(self.options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark's checkpoint has the complete state."""
