"""UpdateRaftVoter v0. KIP-853; from a voter to the leader of the quorum, where what it is has changed."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, UInt16, field, message


@message(key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest(Message):
    """A voter has other listeners, or knows other versions of the quorum's protocol."""

    cluster_id: Str | None = field(nullable="0+")
    current_leader_epoch: Int32 = field()
    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()
    listeners: list[Listener] = field()
    k_raft_version_feature: KRaftVersionFeature = field()


class Listener(Message):
    """One listener of the voter."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()


class KRaftVersionFeature(Message):
    """The versions of the quorum's protocol that a voter knows."""

    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse(Message):
    """Whether the change is made, and who leads the quorum."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    current_leader: CurrentLeader = field(tag=0)


class CurrentLeader(Message):
    """The leader of the quorum, and its address."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)
    host: Str = field()
    port: Int32 = field()
