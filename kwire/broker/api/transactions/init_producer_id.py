"""InitProducerId v0–5. KIP-98, KIP-360, KIP-588: an id and epoch to write with.

Without a transactional id each call gets a fresh producer id with epoch 0, whatever id the producer had.
Transactional ids belong to the transaction coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.transactions.add_partitions_to_txn import fenced_for
from kwire.coordinator.transactions.machine import Producer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
FIRST_VERSION_WITH_FENCED = 4


def handle(
    node: Node, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Parked:
    """Answer with the next producer id; COORDINATOR_LOAD_IN_PROGRESS until the controller gave some."""
    knows_id = request.producer_id != NO_PRODUCER_ID
    knows_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if knows_id != knows_epoch:
        return _refusal(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        expected = Producer(request.producer_id, request.producer_epoch) if knows_id else None

        def done(result: Producer | ApiError) -> None:
            if isinstance(result, ApiError):
                code = fenced_for(result.code, context.api_version, FIRST_VERSION_WITH_FENCED)
                context.complete(_refusal(code))
            else:
                context.complete(
                    InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
                )

        node.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, done
        )
        return PARKED

    try:
        return InitProducerIdResponse(producer_id=node.producer_ids.next(), producer_epoch=0)
    except ApiError as error:
        return _refusal(error.code)


def _refusal(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
