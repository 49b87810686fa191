"""What each answer of the quorum's own APIs says of its leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.host.host import PeerAddress
from kwire.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kwire.broker.api.ports import ControllerRole, ServesQuorum


def unfit(quorum: ServesQuorum, epoch: int) -> ErrorCode:
    """Why this node is not the leader of an epoch; NONE where it is."""
    if epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > quorum.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not quorum.leads:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.BROKER_NOT_AVAILABLE if quorum.is_ending else ErrorCode.NONE


def leader_endpoint(node: ControllerRole, listener: str) -> tuple[int, PeerAddress] | None:
    """The leader's id, and where it is reached through a listener; None where that is not known."""
    quorum, controllers = node.quorum, node.image.controllers
    for name, host, port in quorum.describe().endpoints if quorum.leads else ():
        if name == listener:
            # Voters are not told the host of a listener that has every address; registrations are.
            registered = controllers.get(quorum.leader_id) if not host else None
            if registered is not None and listener in registered.endpoints:
                host = registered.endpoints[listener].host
            return (quorum.leader_id, PeerAddress(host, port)) if host else None
    return None
