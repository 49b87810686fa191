"""Code of several quorum APIs: checks that this node is the leader, and the leader's id and address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.host.host import PeerAddress
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole, QuorumPort


def leader_error(quorum: QuorumPort, epoch: int) -> ErrorCode:
    """Return NONE if this node is the leader in this epoch and is not shutting down; otherwise an error."""
    if epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > quorum.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not quorum.leads:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.BROKER_NOT_AVAILABLE if quorum.is_shutting_down else ErrorCode.NONE


def respond_when_durable(
    node: ControllerRole, context: ControllerRequestContext, respond: Callable[[], Message | Delayed]
) -> Message | Delayed:
    """Return the result of `respond` if all votes and epochs of this node are synced to disk.

    Otherwise call `respond` after the sync, send its result, and return DELAYED now.
    """

    def later() -> None:
        try:
            reply = respond()
        except ApiError as error:
            context.refuse(error)
        else:
            if not isinstance(reply, Delayed):
                context.complete(reply)

    return respond() if node.quorum.when_synced(later) else DELAYED


def leader_endpoint(node: ControllerRole, listener: str) -> tuple[int, PeerAddress] | None:
    """Return the leader's id and the leader's address on a listener; None while either is unknown."""
    quorum = node.quorum
    address = quorum.leader_endpoint(listener) if quorum.advertised_leader_id >= 0 else None
    if address is not None and not address.host:
        # For a listener bound to all addresses, the voter set has no host, but the registration has one.
        registered = node.image.controllers.get(quorum.advertised_leader_id)
        if registered is None or listener not in registered.endpoints:
            return None
        address = address._replace(host=registered.endpoints[listener].host)
    return None if address is None else (quorum.advertised_leader_id, address)
