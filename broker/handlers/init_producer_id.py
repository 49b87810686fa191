"""InitProducerId v0–5. KIP-98, KIP-360: an id and epoch for an idempotent producer.

Without a transactional id each call gets a fresh producer id with epoch 0, whatever id the producer had.
Transactional ids belong to the transaction coordinator, which this broker does not run yet: producers that
name one are told that no coordinator is available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.handlers.context import PARKED, Parked, RequestContext
from kwire.errors import ApiError, ErrorCode
from kwire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from broker.node import Node

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


def handle(
    node: Node, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Parked:
    """Answer with the next producer id; it may wait for a new block of ids to be committed."""
    knows_id = request.producer_id != NO_PRODUCER_ID
    knows_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if knows_id != knows_epoch:
        return _refusal(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        if request.transactional_id == "":
            return _refusal(ErrorCode.INVALID_REQUEST)
        return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def allocated(result: int | ApiError) -> None:
        if isinstance(result, ApiError):
            context.complete(_refusal(result.code))
        else:
            context.complete(InitProducerIdResponse(producer_id=result, producer_epoch=0))

    node.metadata.allocate_producer_id(allocated)
    return PARKED


def _refusal(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
