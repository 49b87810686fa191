"""Produce v3–13.

KIP-98 (transactions), KIP-467 (record errors, v8), KIP-951 (leader hints, v10), KIP-890 (v12), topic ids
(v13).
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Records, Str, field, message


@message(key=0, versions="3-13", flexible="9+")
class ProduceRequest(Message):
    """A request to append record batches to partitions."""

    transactional_id: Str | None = field(nullable="0+", default=None)
    acks: Int16 = field()
    timeout_ms: Int32 = field()
    topic_data: list[TopicProduceData] = field()


class TopicProduceData(Message):
    """Batches of one topic, which is named by its id from version 13 on."""

    name: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field()


class PartitionProduceData(Message):
    index: Int32 = field()
    records: Records | None = field(nullable="0+")


@message(key=0, versions="3-13", flexible="9+")
class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = field()
    throttle_time_ms: Int32 = field()
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0)


class TopicProduceResponse(Message):
    """Results for one topic's partitions."""

    name: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field()


class NodeEndpoint(Message):
    """The address of a broker that this response names as a leader."""

    node_id: Int32 = field("10+")
    host: Str = field("10+")
    port: Int32 = field("10+")
    rack: Str | None = field("10+", nullable="10+", default=None)


class PartitionProduceResponse(Message):
    """The offset of the batch's first record, or an error."""

    index: Int32 = field()
    error_code: Int16 = field()
    base_offset: Int64 = field()
    log_append_time_ms: Int64 = field(default=-1)
    log_start_offset: Int64 = field("5+", ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+", ignorable=True)
    error_message: Str | None = field("8+", nullable="8+", ignorable=True, default=None)
    current_leader: LeaderIdAndEpoch = field("10+", tag=0)


class BatchIndexAndErrorMessage(Message):
    """The index of an invalid record, and the error for it."""

    batch_index: Int32 = field("8+")
    batch_index_error_message: Str | None = field("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Message):
    """The current leader, for a client that sent its request to another broker."""

    leader_id: Int32 = field("10+", default=-1)
    leader_epoch: Int32 = field("10+", default=-1)
