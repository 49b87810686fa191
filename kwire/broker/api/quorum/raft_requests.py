"""Requests for elections and voter changes.

Elections: Vote v0–2, BeginQuorumEpoch v0–1, EndQuorumEpoch v0–1 (KIP-595, KIP-996, KIP-853). Voter changes:
AddRaftVoter v0–1, RemoveRaftVoter v0, UpdateRaftVoter v0 (KIP-853).

The raft state machine does all checks, including that of the cluster id. It responds to a Vote after the vote
is synced to disk, and to a voter change after the change is committed. UpdateRaftVoter, and AddRaftVoter with
AckWhenCommitted=false, get the response when the change is in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def handle(node: ControllerRole, context: ControllerRequestContext, request: Message) -> Delayed:
    """Pass the request to the raft state machine, which responds to it."""
    node.quorum.handle_request(request, context)
    return DELAYED
