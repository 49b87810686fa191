"""A controller loses its directory, and comes back with an empty one; or its disk is full, or breaks."""

from __future__ import annotations

import shutil

import pytest

from interop.cluster.complaints import NOT_ENOUGH, OLD_EPOCH, WIPED_VOTER
from interop.cluster.disks import Disk
from interop.cluster.load import CLIENTS
from interop.cluster.nodes import (
    COMBINED,
    FEATURES,
    WAIT_SECONDS,
    Cluster,
    Member,
    SmallKafka,
    formatted,
)
from interop.cluster.quorums import (
    OF_THREE,
    SNAPSHOTS_OFTEN,
    add,
    at_work,
    directory_id,
    goes_on,
    remove,
    voters,
)
from interop.cluster.test_disks import STORAGE, comes_back, fails


@pytest.mark.parametrize(
    "voters_in_log", [True, False], ids=["voters in the log", "voters in the properties"]
)
@pytest.mark.parametrize("makeup", OF_THREE)
def test_wiped(makeup: str, voters_in_log: bool) -> None:
    members = tuple(Member(kind, COMBINED) for kind in OF_THREE[makeup])
    with Cluster(members, SNAPSHOTS_OFTEN, voters_in_log=voters_in_log).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        others = [node_id for node_id, kind in enumerate(OF_THREE[makeup], 1) if kind is SmallKafka]
        wiped = WIPED_VOTER.format(f"[{''.join(map(str, others)) or '-'}]")
        with at_work(cluster, also=f"{NOT_ENOUGH}|{OLD_EPOCH}|{wiped}") as load:
            goes_on(cluster, "before")
            for victim in (cluster.active_controller(), *others[:1]):
                load.until_all_write()
                cluster.until_all_in_sync()
                node = cluster.nodes[victim]
                lost_id = directory_id(cluster, victim)
                node.kill()
                cluster.active_controller(than=victim)
                cluster.until_out_of_sync(victim)
                shutil.rmtree(node.log_dir)
                formatted(node, *FEATURES, *(("--no-initial-controllers",) if voters_in_log else ()))
                cluster.start_again(victim)
                cluster.until_all_in_sync()
                if voters_in_log:
                    remove(cluster, victim, lost_id)
                    add(cluster, victim)
                assert voters(cluster) == cluster.controllers
                load.until_all_write()
                goes_on(cluster, f"wiped-{victim}")
            # Each is needed now.
            for node_id in cluster.controllers:
                load.until_all_write()
                cluster.nodes[node_id].stop()
                cluster.active_controller(than=node_id)
                load.until_all_write()
                cluster.start_again(node_id)
                cluster.until_all_in_sync()


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("makeup", ["kwire", "one of kwire", "kafka"])
def test_disk_fails(makeup: str, way: str, small: Disk) -> None:
    """Of the active controller, which is a broker, too."""
    victim = 2
    members = tuple(Member(kind, COMBINED) for kind in OF_THREE[makeup])
    cluster = Cluster(members, voters_in_log=True)
    node = cluster.nodes[victim]
    node.properties["log.dirs"] = str(small.directory)
    node.log_dir = small.directory
    with cluster.start():
        cluster.make_topic("t", [cluster.brokers])
        while (active := cluster.active_controller()) != victim:
            cluster.nodes[active].stop()
            cluster.active_controller(than=active)
            cluster.start_again(active)
        cluster.until_all_in_sync()
        small.sync()
        with at_work(
            cluster, clients=CLIENTS, also=STORAGE, of=[each for each in cluster.nodes if each != victim]
        ) as load:
            load.until_all_write()
            fails(small, way)
            assert node.process is not None
            assert node.process.wait(WAIT_SECONDS) == 1
            cluster.active_controller(than=victim)
            load.until_all_write()
            comes_back(cluster, node, small, way)
            load.until_all_write()
            goes_on(cluster, "repaired")
