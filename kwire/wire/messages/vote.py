"""Vote v0–2. KIP-595, KIP-853 (directories, v1), KIP-996 (pre-vote, v2)."""

from __future__ import annotations

from kwire.wire.messages.begin_quorum_epoch import NodeEndpoint as NodeEndpoint
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=52, versions="0-2", flexible="0+")
class VoteRequest(Message):
    """A candidate's request for a vote, or from version 2 on for a pre-vote."""

    cluster_id: Str | None = field(nullable="0+", default=None)
    voter_id: Int32 = field("1+", ignorable=True, default=-1)
    topics: list[RequestTopicData] = field()


class RequestTopicData(Message):
    topic_name: Str = field()
    partitions: list[RequestPartitionData] = field()


class RequestPartitionData(Message):
    """The candidate, the voter, the epoch, and the end of the candidate's log."""

    partition_index: Int32 = field()
    replica_epoch: Int32 = field()
    replica_id: Int32 = field()
    replica_directory_id: Uuid = field("1+", ignorable=True)
    voter_directory_id: Uuid = field("1+", ignorable=True)
    last_offset_epoch: Int32 = field()
    last_offset: Int64 = field()
    pre_vote: Bool = field("2+")


@message(key=52, versions="0-2", flexible="0+")
class VoteResponse(Message):
    error_code: Int16 = field()
    topics: list[ResponseTopicData] = field()
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)


class ResponseTopicData(Message):
    """Results for one topic's partitions."""

    topic_name: Str = field()
    partitions: list[ResponsePartitionData] = field()


class ResponsePartitionData(Message):
    """The vote, and the current leader and epoch."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
    vote_granted: Bool = field()
