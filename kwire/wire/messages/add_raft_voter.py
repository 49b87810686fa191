"""AddRaftVoter v0–1. KIP-853, KIP-1186 (response before the commit, v1)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, UInt16, field, message


@message(key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest(Message):
    """A request to make an observer of the quorum a voter."""

    cluster_id: Str | None = field(nullable="0+")
    timeout_ms: Int32 = field()
    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()
    listeners: list[Listener] = field()
    ack_when_committed: Bool = field("1+", default=True)


class Listener(Message):
    """A listener of the voter."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()


@message(key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
