"""The responses to fetches of both consumers and followers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.records.fetch_sessions import FetchContext, FetchTarget
from kwire.broker.api.request.context import size_of
from kwire.broker.api.request.slices import slices_of
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from kwire.broker.api.request.context import RequestContext
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.replication.broker_topic_metrics import BrokerTopicMetrics

FIRST_VERSION_WITH_CURRENT_LEADER = 16
LAST_VERSION_WITHOUT_STORAGE_ERROR = 5

FetchedPartitions = list[tuple[FetchTarget, PartitionData]]


def partition_error(target: FetchTarget, code: ErrorCode) -> PartitionData:
    """Return the response for a partition with an error, without the current leader."""
    return PartitionData(partition_index=target.index, error_code=code, high_watermark=-1, records=b"")


def partition_refusal(node: BrokerRole, version: int, target: FetchTarget, code: ErrorCode) -> PartitionData:
    """Return the response for a partition that exists but cannot be read.

    KIP-951: from v16 on, NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH include the current leader.
    """
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version <= LAST_VERSION_WITHOUT_STORAGE_ERROR:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    data = partition_error(target, code)
    data.aborted_transactions = None
    if version >= FIRST_VERSION_WITH_CURRENT_LEADER and code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    ):
        assert target.topic is not None
        leader_id, leader_epoch = node.current_leader(target.topic, target.index)
        data.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    return data


def build_response(
    node: BrokerRole,
    context: RequestContext,
    session: FetchContext,
    fetched: FetchedPartitions,
    *,
    follower_id: int = -1,
) -> FetchResponse:
    """Build the response from the partitions that were read. In a session, it has only what has changed.

    `follower_id` is the broker id of a follower.

    Raises ApiError INVALID_FETCH_SESSION_EPOCH if another request has advanced the session in the meantime.
    """
    session_id, sent = session.trim(fetched, node.host.internode_clock.monotonic_ms())
    return _build(node, context, session, session_id, sent, follower_id)


def build_response_in_slices(
    node: BrokerRole, context: RequestContext, session: FetchContext, fetched: FetchedPartitions
) -> Generator[None, None, FetchResponse]:
    """Build a large response like `build_response`, and yield between slices of the partitions."""
    response = FetchResponse(responses=[])
    topics = response.responses
    endpoints: dict[int, NodeEndpoint] = {}
    for some in slices_of(fetched):
        part = _build(node, context, session, 0, session.record_sent(some))
        for topic in part.responses:
            if topics and (topics[-1].topic, topics[-1].topic_id) == (topic.topic, topic.topic_id):
                topics[-1].partitions += topic.partitions
            else:
                topics.append(topic)
        endpoints |= {endpoint.node_id: endpoint for endpoint in part.node_endpoints}
        yield
    response.session_id = session.create_session(node.host.internode_clock.monotonic_ms())
    response.node_endpoints = list(endpoints.values())
    return response


def _build(
    node: BrokerRole,
    context: RequestContext,
    session: FetchContext,
    session_id: int,
    sent: Sequence[tuple[FetchTarget, PartitionData]],
    follower_id: int = -1,
) -> FetchResponse:
    topics: list[FetchableTopicResponse] = []
    current: FetchableTopicResponse | None = None
    traffic: BrokerTopicMetrics | None = None
    leaders: set[int] = set()
    to_follower = session.follower is not None
    for target, data in sent:
        topic_name = target.topic or ""
        if current is None or current.topic != topic_name or current.topic_id != target.topic_id:
            current = FetchableTopicResponse(topic=topic_name, topic_id=target.topic_id, partitions=[])
            topics.append(current)
            traffic = node.topic_stats.topics.get(topic_name)
        current.partitions.append(data)
        if traffic is not None:
            traffic.reads += 1
            if data.records and to_follower:
                size_bytes = size_of(data.records)
                traffic.replication_bytes_out += size_bytes
                image = node.image.partition(topic_name, target.index)
                if image is not None and follower_id in image.adding_replicas:
                    traffic.reassignment_bytes_out += size_bytes
            elif data.records:
                traffic.bytes_out += size_of(data.records)
        if data.error_code:
            context.record_error(data.error_code)
        if data.current_leader.leader_id >= 0:
            leaders.add(data.current_leader.leader_id)
    fetch_response = FetchResponse(session_id=session_id, responses=topics)
    if leaders and not to_follower:
        fetch_response.node_endpoints = [
            NodeEndpoint(node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
            for endpoint in node.endpoints(leaders, context.listener)
        ]
    return fetch_response
