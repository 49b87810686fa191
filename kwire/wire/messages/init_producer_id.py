"""InitProducerId v0–6. KIP-98, KIP-360 (v3), KIP-588 (v4), KIP-890 (v5), KIP-939 (v6, unstable)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest(Message):
    transactional_id: Str | None = field(nullable="0+")
    transaction_timeout_ms: Int32 = field()
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)
    enable2_pc: Bool = field("6+")
    keep_prepared_txn: Bool = field("6+")


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    producer_id: Int64 = field(default=-1)
    producer_epoch: Int16 = field()
    ongoing_txn_producer_id: Int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field("6+", default=-1)
