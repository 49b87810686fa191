"""Control records of the quorum's log, and its state on disk. KIP-595, KIP-630, KIP-853."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Str, UInt16, field, message


@message(versions="0-1", flexible="0+")
class LeaderChangeMessage(Message):
    """Who was elected, by whom: the first record of every epoch."""

    version: Int16 = field()
    leader_id: Int32 = field()
    voters: list[Voter] = field()
    granting_voters: list[Voter] = field()


class Voter(Message):
    """A voter of the quorum."""

    voter_id: Int32 = field()
    voter_directory_id: Uuid = field("1+")


@message(versions="0", flexible="0+")
class SnapshotHeaderRecord(Message):
    """How a snapshot begins."""

    version: Int16 = field()
    last_contained_log_timestamp: Int64 = field()


@message(versions="0", flexible="0+")
class SnapshotFooterRecord(Message):
    """How a snapshot ends."""

    version: Int16 = field()


@message(versions="0", flexible="0+")
class KRaftVersionRecord(Message):
    """The version of the quorum's own protocol."""

    version: Int16 = field()
    k_raft_version: Int16 = field()


@message(versions="0", flexible="0+")
class VotersRecord(Message):
    """All voters, from here on (KIP-853)."""

    version: Int16 = field()
    voters: list[VotersVoter] = field()


class VotersVoter(Message):
    """A voter, and where it listens."""

    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()
    endpoints: list[Endpoint] = field()
    k_raft_version_feature: KRaftVersionFeature = field()


class Endpoint(Message):
    """One listener of a voter."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()


class KRaftVersionFeature(Message):
    """The versions of the quorum's protocol that a voter knows."""

    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(versions="0-1", flexible="0+")
class QuorumStateData(Message):
    """The file quorum-state: whom this node follows, and whom it voted for."""

    cluster_id: Str = field("0")
    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)
    voted_id: Int32 = field(default=-1)
    voted_directory_id: Uuid = field("1+")
    applied_offset: Int64 = field("0")
    current_voters: list[QuorumStateDataVoter] | None = field("0", nullable="0")


class QuorumStateDataVoter(Message):
    """A voter, as version 0 lists them."""

    voter_id: Int32 = field("0")
