"""`spark.read.format("kwire")`: Kafka's segment files as a data source of Spark, without a broker.

    from kwire.pipeline.source import SegmentSource
    spark.dataSource.register(SegmentSource)
    spark.read.format("kwire").option("path", "/var/lib/kafka").option("subscribe", "flights").load()

Its columns and options are those of Spark's Kafka source; see pipeline/segments/options.py. Spark does not
tell a data source written in Python which columns a query needs: all are read unless a schema names fewer.

    spark.read.schema("key binary, offset bigint").format("kwire")...

Nor can it be told of filters. What is to be left unread is said by options: `assign`, `startingOffsets`,
`endingOffsets`, and their forms by timestamp.
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
    step_starts,
    step_tasks,
)


class TaskPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class SegmentSource(DataSource):
    """Topics of a data directory, as a table or a stream."""

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
    """One batch query.

    It has no pushFilters: Spark keeps one plan for all uses of a table, so that a filter of one of them would
    be that of all (docs/decisions/0008-filters-are-options.md).
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
        return iter(())  # Where there is nothing to read, Spark makes a partition of its own.
    _freeze()
    return chain.from_iterable(read(range_, columns=columns) for range_ in partition.ranges)


@cache
def _freeze() -> None:
    """Have modules not be looked through whenever Spark's worker collects garbage, each time for 20 ms.

    It does so after every task. Once is enough, or what tasks leave would stay for ever.
    """
    gc.freeze()


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that follows a directory while a broker writes it."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self._last: Offsets | None = None
        """Where a query ends that is to read what there is now."""

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
            return limit_offsets(step_starts(self.options, start, found), found, limit.max_rows)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return latest_offsets(self.options)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TaskPartition(ranges) for ranges in step_tasks(self.options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be remembered beside Spark's own checkpoint."""
