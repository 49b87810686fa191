"""Vote v0–2, BeginQuorumEpoch v0–1, EndQuorumEpoch v0–1: elections (KIP-595, KIP-996, KIP-853).
AddRaftVoter v0–1, RemoveRaftVoter v0, UpdateRaftVoter v0: who votes (KIP-853).

The quorum's machine has all the checks, the cluster's id among them, and answers: a vote once it is durable,
a change of the voters once it is committed, or in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def handle(node: ControllerRole, context: ControllerRequestContext, request: Message) -> Delayed:
    """Have the quorum answer."""
    node.quorum.asked(request, context)
    return DELAYED
