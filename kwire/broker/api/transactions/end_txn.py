"""EndTxn v0–5: commit or abort. From v5 on the answer tells the epoch to go on with. KIP-98, KIP-890."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.transactions.add_partitions_to_txn import fenced_for
from kwire.coordinator.transactions.machine import Producer
from kwire.wire.errors import ApiError
from kwire.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_THAT_RAISES_EPOCHS = 5


def handle(node: Node, context: RequestContext, request: EndTxnRequest) -> Parked:
    """Answer when it is decided; the markers are written meanwhile."""
    version = context.api_version

    def done(result: Producer | ApiError) -> None:
        if isinstance(result, ApiError):
            context.complete(EndTxnResponse(error_code=fenced_for(result.code, version)))
        elif version < FIRST_VERSION_THAT_RAISES_EPOCHS:
            context.complete(EndTxnResponse())
        else:
            context.complete(EndTxnResponse(producer_id=result.producer_id, producer_epoch=result.epoch))

    node.transactions.end(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=2 if version >= FIRST_VERSION_THAT_RAISES_EPOCHS else 0,
        done=done,
    )
    return PARKED
