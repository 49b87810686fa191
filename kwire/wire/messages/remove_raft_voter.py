"""RemoveRaftVoter v0. KIP-853."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest(Message):
    """A request to remove a voter from the quorum."""

    cluster_id: Str | None = field(nullable="0+")
    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()


@message(key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
