"""AllocateProducerIds v0. KIP-730."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, field, message


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Message):
    """A broker's request for a block of producer ids."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field(default=-1)


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse(Message):
    """The first producer id of the block, and the number of ids."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    producer_id_start: Int64 = field()
    producer_id_len: Int32 = field()
