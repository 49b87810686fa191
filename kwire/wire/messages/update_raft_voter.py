"""UpdateRaftVoter v0. KIP-853; sent to the leader by a voter whose endpoints or versions changed."""

from __future__ import annotations

from kwire.wire.messages.add_raft_voter import Listener as Listener
from kwire.wire.primitives import Uuid
from kwire.wire.records.raft import KRaftVersionFeature as KRaftVersionFeature
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest(Message):
    """A voter's new endpoints and supported versions of kraft.version."""

    cluster_id: Str | None = field(nullable="0+")
    current_leader_epoch: Int32 = field()
    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()
    listeners: list[Listener] = field()
    k_raft_version_feature: KRaftVersionFeature = field()


@message(key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse(Message):
    """An error, if any, and the current leader."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    current_leader: CurrentLeader = field(tag=0)


class CurrentLeader(Message):
    """The leader of the quorum and its address."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)
    host: Str = field()
    port: Int32 = field()
