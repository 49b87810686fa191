"""AddOffsetsToTxn v0–4: a transaction is about to commit offsets of a group. KIP-98."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.transactions.add_partitions_to_txn import CLIENT_VERSION, fenced_for
from kwire.coordinator.ports import OFFSETS_TOPIC
from kwire.coordinator.transactions.machine import Producer
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


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
