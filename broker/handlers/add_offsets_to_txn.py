"""AddOffsetsToTxn v0–4: a transaction is about to commit offsets of a group. KIP-98."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.handlers.add_partitions_to_txn import CLIENT_VERSION, fenced_for
from broker.handlers.context import PARKED, Parked, RequestContext
from coordinator.ports import OFFSETS_TOPIC
from coordinator.transactions.machine import Producer
from kwire.errors import ErrorCode
from kwire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, context: RequestContext, request: AddOffsetsToTxnRequest) -> Parked:
    """The group's partition of the offsets topic becomes part of the transaction."""

    def done(code: ErrorCode) -> None:
        context.complete(AddOffsetsToTxnResponse(error_code=fenced_for(code, context.api_version)))

    node.transactions.add_partitions(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        [(OFFSETS_TOPIC, node.groups.offsets_partition(request.group_id))],
        CLIENT_VERSION,
        done,
    )
    return PARKED
