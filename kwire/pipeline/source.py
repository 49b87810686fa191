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

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kwire.pipeline.readers import SegmentReader, SegmentStreamReader
from kwire.pipeline.segments.files import SegmentsError
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.read import TYPES, check_columns


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
        options, columns = parse(self.options, streaming=True), _columns(schema)
        try:
            from kwire.pipeline.limited_stream import LimitedStreamReader
        except ImportError:  # Spark before 4.2
            if options.max_offsets_per_trigger is not None:
                raise SegmentsError("'maxOffsetsPerTrigger' needs Spark 4.2 or newer") from None
            return SegmentStreamReader(options, columns)
        return LimitedStreamReader(options, columns)


def _columns(schema: StructType) -> list[str]:
    return check_columns({field.name: field.dataType.simpleString() for field in schema})
