"""Nodes that are disconnected from each other in one or both directions. Clients reach all nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interop.batches import Batch, Record
from interop.brokers import Kwire
from interop.cluster.load import ALL_CLIENTS, Load
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.network import Network
from interop.cluster.nodes import CONTROLLER, Cluster, Member, SmallKafka, wait_until
from interop.raw import fetch, produce
from interop.raw_client import RawClient

MEMBERS = {
    "kwire": (Member(Kwire, CONTROLLER), *(Member(Kwire),) * 3),
    "kafka over kwire": (Member(SmallKafka, CONTROLLER), *(Member(Kwire),) * 2, Member(SmallKafka)),
    "kwire over kafka": (Member(Kwire, CONTROLLER), *(Member(SmallKafka),) * 2, Member(Kwire)),
    "kafka": (Member(SmallKafka, CONTROLLER), *(Member(SmallKafka),) * 3),
}

SETTINGS = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "4000"}
LATE = "Detected non-monotonic update of fetch offset|TransactionCoordinatorFencedException"
"""Messages caused by packets that arrive late.

A packet from before a disconnection may arrive after later packets, or after another coordinator took over.
"""
OFFSET_OUT_OF_RANGE = 1


@pytest.mark.parametrize("cluster_kind", MEMBERS)
def test_cluster_survives_a_disconnected_leader(cluster_kind: str, network: Network) -> None:
    members = MEMBERS[cluster_kind]
    with Cluster(members, SETTINGS, network=network).start() as cluster:
        [controller] = cluster.controllers
        cluster.make_topic("t", [cluster.brokers])
        with Load(cluster.bootstrap, "t", 1) as load:
            load.start(*ALL_CLIENTS)
            for title, cut in CUTS.items():
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
                leader = cluster.leader("t")
                others = [each for each in cluster.brokers if each != leader]
                acknowledged = load.history.acknowledged_count
                cut(network, leader, others, controller)
                if cut is from_followers:
                    wait_until(
                        lambda leader=leader: cluster.partition("t")["IsrNodes"] == [leader],  # type: ignore[misc]
                        f"{leader} keeps those in sync that it does not reach",
                    )
                    assert cluster.leader("t") == leader
                else:
                    wait_for_leader_among(cluster, leader, others)
                check_not_acknowledged(cluster, load, leader, title)
                network.heal()
                load.wait_until_all_write()
                cluster.wait_until_unfenced(leader)
                cluster.wait_until_all_in_sync()
                assert load.history.acknowledged_count > acknowledged
            load.stop()
            load.check()
        cluster.wait_until_all_replicas_equal()
        cluster.check_logs(also=rf"{NOT_ENOUGH}|{LATE}")


@pytest.mark.parametrize("cluster_kind", MEMBERS)
def test_truncated_records_are_out_of_range_for_a_fetch_without_epoch(
    cluster_kind: str, network: Network
) -> None:
    """Check that a former leader returns OFFSET_OUT_OF_RANGE if a fetch of a truncated offset has no epoch.

    So a client without KIP-320 may reset its offset, although no committed record is lost.
    """
    with Cluster(MEMBERS[cluster_kind], SETTINGS, network=network).start() as cluster:
        [controller] = cluster.controllers
        cluster.make_topic("t", [cluster.brokers])
        leader = cluster.leader("t")
        others = [each for each in cluster.brokers if each != leader]
        from_all(network, leader, others, controller)
        wait_for_leader_among(cluster, leader, others)
        with RawClient(cluster.nodes[leader].bootstrap) as client:

            def fetch_error(offset: int) -> int:
                answer = fetch(client, "t", offset, version=11)
                return int(answer["Responses"][0]["Partitions"][0]["ErrorCode"])

            produce(client, "t", Batch([Record(b"lonely")]).encode(), acks=1)
            assert fetch_error(1) == 0, "the offset may still be reached"
            network.heal()
            wait_until(lambda: fetch_error(1) == OFFSET_OUT_OF_RANGE, "the log is not truncated")
            assert fetch_error(0) == 0
        cluster.wait_until_unfenced(leader)
        cluster.wait_until_all_in_sync()
        cluster.wait_until_all_replicas_equal()
        cluster.check_logs(also=rf"{NOT_ENOUGH}|{LATE}")


def wait_for_leader_among(cluster: Cluster, leader: int, others: list[int]) -> None:
    wait_until(
        lambda: cluster.partition("t", queried_id=others[0])["LeaderId"] not in (leader, -1),
        f"{leader}, which is cut off, still leads",
    )


def from_followers(network: Network, leader: int, others: list[int], controller: int) -> None:
    network.disconnect([leader], others)
    network.disconnect(others, [leader])


def from_controller(network: Network, leader: int, others: list[int], controller: int) -> None:
    network.disconnect([leader], [controller])
    network.disconnect([controller], [leader])


def from_all(network: Network, leader: int, others: list[int], controller: int) -> None:
    network.disconnect([leader], [*others, controller])
    network.disconnect([*others, controller], [leader])


def outbound(network: Network, leader: int, others: list[int], controller: int) -> None:
    network.disconnect([leader], [*others, controller])


def inbound(network: Network, leader: int, others: list[int], controller: int) -> None:
    network.disconnect([*others, controller], [leader])


CUTS: dict[str, Callable[[Network, int, list[int], int], None]] = {
    "from its followers": from_followers,
    "from the controller": from_controller,
    "from all": from_all,
    "outbound only": outbound,
    "inbound only": inbound,
}


def check_not_acknowledged(cluster: Cluster, load: Load, leader: int, title: str) -> None:
    """Check that the disconnected leader does not acknowledge a record that it could not replicate."""
    value = f"cut off {title}".encode()
    load.history.on_send("lonely", ("t", 0), value)
    records = Batch([Record(value=value)]).encode()
    partition = {"Index": 0, "Records": records}
    with RawClient(cluster.nodes[leader].bootstrap) as client:
        answer = client.call(
            "Produce",
            9,
            TransactionalId=None,
            Acks=-1,
            TimeoutMs=2000,
            TopicData=[{"Name": "t", "PartitionData": [partition]}],
        )
    [response] = answer["Responses"][0]["PartitionResponses"]
    assert response["ErrorCode"] in REFUSED, response


REFUSED = {6, 7, 19, 20}
"""The codes of NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT and the two NOT_ENOUGH_REPLICAS errors."""
