"""Control records of the metadata log. KIP-595, KIP-630, KIP-853."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Str, UInt16, field, message


@message(versions="0-1", flexible="0+")
class LeaderChangeMessage(Message):
    """The first record of each epoch: the leader, all voters, and the voters that elected the leader."""

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
    """The first record of a snapshot."""

    version: Int16 = field()
    last_contained_log_timestamp: Int64 = field()


@message(versions="0", flexible="0+")
class SnapshotFooterRecord(Message):
    """The last record of a snapshot."""

    version: Int16 = field()


@message(versions="0", flexible="0+")
class KRaftVersionRecord(Message):
    """The level of kraft.version."""

    version: Int16 = field()
    k_raft_version: Int16 = field()


@message(versions="0", flexible="0+")
class VotersRecord(Message):
    """The complete voter set from this offset on (KIP-853)."""

    version: Int16 = field()
    voters: list[VotersVoter] = field()


class VotersVoter(Message):
    """A voter and its endpoints."""

    voter_id: Int32 = field()
    voter_directory_id: Uuid = field()
    endpoints: list[Endpoint] = field()
    k_raft_version_feature: KRaftVersionFeature = field()


class Endpoint(Message):
    """A listener of a voter."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()


class KRaftVersionFeature(Message):
    """The versions of kraft.version that a voter supports."""

    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()
