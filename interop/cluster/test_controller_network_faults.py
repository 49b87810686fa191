"""An active controller that is disconnected from other controllers, from brokers, or from all nodes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from interop.brokers import Kwire
from interop.cluster.load import ALL_CLIENTS, Load
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.network import Network
from interop.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster, Member, SmallKafka, wait_until
from interop.cluster.quorums import (
    check_same_metadata,
    create_topics_through_each_broker,
    wait_until_metadata_replicated,
)
from interop.cluster.test_network_faults import LATE
from interop.raw_client import RawClient

MEMBERS = {
    "kwire": (*(Member(Kwire, CONTROLLER),) * 3, *(Member(Kwire),) * 3),
    "kwire, combined": (Member(Kwire, COMBINED),) * 3,
    "two of kwire": (
        *(Member(Kwire, CONTROLLER), Member(SmallKafka, CONTROLLER), Member(Kwire, CONTROLLER)),
        *(Member(Kwire, BROKER),) * 3,
    ),
    "two of kwire, combined": (
        *(Member(Kwire, COMBINED), Member(SmallKafka, COMBINED), Member(Kwire, COMBINED)),
    ),
    "kafka, combined": (Member(SmallKafka, COMBINED),) * 3,
}
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "4000",
    "controller.socket.timeout.ms": "5000",
}
AWAY_SECONDS = 10.0
"""The duration of a disconnection, longer than broker.session.timeout.ms."""


@pytest.mark.parametrize("cluster_kind", MEMBERS)
def test_cluster_survives_a_disconnected_active_controller(cluster_kind: str, network: Network) -> None:
    with Cluster(MEMBERS[cluster_kind], SETTINGS, voters_in_log=True, network=network).start() as cluster:
        is_combined = cluster.brokers == cluster.controllers
        cluster.make_topic("t", [cluster.brokers])
        with Load(cluster.bootstrap, "t", 1) as load:
            load.start(*ALL_CLIENTS)
            for title, cut in CUTS.items():
                if is_combined and cut in (from_controllers, from_brokers):
                    continue  # this case equals from_all
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
                active = cluster.active_controller()
                cut(network, active, cluster)
                if cut is from_brokers:
                    check_writes(load)
                    assert leads(cluster, active)
                else:
                    check_rejected(cluster, active, title)
                    assert cluster.active_controller(than=active) != active
                    wait_until(lambda active=active: not leads(cluster, active), f"{active} still leads")  # type: ignore[misc]
                    others = [each for each in cluster.brokers if each != active]
                    for queried_id in others:
                        create_topic(cluster, queried_id, f"cut-{title}-{queried_id}", others[:2])
                    if is_combined:
                        # A disconnected broker does not learn of a new leader, so clients that send it a
                        # request may have to wait.
                        wait_for_another_leader(cluster, others[0], active)
                    else:
                        check_writes(load)
                network.heal()
                load.wait_until_all_write()
                # A disconnected broker does not know that the controller has fenced it.
                wait_until_metadata_replicated(cluster, cluster.active_controller())
                cluster.wait_until_unfenced(*cluster.brokers)
                cluster.wait_until_all_in_sync()
                create_topics_through_each_broker(cluster, f"healed-{title}")
            load.wait_until_all_write()
            load.stop()
            load.check()
        found = {topic for topic in cluster.all_partitions() if topic.startswith("lonely")}
        # A controller that cannot receive can still send. So the next leader may commit the last records of
        # this controller.
        assert found <= {"lonely-inbound"}
        cluster.wait_until_all_replicas_equal()
        check_same_metadata(cluster)
        cluster.check_logs(also=rf"{NOT_ENOUGH}|{LATE}")


def from_controllers(network: Network, active: int, cluster: Cluster) -> None:
    separate(network, active, set(cluster.controllers))


def from_brokers(network: Network, active: int, cluster: Cluster) -> None:
    separate(network, active, set(cluster.brokers))


def from_all(network: Network, active: int, cluster: Cluster) -> None:
    separate(network, active, set(cluster.nodes))


def outbound(network: Network, active: int, cluster: Cluster) -> None:
    network.disconnect([active], set(cluster.nodes) - {active})


def inbound(network: Network, active: int, cluster: Cluster) -> None:
    network.disconnect(set(cluster.nodes) - {active}, [active])


def separate(network: Network, active: int, others: set[int]) -> None:
    network.disconnect([active], others - {active})
    network.disconnect(others - {active}, [active])


CUTS: dict[str, Callable[[Network, int, Cluster], None]] = {
    "from-controllers": from_controllers,
    "from-brokers": from_brokers,
    "from-all": from_all,
    "outbound": outbound,
    "inbound": inbound,
}


def check_writes(load: Load) -> None:
    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        load.wait_until_all_write()


def leads(cluster: Cluster, node_id: int) -> bool:
    """Return whether the controller considers itself the leader."""
    try:
        return bool(cluster.quorum(node_id)["LeaderId"] == node_id)
    except LookupError:
        return False


def check_rejected(cluster: Cluster, active: int, title: str) -> None:
    """Check that a controller without a majority of voters does not acknowledge CreateTopics."""
    topic = {"Name": f"lonely-{title}", "NumPartitions": 1, "ReplicationFactor": 1}
    with RawClient(cluster.nodes[active].controller_bootstrap) as client:
        client.socket.settimeout(60.0)
        response = client.call(
            "CreateTopics",
            7,
            Topics=[topic | {"Assignments": [], "Configs": []}],
            timeoutMs=30_000,
            validateOnly=False,
        )
    [made] = response["Topics"]
    assert made["ErrorCode"] in REFUSED, made


REFUSED = {7, 41}
"""The error codes REQUEST_TIMED_OUT and NOT_CONTROLLER."""


def wait_for_another_leader(cluster: Cluster, queried_id: int, active: int) -> None:
    wait_until(
        lambda: cluster.partition("t", queried_id=queried_id)["LeaderId"] not in (active, -1),
        f"{active} still leads t",
    )


def create_topic(cluster: Cluster, queried_id: int, name: str, replicas: list[int]) -> None:
    topic = {"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    topic["Assignments"] = [{"PartitionIndex": 0, "BrokerIds": replicas}]
    with RawClient(cluster.nodes[queried_id].bootstrap) as client:
        client.socket.settimeout(60.0)
        response = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=60_000, validateOnly=False)
    [made] = response["Topics"]
    assert made["ErrorCode"] == 0, made
