"""Records of __transaction_state. KIP-98, KIP-890."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, Str, field, message


@message(key=0, versions="0")
class TransactionLogKey(Message):
    transactional_id: Str = field()


@message(key=0, versions="0-1", flexible="1+")
class TransactionLogValue(Message):
    """The producer of a transactional id, and the state of its transaction."""

    producer_id: Int64 = field()
    previous_producer_id: Int64 = field("1+", tag=0, default=-1)
    next_producer_id: Int64 = field("1+", tag=1, default=-1)
    producer_epoch: Int16 = field()
    next_producer_epoch: Int16 = field("1+", tag=3, default=-1)
    transaction_timeout_ms: Int32 = field()
    transaction_status: Int8 = field()
    transaction_partitions: list[PartitionsSchema] | None = field(nullable="0+")
    transaction_last_update_timestamp_ms: Int64 = field()
    transaction_start_timestamp_ms: Int64 = field()
    client_transaction_version: Int16 = field("1+", tag=2)


class PartitionsSchema(Message):
    """Partitions of one topic in the transaction."""

    topic: Str = field()
    partition_ids: list[Int32] = field()
