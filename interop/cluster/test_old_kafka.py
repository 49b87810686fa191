"""A node of Apache Kafka 4.0 that joins a kwire cluster, becomes leader, replicates, and is replaced.

After that, the metadata version is upgraded to a version that Apache Kafka 4.0 does not support.
"""

from __future__ import annotations

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.load import ConfluentReader, ConfluentWriter, PythonWriter, TransactionalWriter
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.nodes import BROKER, COMBINED, Cluster, Member, OldKafka, SmallKafka, wait_until
from interop.cluster.quorums import create_topics_through_each_broker, under_load
from interop.cluster.test_features import LATEST, features

OLD = 3
PARTITIONS = 3
RELEASE = ("--release-version", "4.0")
CLUSTER_KINDS: dict[str, tuple[str, type[Broker]]] = {
    "a broker, then kwire's": (BROKER, Kwire),
    "a voter, then Apache Kafka's": (COMBINED, SmallKafka),
}


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_kafka_4_0_node_joins_and_is_replaced(cluster_kind: str) -> None:
    roles, successor = CLUSTER_KINDS[cluster_kind]
    members = (*(Member(Kwire, COMBINED),) * 2, Member(OldKafka, roles))
    with Cluster(members, voters_in_log=True).start(format_arguments=RELEASE) as cluster:
        cluster.make_topic("t", [[1, 2, OLD], [2, OLD, 1], [OLD, 1, 2]])
        with under_load(
            cluster,
            clients=[ConfluentReader, ConfluentWriter, PythonWriter, TransactionalWriter],
            partitions=PARTITIONS,
            also=f"Invalid update version 30 for feature metadata.version|{NOT_ENOUGH}",
        ) as load:
            load.wait_until_all_write()
            if OLD in cluster.controllers:
                make_old_node_leader(cluster)
                create_topics_through_each_broker(cluster, "led-by-the-old")
                load.wait_until_all_write()
            output = features(cluster, "upgrade", "--metadata", LATEST)
            assert "Could not upgrade metadata.version" in output, output
            cluster.nodes[OLD].stop()
            cluster.wait_for_another_leader("t", OLD - 1, than=OLD)
            load.wait_until_all_write()
            cluster.replace_software(OLD, successor)
            cluster.start_node(OLD)
            cluster.wait_until_in_sync("t", PARTITIONS)
            output = features(cluster, "upgrade", "--metadata", LATEST)
            assert "metadata.version was upgraded to" in output, output
            wait_until(
                lambda: f"FinalizedVersionLevel: {LATEST}" in features(cluster, "describe"),
                "it is not raised",
            )
            create_topics_through_each_broker(cluster, "raised")


def make_old_node_leader(cluster: Cluster) -> None:
    """Make the old node the active controller.

    The third controller is paused, and the active controller stops. When it stops, it names the voter with
    the longest log as its preferred successor. With equal logs it would name the voter with the lowest id,
    which the old node never has. So the third controller must not have the longest log.
    """
    active = cluster.active_controller()
    if active == OLD:
        return
    [other] = set(cluster.controllers) - {active, OLD}

    def is_ahead() -> bool:
        ends = {each["ReplicaId"]: each["LogEndOffset"] for each in cluster.quorum(active)["CurrentVoters"]}
        return bool(ends[OLD] > ends[other])

    cluster.nodes[other].pause()
    wait_until(is_ahead, "nothing is added to the metadata")
    cluster.nodes[active].stop()
    assert cluster.active_controller(than=active) == OLD
    cluster.nodes[other].resume()
    cluster.start_node(active)
    cluster.wait_until_all_in_sync()
