"""The readers of the segment source, for batch and stream queries."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kwire.pipeline.segments.options import Options
from kwire.pipeline.segments.plan import Range, plan, tasks
from kwire.pipeline.segments.read import read
from kwire.pipeline.segments.stream import initial_offsets, latest_offsets, micro_batch_tasks


class TaskPartition(InputPartition):
    """The offset ranges that one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


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


class SegmentStreamReader(DataSourceStreamReader):
    """The reader of a stream query, which follows a data directory while a broker writes to it.

    Each micro-batch reads all new records.
    """

    def __init__(self, options: Options, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def initialOffset(self) -> dict[str, Any]:
        return initial_offsets(self.options, self.options.partitions())

    def latestOffset(self) -> dict[str, Any]:
        return latest_offsets(self.options)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [TaskPartition(ranges) for ranges in micro_batch_tasks(self.options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark's checkpoint has the complete state."""
