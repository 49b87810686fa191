"""DescribeTransactions v0. KIP-664."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Message):
    transactional_ids: list[Str] = field()


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse(Message):
    throttle_time_ms: Int32 = field()
    transaction_states: list[TransactionState] = field()


class TransactionState(Message):
    """A transactional id and its current transaction."""

    error_code: Int16 = field()
    transactional_id: Str = field()
    transaction_state: Str = field()
    transaction_timeout_ms: Int32 = field()
    transaction_start_time_ms: Int64 = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    topics: list[TopicData] = field()


class TopicData(Message):
    topic: Str = field()
    partitions: list[Int32] = field()
