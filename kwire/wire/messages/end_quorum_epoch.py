"""EndQuorumEpoch v0–1.

KIP-595, KIP-853 (directories and endpoints, v1); from a resigning leader to each voter.
"""

from __future__ import annotations

from kwire.wire.messages.begin_quorum_epoch import LeaderEndpoint as LeaderEndpoint
from kwire.wire.messages.begin_quorum_epoch import NodeEndpoint as NodeEndpoint
from kwire.wire.messages.begin_quorum_epoch import ResponsePartitionData as ResponsePartitionData
from kwire.wire.messages.begin_quorum_epoch import ResponseTopicData as ResponseTopicData
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=54, versions="0-1", flexible="1+")
class EndQuorumEpochRequest(Message):
    """A resigning leader's request to elect another leader."""

    cluster_id: Str | None = field(nullable="0+", default=None)
    topics: list[RequestTopicData] = field()
    leader_endpoints: list[LeaderEndpoint] = field("1+", ignorable=True)


class RequestTopicData(Message):
    topic_name: Str = field()
    partitions: list[RequestPartitionData] = field()


class RequestPartitionData(Message):
    """The epoch that ends, and the preferred candidates, those with the longest logs first."""

    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
    preferred_successors: list[Int32] = field("0", ignorable=True)
    preferred_candidates: list[ReplicaInfo] = field("1+", ignorable=True)


class ReplicaInfo(Message):
    """A preferred candidate."""

    candidate_id: Int32 = field("1+")
    candidate_directory_id: Uuid = field("1+")


@message(key=54, versions="0-1", flexible="1+")
class EndQuorumEpochResponse(Message):
    error_code: Int16 = field()
    topics: list[ResponseTopicData] = field()
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)
