"""The output of `kwire cluster status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kwire.cli.cluster.directory import ClusterDirectory, ClusterNode
from kwire.cli.cluster.node_queries import ClusterMetadata, QuorumReply
from kwire.cli.cluster.plan import NodeCounts
from kwire.cli.cluster.status import MAX_LINES, ClusterStatus
from kwire.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from kwire.wire.messages.describe_quorum import ReplicaState, ResponsePartitionData
from kwire.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


@pytest.fixture
def nodes(tmp_path: Path) -> list[ClusterNode]:
    """Return three combined nodes that do not run."""
    directory = ClusterDirectory(str(tmp_path))
    directory.create(NodeCounts(combined=3), 20_001, {})
    return directory.nodes()


def replica(node_id: int, end: int, caught_up_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=node_id,
        log_end_offset=end,
        last_fetch_timestamp=caught_up_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


QUORUM = ResponsePartitionData(
    leader_id=2,
    leader_epoch=7,
    high_watermark=120,
    current_voters=[replica(1, 100, 5_000), replica(2, 123, 9_000), replica(3, -1, -1)],
    observers=[replica(9, 123, 9_000)],
)

NO_LEADER = QuorumReply(None)


def topic(name: str, *partitions: tuple[int, list[int], list[int]]) -> MetadataResponseTopic:
    """Return a topic; each partition is its leader, replicas and ISR."""
    return MetadataResponseTopic(
        name=name,
        partitions=[
            MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr
            )
            for index, (leader, replicas, isr) in enumerate(partitions)
        ],
    )


def cluster_metadata(*topics: MetadataResponseTopic) -> ClusterMetadata:
    return ClusterMetadata(DescribeClusterResponse(), MetadataResponse(topics=list(topics)))


def test_status_shows_the_quorum(nodes: list[ClusterNode]) -> None:
    status = ClusterStatus(nodes, cluster_metadata(), QuorumReply(QUORUM))
    lines = list(status.lines())
    assert lines[0].split()[5:7] == ["quorum", "lag"]
    assert [line.split()[5:7] for line in lines[1:4]] == [["voter", "23"], ["leader", "0"], ["voter", "-"]]
    assert lines[4] == "node 2 leads the quorum in leader epoch 7, high watermark 120"
    quorum = json.loads(status.as_json())["quorum"]
    assert (quorum["leader"], quorum["epoch"], quorum["high_watermark"]) == (2, 7, 120)
    assert [(each["node"], each["lag"], each["lag_ms"]) for each in quorum["voters"]] == [
        (1, 23, 4_000),
        (2, 0, 0),
        (3, None, None),
    ]
    assert [each["node"] for each in quorum["observers"]] == [9]


def test_status_lists_under_replicated_partitions(nodes: list[ClusterNode]) -> None:
    topics = [
        topic("orders", (1, [1, 2, 3], [1, 3]), (2, [2, 3, 1], [2, 3, 1])),
        topic("paid", (-1, [2], [])),
    ]
    status = ClusterStatus(nodes, cluster_metadata(*topics), NO_LEADER)
    lines = list(status.lines())
    assert lines[4:] == [
        "the quorum has no leader",
        "2 topics, 3 partitions, 2 under-replicated, 1 offline",
        "under replicated partition  leader  replicas  in sync",
        "orders-0                         1  1,2,3     1,3",
        "paid-0                           -  2         -",
    ]
    assert json.loads(status.as_json())["under_replicated_partitions"] == [
        {"under_replicated_partition": "orders-0", "leader": 1, "replicas": [1, 2, 3], "in_sync": [1, 3]},
        {"under_replicated_partition": "paid-0", "leader": None, "replicas": [2], "in_sync": []},
    ]


def test_status_uses_the_singular_for_one(nodes: list[ClusterNode]) -> None:
    lines = list(ClusterStatus(nodes, cluster_metadata(topic("orders", (1, [1], [1]))), NO_LEADER).lines())
    assert lines[5:] == ["1 topic, 1 partition, 0 under-replicated, 0 offline"]


def test_long_table_is_shortened(nodes: list[ClusterNode]) -> None:
    many = topic("t", *[(1, [1, 2], [1])] * (MAX_LINES + 3))
    *_, last, more = ClusterStatus(nodes, cluster_metadata(many), NO_LEADER).lines()
    assert last.startswith(f"t-{MAX_LINES - 1} ")
    assert more == "and 3 more"


def test_status_names_stopped_brokers_whose_session_is_open(nodes: list[ClusterNode]) -> None:
    brokers = [DescribeClusterBroker(broker_id=1, is_fenced=True), DescribeClusterBroker(broker_id=3)]
    status = ClusterStatus(
        nodes, ClusterMetadata(DescribeClusterResponse(brokers=brokers), MetadataResponse()), NO_LEADER
    )
    assert list(status.lines())[-1] == (
        "broker 3 is not running, but the controller has not fenced it yet: its partitions keep their leader "
        "until its session times out (broker.session.timeout.ms)"
    )
    assert json.loads(status.as_json())["stopped_with_open_session"] == [3]


def test_rejected_request_is_not_reported_as_a_missing_leader(nodes: list[ClusterNode]) -> None:
    refusal = "node 1 rejects requests of User:node on the listener QUORUM"
    status = ClusterStatus(nodes, ClusterMetadata(None, None, refusal), QuorumReply(None, refusal))
    assert list(status.lines())[4:] == ["the quorum is unknown", "the topics are unknown", refusal]
    assert json.loads(status.as_json())["rejected_requests"] == [refusal]
    assert not status.is_known


def test_topics_that_the_principal_may_not_describe_may_be_missing(nodes: list[ClusterNode]) -> None:
    limited = cluster_metadata()._replace(limited_to="User:node")
    assert "these are the topics that User:node may describe (not in super.users)" in list(
        ClusterStatus(nodes, limited, QuorumReply(QUORUM)).lines()
    )
