"""Controllers that are killed, paused or stopped, a cluster without a controller, and a loss of power."""

from __future__ import annotations

import time

import pytest

from interop.brokers import Kwire
from interop.cluster.load import ALL_CLIENTS, PythonReader
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.nodes import (
    CLUSTER_KINDS,
    COMBINED,
    CONTROLLER,
    Cluster,
    Member,
    SmallKafka,
    wait_until,
)
from interop.cluster.quorums import create_topics_through_each_broker, under_load
from interop.raw_client import RawClient

KWIRE_UNDER_KAFKA = (*(Member(SmallKafka, CONTROLLER),) * 3, *(Member(Kwire),) * 3)
KWIRE_BESIDE_KAFKA = (*(Member(SmallKafka, COMBINED),) * 3, *(Member(Kwire),) * 2)
KAFKA_ALONE = (Member(SmallKafka, COMBINED),) * 3
KWIRE_ALONE = (Member(Kwire, COMBINED),) * 3
TWO_OF_KWIRE = (Member(Kwire, COMBINED), Member(SmallKafka, COMBINED), Member(Kwire, COMBINED))
ONE_OF_KWIRE = (Member(SmallKafka, COMBINED), Member(Kwire, COMBINED), Member(SmallKafka, COMBINED))
KAFKA_UNDER_KWIRE = (*(Member(Kwire, CONTROLLER),) * 3, *(Member(SmallKafka),) * 2, Member(Kwire))
QUORUMS = {
    "kwire": (KWIRE_ALONE, True),
    "kwire, voters in the properties": (KWIRE_ALONE, False),
    "two of kwire": (TWO_OF_KWIRE, True),
    "two of kwire, voters in the properties": (TWO_OF_KWIRE, False),
    "one of kwire": (ONE_OF_KWIRE, True),
    "kafka under kwire": (KAFKA_UNDER_KWIRE, True),
    "kwire under kafka": (KWIRE_UNDER_KAFKA, False),
    "kwire under kafka, voters in the log": (KWIRE_UNDER_KAFKA, True),
    "kwire beside kafka": (KWIRE_BESIDE_KAFKA, True),
    "kafka": (KAFKA_ALONE, True),
}
ALONE = {
    "kwire": (Member(Kwire, CONTROLLER), *(Member(Kwire),) * 3),
    "kwire over both": (Member(Kwire, CONTROLLER), Member(SmallKafka), *(Member(Kwire),) * 2),
    "kafka over kwire": (Member(SmallKafka, CONTROLLER), *(Member(Kwire),) * 3),
    "kafka": (Member(SmallKafka, CONTROLLER), *(Member(SmallKafka),) * 3),
}
NOT_NEEDED = 84
AWAY_SECONDS = 20.0
"""The duration of the time without a controller: several broker sessions."""


@pytest.mark.parametrize("quorum", QUORUMS)
def test_cluster_survives_killed_paused_and_stopped_controllers(quorum: str) -> None:
    members, voters_in_log = QUORUMS[quorum]
    # By default, a request to a paused controller waits for half a minute.
    settings = {"controller.socket.timeout.ms": "5000"}
    with Cluster(members, settings, voters_in_log=voters_in_log).start() as cluster:
        first, *_ = replicas = cluster.brokers[-3:]
        cluster.make_topic("t", [replicas])
        with under_load(cluster) as load:
            for how in ("kill", "pause", "stop"):
                load.wait_until_all_write()
                active = cluster.active_controller()
                node = cluster.nodes[active]
                getattr(node, how)()
                cluster.active_controller(than=active)
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"without-{how}")
                if how == "pause":
                    node.resume()
                else:
                    cluster.start_node(active)
                create_topics_through_each_broker(cluster, f"again-{how}")
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
                # The new controller shrinks and expands the ISR, and elects another leader.
                cluster.nodes[first].stop()
                cluster.wait_for_another_leader("t", 0, than=first)
                cluster.start_node(first)
                cluster.wait_until_all_in_sync()
                elect_preferred_leaders(cluster, "t")


def elect_preferred_leaders(cluster: Cluster, topic: str) -> None:
    """Elect the preferred leader of partition 0, unless it is the leader already."""
    wanted = [{"Topic": topic, "Partitions": [0]}]
    with RawClient(cluster.nodes[cluster.brokers[-1]].bootstrap) as client:
        answer = client.call("ElectLeaders", 2, ElectionType=0, TopicPartitions=wanted, TimeoutMs=30_000)
    [elected] = answer["ReplicaElectionResults"][0]["PartitionResult"]
    assert elected["ErrorCode"] in (0, NOT_NEEDED), elected
    first = cluster.partition(topic)["ReplicaNodes"][0]
    wait_until(lambda: cluster.leader(topic) == first, f"{first} does not lead {topic}")


@pytest.mark.parametrize("cluster_kind", ALONE)
def test_brokers_serve_clients_without_the_only_controller(cluster_kind: str) -> None:
    with Cluster(ALONE[cluster_kind]).start() as cluster:
        [controller] = cluster.controllers
        *live, victim = cluster.brokers
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster) as load:
            load.wait_until_all_write()
            before = cluster.partition("t")
            cluster.nodes[controller].kill()
            back = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < back:
                load.wait_until_all_write()
            assert cluster.partition("t") == before
            # Without a controller, nothing fences the killed broker. It stays in the ISR, so the high
            # watermark does not advance.
            cluster.nodes[victim].kill()
            cluster.nodes[controller].start()

            def is_fenced() -> bool:
                known = {each["NodeId"] for each in cluster.metadata(queried_id=live[0])["Brokers"]}
                assert known >= set(live), "one that lives was fenced"
                return victim not in known

            wait_until(is_fenced, f"{victim} is not fenced")
            load.wait_until_all_write()
            cluster.make_topic("more", [live])
            cluster.start_node(victim)
            cluster.wait_until_in_sync("t")


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_cluster_recovers_from_power_loss_of_all_nodes(cluster_kind: str) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        # kafka-python's consumer raises an exception if no node is available.
        with under_load(
            cluster, clients=[each for each in ALL_CLIENTS if each is not PythonReader], also=NOT_ENOUGH
        ) as load:
            for _ in range(2):
                load.wait_until_all_write()
                cluster.kill_and_restart_all()
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
