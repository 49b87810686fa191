"""Controllers die, are paused and stopped; a cluster goes on without one; all lose power at once."""

from __future__ import annotations

import time

import pytest

from interop.brokers import Kwire
from interop.cluster.complaints import NOT_ENOUGH
from interop.cluster.load import ALL_CLIENTS, PythonReader
from interop.cluster.nodes import (
    COMBINED,
    CONTROLLER,
    MAKEUPS,
    Cluster,
    Member,
    SmallKafka,
    eventually,
)
from interop.cluster.quorums import at_work, goes_on
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
"""How long nobody is the controller: several sessions of brokers."""


@pytest.mark.parametrize("quorum", QUORUMS)
def test_active_controllers_end(quorum: str) -> None:
    members, voters_in_log = QUORUMS[quorum]
    # By default, whoever asks a controller that is paused waits half a minute for its answer.
    settings = {"controller.socket.timeout.ms": "5000"}
    with Cluster(members, settings, voters_in_log=voters_in_log).start() as cluster:
        first, *_ = replicas = cluster.brokers[-3:]
        cluster.make_topic("t", [replicas])
        with at_work(cluster) as load:
            for how in ("kill", "pause", "stop"):
                load.until_all_write()
                active = cluster.active_controller()
                node = cluster.nodes[active]
                getattr(node, how)()
                cluster.active_controller(than=active)
                load.until_all_write()
                goes_on(cluster, f"without-{how}")
                if how == "pause":
                    node.wake()
                else:
                    cluster.start_again(active)
                goes_on(cluster, f"again-{how}")
                load.until_all_write()
                cluster.until_all_in_sync()
                # In-sync sets shrink and grow, and others are elected.
                cluster.nodes[first].stop()
                cluster.until_led_by_another("t", 0, than=first)
                cluster.start_again(first)
                cluster.until_all_in_sync()
                elect_preferred(cluster, "t")


def elect_preferred(cluster: Cluster, topic: str) -> None:
    """The first replica leads again, if it does not yet."""
    wanted = [{"Topic": topic, "Partitions": [0]}]
    with RawClient(cluster.nodes[cluster.brokers[-1]].bootstrap) as client:
        answer = client.call("ElectLeaders", 2, ElectionType=0, TopicPartitions=wanted, TimeoutMs=30_000)
    [elected] = answer["ReplicaElectionResults"][0]["PartitionResult"]
    assert elected["ErrorCode"] in (0, NOT_NEEDED), elected
    first = cluster.partition(topic)["ReplicaNodes"][0]
    eventually(lambda: cluster.leader(topic) == first, f"{first} does not lead {topic}")


@pytest.mark.parametrize("makeup", ALONE)
def test_the_only_controller_is_away(makeup: str) -> None:
    with Cluster(ALONE[makeup]).start() as cluster:
        [controller] = cluster.controllers
        *live, victim = cluster.brokers
        cluster.make_topic("t", [cluster.brokers])
        with at_work(cluster) as load:
            load.until_all_write()
            before = cluster.partition("t")
            cluster.nodes[controller].kill()
            back = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < back:
                load.until_all_write()
            assert cluster.partition("t") == before
            # Nobody is told, so its death keeps the others' records from being committed.
            cluster.nodes[victim].kill()
            cluster.nodes[controller].start()

            def is_fenced() -> bool:
                known = {each["NodeId"] for each in cluster.metadata(asked=live[0])["Brokers"]}
                assert known >= set(live), "one that lives was fenced"
                return victim not in known

            eventually(is_fenced, f"{victim} is not fenced")
            load.until_all_write()
            cluster.make_topic("more", [live])
            cluster.start_again(victim)
            cluster.until_in_sync("t")


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_all_nodes_lose_power_at_once(makeup: str) -> None:
    with Cluster(MAKEUPS[makeup]).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        # A consumer of kafka-python's raises an error when no node at all is there.
        with at_work(
            cluster, clients=[each for each in ALL_CLIENTS if each is not PythonReader], also=NOT_ENOUGH
        ) as load:
            for _ in range(2):
                load.until_all_write()
                cluster.lose_power()
                load.until_all_write()
                cluster.until_all_in_sync()
