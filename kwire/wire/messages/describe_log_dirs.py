"""DescribeLogDirs v1–5. KIP-113, KIP-827 (volume sizes, v4), cordoned directories (v5)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest(Message):
    """A request to describe log directories. Null topics means all partitions."""

    topics: list[DescribableLogDirTopic] | None = field(nullable="0+")


class DescribableLogDirTopic(Message):
    topic: Str = field()
    partitions: list[Int32] = field()


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field()


class DescribeLogDirsResult(Message):
    """A log directory and its partitions, and the total and free space of its volume."""

    error_code: Int16 = field()
    log_dir: Str = field()
    topics: list[DescribeLogDirsTopic] = field()
    total_bytes: Int64 = field("4+", ignorable=True, default=-1)
    usable_bytes: Int64 = field("4+", ignorable=True, default=-1)
    is_cordoned: Bool = field("5+", ignorable=True)


class DescribeLogDirsTopic(Message):
    name: Str = field()
    partitions: list[DescribeLogDirsPartition] = field()


class DescribeLogDirsPartition(Message):
    """The size of a log in bytes, and its lag in offsets.

    The lag is behind the high watermark, or behind the current replica for a future replica.
    """

    partition_index: Int32 = field()
    partition_size: Int64 = field()
    offset_lag: Int64 = field()
    is_future_key: Bool = field()
