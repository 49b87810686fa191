"""AddPartitionsToTxn v0–5. KIP-98 for clients (to v3); KIP-890 between brokers (verification, v4)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Message):
    """A request to add partitions to transactions, or to verify that they were added."""

    transactions: list[AddPartitionsToTxnTransaction] = field("4+")
    v3_and_below_transactional_id: Str = field("0-3")
    v3_and_below_producer_id: Int64 = field("0-3")
    v3_and_below_producer_epoch: Int16 = field("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3")


class AddPartitionsToTxnTransaction(Message):
    """A transaction and partitions that it writes to."""

    transactional_id: Str = field("4+")
    producer_id: Int64 = field("4+")
    producer_epoch: Int16 = field("4+")
    verify_only: Bool = field("4+")
    topics: list[AddPartitionsToTxnTopic] = field("4+")


class AddPartitionsToTxnTopic(Message):
    name: Str = field()
    partitions: list[Int32] = field()


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3")


class AddPartitionsToTxnResult(Message):
    """Results for one transaction's partitions."""

    transactional_id: Str = field("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field("4+")


class AddPartitionsToTxnTopicResult(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field()


class AddPartitionsToTxnPartitionResult(Message):
    """Result for one partition."""

    partition_index: Int32 = field()
    partition_error_code: Int16 = field()
