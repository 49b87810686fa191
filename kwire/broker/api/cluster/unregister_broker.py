"""UnregisterBroker v0: forget a broker that does not come back. KIP-500.

Apache Kafka forgets a broker that runs, too, which then serves nothing until it is started again. That helps
nobody: here the broker that is asked refuses to be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import UnregisterBroker
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse | Parked:
    """Whether the broker is forgotten."""
    if request.broker_id == node.node_id:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Broker {node.node_id} runs, and is the one that was asked to forget it.",
        )

    def done(reply: ApiError | None) -> None:
        response = UnregisterBrokerResponse()
        if reply is not None:
            response.error_code, response.error_message = reply.code, reply.message
        context.complete(response)

    node.controller.submit(UnregisterBroker(request.broker_id), done)
    return PARKED
