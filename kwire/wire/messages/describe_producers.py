"""DescribeProducers v0. KIP-664."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = field()


class TopicRequest(Message):
    name: Str = field()
    partition_indexes: list[Int32] = field()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersResponse(Message):
    throttle_time_ms: Int32 = field()
    topics: list[TopicResponse] = field()


class TopicResponse(Message):
    name: Str = field()
    partitions: list[PartitionResponse] = field()


class PartitionResponse(Message):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
    active_producers: list[ProducerState] = field()


class ProducerState(Message):
    """The state of one producer in a partition."""

    producer_id: Int64 = field()
    producer_epoch: Int32 = field()
    last_sequence: Int32 = field(default=-1)
    last_timestamp: Int64 = field(default=-1)
    coordinator_epoch: Int32 = field()
    current_txn_start_offset: Int64 = field(default=-1)
