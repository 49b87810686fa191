"""ListTransactions v0–2. KIP-664, KIP-994 (by duration, v1), KIP-1152 (by pattern, v2)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Message):
    state_filters: list[Str] = field()
    producer_id_filters: list[Int64] = field()
    duration_filter: Int64 = field("1+", default=-1)
    transactional_id_pattern: Str | None = field("2+", nullable="2+", default=None)


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    unknown_state_filters: list[Str] = field()
    transaction_states: list[TransactionState] = field()


class TransactionState(Message):
    """A transactional id and its state."""

    transactional_id: Str = field()
    producer_id: Int64 = field()
    transaction_state: Str = field()
