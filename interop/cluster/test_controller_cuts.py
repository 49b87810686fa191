"""The active controller is cut off: from the other controllers, from the brokers, from all; and healed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from interop.brokers import Kwire
from interop.cluster.complaints import NOT_ENOUGH
from interop.cluster.load import ALL_CLIENTS, Load
from interop.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster, Member, SmallKafka, eventually
from interop.cluster.quorums import goes_on, has_the_same_metadata, until_all_have_the_metadata
from interop.cluster.test_cuts import LATE
from interop.cluster.wires import Wires
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
"""Longer than the sessions of brokers."""


@pytest.mark.parametrize("makeup", MEMBERS)
def test_the_active_controller_is_cut_off(makeup: str, cables: Wires) -> None:
    with Cluster(MEMBERS[makeup], SETTINGS, voters_in_log=True, wires=cables).start() as cluster:
        is_combined = cluster.brokers == cluster.controllers
        cluster.make_topic("t", [cluster.brokers])
        with Load(cluster.bootstrap, "t", 1) as load:
            load.start(*ALL_CLIENTS)
            for title, cut in CUTS.items():
                if is_combined and cut in (from_controllers, from_brokers):
                    continue  # the same as from all
                load.until_all_write()
                cluster.until_all_in_sync()
                active = cluster.active_controller()
                cut(cables, active, cluster)
                if cut is from_brokers:
                    writes_on(load)
                    assert leads(cluster, active)
                else:
                    is_refused(cluster, active, title)
                    assert cluster.active_controller(than=active) != active
                    eventually(lambda active=active: not leads(cluster, active), f"{active} still leads")  # type: ignore[misc]
                    others = [each for each in cluster.brokers if each != active]
                    for asked in others:
                        makes_a_topic(cluster, asked, f"cut-{title}-{asked}", others[:2])
                    if is_combined:
                        # Who asks a broker that is cut off hears of no other leader: clients may wait.
                        is_led_by_another(cluster, others[0], active)
                    else:
                        writes_on(load)
                cables.heal()
                load.until_all_write()
                # Brokers that were cut off do not know yet that they were fenced.
                until_all_have_the_metadata(cluster, cluster.active_controller())
                cluster.until_unfenced(*cluster.brokers)
                cluster.until_all_in_sync()
                goes_on(cluster, f"healed-{title}")
            load.until_all_write()
            load.stop()
            load.check()
        found = {topic for topic in cluster.all_partitions() if topic.startswith("lonely")}
        # Who hears nobody is heard: its last records may be among those that its successor commits.
        assert found <= {"lonely-deaf"}
        cluster.until_all_the_same()
        has_the_same_metadata(cluster)
        cluster.check_complaints(also=rf"{NOT_ENOUGH}|{LATE}")


def from_controllers(cables: Wires, active: int, cluster: Cluster) -> None:
    separate(cables, active, set(cluster.controllers))


def from_brokers(cables: Wires, active: int, cluster: Cluster) -> None:
    separate(cables, active, set(cluster.brokers))


def from_all(cables: Wires, active: int, cluster: Cluster) -> None:
    separate(cables, active, set(cluster.nodes))


def unheard(cables: Wires, active: int, cluster: Cluster) -> None:
    cables.cut([active], set(cluster.nodes) - {active})


def deaf(cables: Wires, active: int, cluster: Cluster) -> None:
    cables.cut(set(cluster.nodes) - {active}, [active])


def separate(cables: Wires, active: int, others: set[int]) -> None:
    cables.cut([active], others - {active})
    cables.cut(others - {active}, [active])


CUTS: dict[str, Callable[[Wires, int, Cluster], None]] = {
    "from-controllers": from_controllers,
    "from-brokers": from_brokers,
    "from-all": from_all,
    "unheard": unheard,
    "deaf": deaf,
}


def writes_on(load: Load) -> None:
    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        load.until_all_write()


def leads(cluster: Cluster, node_id: int) -> bool:
    """Whether a controller says so of itself."""
    try:
        return bool(cluster.quorum(node_id)["LeaderId"] == node_id)
    except LookupError:
        return False


def is_refused(cluster: Cluster, active: int, title: str) -> None:
    """What no other controller has is not called done."""
    topic = {"Name": f"lonely-{title}", "NumPartitions": 1, "ReplicationFactor": 1}
    with RawClient(cluster.nodes[active].controller_bootstrap) as client:
        client.socket.settimeout(60.0)
        told = client.call(
            "CreateTopics",
            7,
            Topics=[topic | {"Assignments": [], "Configs": []}],
            timeoutMs=30_000,
            validateOnly=False,
        )
    [made] = told["Topics"]
    assert made["ErrorCode"] in REFUSED, made


REFUSED = {7, 41}
"""REQUEST_TIMED_OUT, NOT_CONTROLLER."""


def is_led_by_another(cluster: Cluster, asked: int, active: int) -> None:
    eventually(
        lambda: cluster.partition("t", asked=asked)["LeaderId"] not in (active, -1), f"{active} still leads t"
    )


def makes_a_topic(cluster: Cluster, asked: int, name: str, replicas: list[int]) -> None:
    """By whoever is the active controller by now."""
    topic = {"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    topic["Assignments"] = [{"PartitionIndex": 0, "BrokerIds": replicas}]
    with RawClient(cluster.nodes[asked].bootstrap) as client:
        client.socket.settimeout(60.0)
        told = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=60_000, validateOnly=False)
    [made] = told["Topics"]
    assert made["ErrorCode"] == 0, made
