"""OffsetFetch while __consumer_offsets has fewer in-sync replicas than min.insync.replicas.

The coordinator returns the last committed offset. With require_stable, it returns a retriable error instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from interop.cluster.nodes import CLUSTER_KINDS, Cluster, wait_until
from interop.cluster.test_tools import GROUPS, ToolSession
from interop.raw_client import RawClient
from interop.scenario import compare, plain, table

if TYPE_CHECKING:
    from interop.record import Record

OFFSETS_TOPIC = "__consumer_offsets"
REMAINING = 1
ASK_AGAIN = (14, 16)
"""Retriable errors: kwire returns COORDINATOR_LOAD_IN_PROGRESS, Apache Kafka returns NOT_COORDINATOR."""


def ask(cluster: Cluster, api: str, version: int, **fields: Any) -> Any:
    with RawClient(cluster.nodes[REMAINING].bootstrap) as client:
        return client.call(api, version, **fields)


def commit(cluster: Cluster, group: str, offset: int) -> int:
    partition = {
        "PartitionIndex": 0,
        "CommittedOffset": offset,
        "CommittedLeaderEpoch": -1,
        "CommittedMetadata": "",
    }
    answer = ask(
        cluster,
        "OffsetCommit",
        8,
        GroupId=group,
        GenerationIdOrMemberEpoch=-1,
        MemberId="",
        GroupInstanceId=None,
        Topics=[{"Name": "t", "Partitions": [partition]}],
    )
    code: int = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
    return code


def committed(cluster: Cluster, group: str, *, require_stable: bool) -> tuple[Any, int]:
    """Return the error code and the committed offset. The errors in ASK_AGAIN become "ask again"."""
    topics = [{"Name": "t", "PartitionIndexes": [0]}]
    answer = ask(
        cluster,
        "OffsetFetch",
        8,
        Groups=[{"GroupId": group, "Topics": topics}],
        RequireStable=require_stable,
    )
    found = answer["Groups"][0]
    if found["ErrorCode"]:
        return "ask again" if found["ErrorCode"] in ASK_AGAIN else found["ErrorCode"], -1
    partition = found["Topics"][0]["Partitions"][0]
    return partition["ErrorCode"], partition["CommittedOffset"]


def group_of_the_remaining_broker(cluster: Cluster) -> str:
    """Return a group whose coordinator is the broker that keeps running."""

    def coordinator(group: str) -> int:
        answer = ask(cluster, "FindCoordinator", 4, KeyType=0, CoordinatorKeys=[group])
        node_id: int = answer["Coordinators"][0]["NodeId"]
        return node_id

    wait_until(lambda: coordinator("g0") > 0, "there is no coordinator")
    cluster.wait_until_in_sync(OFFSETS_TOPIC, cluster.all_partitions()[OFFSETS_TOPIC])
    return next(group for number in range(1000) if coordinator(group := f"g{number}") == REMAINING)


@pytest.mark.parametrize(
    "cluster_kind", sorted(CLUSTER_KINDS, key="kafka".__ne__)
)  # "kafka" runs first, because the others are compared with its record
def test_committed_offsets_are_returned_below_min_insync_replicas(cluster_kind: str, record: Record) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        cluster.make_topic("t", [[1, 2, 3]])
        group = group_of_the_remaining_broker(cluster)
        wait_until(lambda: commit(cluster, group, 1) == 0, "nothing is committed")
        session = ToolSession(cluster)
        seen = session.seen

        def look(when: str) -> None:
            for stable in (False, True):
                label = f"{when}, {'stable' if stable else 'as it is'}"
                seen[label] = committed(cluster, group, require_stable=stable)

        look("at first")
        for node_id in (2, 3):
            cluster.nodes[node_id].kill()
        count = cluster.all_partitions()[OFFSETS_TOPIC]
        wait_until(
            lambda: all(
                len(cluster.partition(OFFSETS_TOPIC, index)["IsrNodes"]) <= 1 for index in range(count)
            ),
            "the killed brokers stay in sync",
        )
        seen["next one"] = commit(cluster, group, 2)
        look("with one replica")
        output = session.run(GROUPS, "--describe", "--group", group)
        seen["described"] = [line.replace(group, "<group>") for line in output]
        cluster.start_node(2)
        wait_until(
            lambda: committed(cluster, group, require_stable=True) == (0, 2),
            "what was written is never committed",
        )
        seen["one more"] = commit(cluster, group, 3)
        look("with two replicas")
        record.save(f"cluster.few_replicas.{cluster_kind}", plain(seen))
    if cluster_kind != "kafka":
        found = compare("cluster.few_replicas", record.load("cluster.few_replicas.kafka"), plain(seen))
        assert not found, "\n" + table(found)
