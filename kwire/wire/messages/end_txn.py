"""EndTxn v0–5. KIP-98, KIP-588 (v2), KIP-890 (producer epoch in the response, v5)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=26, versions="0-5", flexible="3+")
class EndTxnRequest(Message):
    transactional_id: Str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    committed: Bool = field()


@message(key=26, versions="0-5", flexible="3+")
class EndTxnResponse(Message):
    """The producer id and epoch for the next transaction (version 5), or an error."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    producer_id: Int64 = field("5+", ignorable=True, default=-1)
    producer_epoch: Int16 = field("5+", ignorable=True, default=-1)
