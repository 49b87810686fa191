"""A node of Apache Kafka 4.0 in a cluster of kwire's: it joins, leads, replicates, and is replaced.

Only then the cluster's features are raised beyond what it knows.
"""

from __future__ import annotations

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.complaints import NOT_ENOUGH
from interop.cluster.load import ConfluentReader, ConfluentWriter, PythonWriter, TransactionalWriter
from interop.cluster.nodes import BROKER, COMBINED, Cluster, Member, OldKafka, SmallKafka, eventually
from interop.cluster.quorums import at_work, goes_on
from interop.cluster.test_features import LATEST, features

OLD = 3
PARTITIONS = 3
RELEASE = ("--release-version", "4.0")
MAKEUPS: dict[str, tuple[str, type[Broker]]] = {
    "a broker, then kwire's": (BROKER, Kwire),
    "a voter, then Apache Kafka's": (COMBINED, SmallKafka),
}


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_an_older_node_joins_and_is_replaced(makeup: str) -> None:
    roles, successor = MAKEUPS[makeup]
    members = (*(Member(Kwire, COMBINED),) * 2, Member(OldKafka, roles))
    with Cluster(members, voters_in_log=True).start(formatted_with=RELEASE) as cluster:
        cluster.make_topic("t", [[1, 2, OLD], [2, OLD, 1], [OLD, 1, 2]])
        with at_work(
            cluster,
            clients=[ConfluentReader, ConfluentWriter, PythonWriter, TransactionalWriter],
            partitions=PARTITIONS,
            also=f"Invalid update version 30 for feature metadata.version|{NOT_ENOUGH}",
        ) as load:
            load.until_all_write()
            if OLD in cluster.controllers:
                until_it_leads(cluster)
                goes_on(cluster, "led-by-the-old")
                load.until_all_write()
            told = features(cluster, "upgrade", "--metadata", LATEST)
            assert "Could not upgrade metadata.version" in told, told
            cluster.nodes[OLD].stop()
            cluster.until_led_by_another("t", OLD - 1, than=OLD)
            load.until_all_write()
            cluster.becomes(OLD, successor)
            cluster.start_again(OLD)
            cluster.until_in_sync("t", PARTITIONS)
            told = features(cluster, "upgrade", "--metadata", LATEST)
            assert "metadata.version was upgraded to" in told, told
            eventually(
                lambda: f"FinalizedVersionLevel: {LATEST}" in features(cluster, "describe"),
                "it is not raised",
            )
            goes_on(cluster, "raised")


def until_it_leads(cluster: Cluster) -> None:
    """The active controller stops while the third one sleeps: it names who has most of the log as the next.

    Of equals it would be the one of the lowest id, which the older node never is.
    """
    active = cluster.active_controller()
    if active == OLD:
        return
    [other] = set(cluster.controllers) - {active, OLD}

    def is_ahead() -> bool:
        ends = {each["ReplicaId"]: each["LogEndOffset"] for each in cluster.quorum(active)["CurrentVoters"]}
        return bool(ends[OLD] > ends[other])

    cluster.nodes[other].pause()
    eventually(is_ahead, "nothing is added to the metadata")
    cluster.nodes[active].stop()
    assert cluster.active_controller(than=active) == OLD
    cluster.nodes[other].wake()
    cluster.start_again(active)
    cluster.until_all_in_sync()
