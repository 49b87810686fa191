"""Faults of a controller quorum, one in each round, in a random order that depends on a seed.

There are few rounds by default. For more, set `INTEROP_ROUNDS=1000 INTEROP_SEED=7`. The cluster is healthy at
the start and at the end of each round, and no record may be lost.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

import pytest

from interop.brokers import Kwire
from interop.cluster.disks import Disk
from interop.cluster.load import AioWriter, Load
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.network import Network
from interop.cluster.nodes import (
    BROKER,
    CONTROLLER,
    FEATURES,
    Cluster,
    Member,
    format_node,
    wait_until,
)
from interop.cluster.quorums import (
    SNAPSHOTS_OFTEN,
    add_voter,
    directory_id,
    remove_voter,
    under_load,
    voters,
    wait_until_metadata_replicated,
)
from interop.cluster.test_controller_network_faults import CUTS, from_brokers
from interop.cluster.test_disks import STORAGE, comes_back, fails
from interop.cluster.test_elections import BESIDE, FIVE, SOON_ELECTED, UNKNOWN_TOPIC, force_election
from interop.raw import TOPIC_ALREADY_EXISTS
from interop.raw_client import RawClient
from interop.wire import Fields

MEMBERS = {
    "controllers apart": (*(Member(Kwire, CONTROLLER),) * 5, *(Member(Kwire, BROKER),) * 3),
    "combined": FIVE["kwire"],
}
SETTINGS = {
    **SOON_ELECTED,
    # A session must last until the brokers have found the new controller. Otherwise all brokers could be
    # fenced.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    **SNAPSHOTS_OFTEN,
    "replica.lag.time.max.ms": "4000",
    "controller.socket.timeout.ms": "5000",
}
ON_A_DISK = 1
"""The id of the node on the small disk, on which the disk faults happen: a controller, not a broker."""
AWAY_S = 6.0
"""The duration of a disconnection, longer than broker.session.timeout.ms."""
KEPT = 5
"""The number of topics that exist at a time. The oldest topic is deleted first."""


class Attentive(AioWriter):
    """aiokafka's producer with frequent metadata updates.

    aiokafka sends requests only to brokers that it knows. Without frequent updates, all known brokers could
    be down.
    """

    metadata_max_age_ms = 500


CLIENTS = [Attentive if kind is AioWriter else kind for kind in BESIDE]
HEARD_S = 1.0
"""The time in which clients learn of all brokers, in seconds."""


class Trial(NamedTuple):
    cluster: Cluster
    load: Load
    network: Network
    small: Disk


Fault = Callable[[Trial], AbstractContextManager[list[int]]]
"""A context manager that causes a fault until the end of its block. It yields the affected node ids."""


@contextmanager
def away(trial: Trial, how: str, *, number: int) -> Iterator[list[int]]:
    """Stop, kill or pause `number` controllers, the active one first. Restart them after the block.

    At most one of these controllers is also a broker.
    """
    cluster = trial.cluster
    while how == "pause" and cluster.active_controller() == cluster.leader("t"):
        # A client waits for a paused partition leader as long as the leader is paused.
        force_election(cluster)
    active = cluster.active_controller()
    lost = [active, *(each for each in cluster.controllers if each != active)][:number]
    for node_id in lost:
        getattr(cluster.nodes[node_id], how)()
    cluster.active_controller(than=active)
    yield lost
    for node_id in lost:
        if how == "pause":
            cluster.nodes[node_id].resume()
        else:
            cluster.start_node(node_id)


@contextmanager
def without_leader(trial: Trial) -> Iterator[list[int]]:
    """Kill the broker that leads the partition of the load's clients."""
    leader = trial.cluster.leader("t")
    trial.cluster.nodes[leader].kill()
    trial.cluster.wait_for_another_leader("t", 0, than=leader)
    yield [leader]
    trial.cluster.start_node(leader)


@contextmanager
def cut_off(trial: Trial, cut: Callable[[Network, int, Cluster], None]) -> Iterator[list[int]]:
    """Disconnect the active controller from other nodes, in one or both directions."""
    cluster = trial.cluster
    active = cluster.active_controller()
    cut(trial.network, active, cluster)
    if cut is not from_brokers:
        cluster.active_controller(than=active)
    until = time.monotonic() + AWAY_S
    while time.monotonic() < until:
        if active in cluster.brokers:
            # A disconnected broker does not learn of a new leader, so its clients may have to wait.
            time.sleep(0.1)
        else:
            trial.load.wait_until_all_write()
    if cut is from_brokers:
        trial.network.heal()  # While disconnected, brokers cannot forward requests to the controller.
    yield [active]
    trial.network.heal()


@contextmanager
def disk_fails(trial: Trial, way: str) -> Iterator[list[int]]:
    """Fill the small disk, or make it fail, while its node is the active controller. Repair it at the end."""
    cluster, node = trial.cluster, trial.cluster.nodes[ON_A_DISK]
    while cluster.active_controller() != ON_A_DISK:
        force_election(cluster, last=ON_A_DISK)
    trial.small.sync()
    fails(trial.small, way)

    def has_ended() -> bool:
        if way == "full":
            trial.small.fill()  # The node may have deleted segments, which frees space.
        return node.process is not None and node.process.poll() == 1

    wait_until(has_ended, f"node {ON_A_DISK} works on")
    cluster.active_controller(than=ON_A_DISK)
    yield [ON_A_DISK]
    comes_back(cluster, node, trial.small, way)


@contextmanager
def wiped(trial: Trial) -> Iterator[list[int]]:
    """Wipe the directory of the active controller, and let the node return as a new voter."""
    cluster = trial.cluster
    victim = cluster.active_controller()
    node, lost_id = cluster.nodes[victim], directory_id(cluster, victim)
    node.kill()
    cluster.active_controller(than=victim)
    cluster.wait_until_out_of_sync(victim)
    yield [victim]
    for path in node.log_dir.iterdir():  # Keep the directory itself, which may be a mount point.
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    format_node(node, *FEATURES, "--no-initial-controllers")
    cluster.start_node(victim)
    cluster.wait_until_all_in_sync()
    remove_voter(cluster, victim, lost_id)
    add_voter(cluster, victim)
    assert voters(cluster) == cluster.controllers


FAULTS: dict[str, Fault] = {
    "killed": partial(away, how="kill", number=1),
    "stopped": partial(away, how="stop", number=1),
    "paused": partial(away, how="pause", number=1),
    "two killed": partial(away, how="kill", number=2),
    "two paused": partial(away, how="pause", number=2),
    "leader of records killed": without_leader,
    **{f"cut {title}": partial(cut_off, cut=cut) for title, cut in CUTS.items()},
    "disk full": partial(disk_fails, way="full"),
    "disk broken": partial(disk_fails, way="broken"),
    "wiped": wiped,
}
MAY_WAIT = [title for title in FAULTS if title.startswith("cut")]
"""Faults during which clients may have to wait, because their broker has outdated metadata."""
ROUNDS = int(os.environ.get("INTEROP_ROUNDS", str(len(FAULTS))))
SEED = int(os.environ.get("INTEROP_SEED", "1"))


@pytest.mark.parametrize("cluster_kind", MEMBERS)
def test_nothing_is_lost_in_rounds_of_faults(cluster_kind: str, network: Network, small: Disk) -> None:
    cluster = Cluster(MEMBERS[cluster_kind], SETTINGS, voters_in_log=True, network=network)
    node = cluster.nodes[ON_A_DISK]
    node.properties["log.dirs"] = str(small.directory)
    node.log_dir = small.directory
    others = [each for each in cluster.nodes if each != ON_A_DISK]
    with cluster.start():
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS, also=f"{NOT_ENOUGH}|{STORAGE}", of=others) as load:
            trial = Trial(cluster, load, network, small)
            for number, title in enumerate(fault_order(random.Random(SEED), ROUNDS)):
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
                time.sleep(HEARD_S)
                began = time.monotonic()
                with FAULTS[title](trial) as lost:
                    create_topic(cluster, f"made-{number}", but=lost)
                    if title not in MAY_WAIT or not set(lost) & set(cluster.brokers):
                        load.wait_until_all_write()
                load.wait_until_all_write()
                wait_until_metadata_replicated(cluster, cluster.active_controller())
                cluster.wait_until_unfenced(*cluster.brokers)
                wait_until_topics_are_current(cluster, number)
                print(f"{number}: {title} {lost}, {time.monotonic() - began:.1f} s", flush=True)


def fault_order(dice: random.Random, rounds: int) -> list[str]:
    """Return the faults in random order, each of them about equally often."""
    found: list[str] = []
    while len(found) < rounds:
        found += dice.sample(list(FAULTS), len(FAULTS))
    return found[:rounds]


def create_topic(cluster: Cluster, name: str, but: list[int]) -> None:
    queried_id, *more = [each for each in cluster.brokers if each not in but]
    topic = {"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    topic["Assignments"] = [{"PartitionIndex": 0, "BrokerIds": [queried_id, *more][:2]}]
    wanted = {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": False}
    wait_until_done(cluster, queried_id, "CreateTopics", 7, wanted, TOPIC_ALREADY_EXISTS)


def wait_until_topics_are_current(cluster: Cluster, number: int) -> None:
    """Delete the oldest topic, and wait until every broker has exactly the last KEPT topics.

    `number` is the number of the newest topic.
    """
    first = max(0, number - KEPT + 1)
    if first:
        name = {"Name": f"made-{first - 1}", "TopicId": bytes(16)}
        wanted = {"Topics": [name], "TimeoutMs": 10_000}
        wait_until_done(cluster, cluster.brokers[0], "DeleteTopics", 6, wanted, UNKNOWN_TOPIC)
    expected = {f"made-{each}" for each in range(first, number + 1)}
    for queried_id in cluster.brokers:

        def is_so(queried_id: int = queried_id) -> bool:
            found = cluster.metadata(queried_id=queried_id, everything=True)["Topics"]
            return {each["Name"] for each in found if each["Name"].startswith("made-")} == expected

        wait_until(is_so, f"broker {queried_id} does not have exactly {sorted(expected)}")


def wait_until_done(
    cluster: Cluster, queried_id: int, api: str, version: int, wanted: Fields, done_before: int
) -> None:
    """Send a request until it succeeds. The error `done_before` means that an earlier attempt succeeded."""

    def is_so() -> bool:
        with suppress(EOFError), RawClient(cluster.nodes[queried_id].bootstrap) as client:
            response = client.call(api, version, **wanted)
            return (response.get("Topics") or response["Responses"])[0]["ErrorCode"] in (0, done_before)
        return False

    wait_until(is_so, f"{api} is not done: {wanted}")
