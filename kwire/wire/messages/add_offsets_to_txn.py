"""AddOffsetsToTxn v0–4. KIP-98."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Message):
    """A request to add a group's partition of __consumer_offsets to a transaction."""

    transactional_id: Str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    group_id: Str = field()


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
