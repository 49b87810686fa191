"""Controllers whose directory is wiped, whose disk is full, or whose disk fails."""

from __future__ import annotations

import shutil

import pytest

from interop.cluster.disks import Disk
from interop.cluster.load import CLIENTS
from interop.cluster.log_checks import NOT_ENOUGH, OLD_EPOCH, WIPED_VOTER
from interop.cluster.nodes import (
    COMBINED,
    FEATURES,
    WAIT_SECONDS,
    Cluster,
    Member,
    SmallKafka,
    format_node,
)
from interop.cluster.quorums import (
    SNAPSHOTS_OFTEN,
    VOTER_KINDS,
    add_voter,
    create_topics_through_each_broker,
    directory_id,
    remove_voter,
    under_load,
    voters,
)
from interop.cluster.test_disks import STORAGE, comes_back, fails


@pytest.mark.parametrize(
    "voters_in_log", [True, False], ids=["voters in the log", "voters in the properties"]
)
@pytest.mark.parametrize("cluster_kind", VOTER_KINDS)
def test_controller_with_a_wiped_directory_rejoins(cluster_kind: str, voters_in_log: bool) -> None:
    members = tuple(Member(kind, COMBINED) for kind in VOTER_KINDS[cluster_kind])
    with Cluster(members, SNAPSHOTS_OFTEN, voters_in_log=voters_in_log).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        others = [node_id for node_id, kind in enumerate(VOTER_KINDS[cluster_kind], 1) if kind is SmallKafka]
        wiped = WIPED_VOTER.format(f"[{''.join(map(str, others)) or '-'}]")
        with under_load(cluster, also=f"{NOT_ENOUGH}|{OLD_EPOCH}|{wiped}") as load:
            create_topics_through_each_broker(cluster, "before")
            for victim in (cluster.active_controller(), *others[:1]):
                load.wait_until_all_write()
                cluster.wait_until_all_in_sync()
                node = cluster.nodes[victim]
                lost_id = directory_id(cluster, victim)
                node.kill()
                cluster.active_controller(than=victim)
                cluster.wait_until_out_of_sync(victim)
                shutil.rmtree(node.log_dir)
                format_node(node, *FEATURES, *(("--no-initial-controllers",) if voters_in_log else ()))
                cluster.start_node(victim)
                cluster.wait_until_all_in_sync()
                if voters_in_log:
                    remove_voter(cluster, victim, lost_id)
                    add_voter(cluster, victim)
                assert voters(cluster) == cluster.controllers
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"wiped-{victim}")
            # From here on, the scenario needs all three controllers.
            for node_id in cluster.controllers:
                load.wait_until_all_write()
                cluster.nodes[node_id].stop()
                cluster.active_controller(than=node_id)
                load.wait_until_all_write()
                cluster.start_node(node_id)
                cluster.wait_until_all_in_sync()


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("cluster_kind", ["kwire", "one of kwire", "kafka"])
def test_controller_with_a_failed_disk_rejoins(cluster_kind: str, way: str, small: Disk) -> None:
    victim = 2
    members = tuple(Member(kind, COMBINED) for kind in VOTER_KINDS[cluster_kind])
    cluster = Cluster(members, voters_in_log=True)
    node = cluster.nodes[victim]
    node.properties["log.dirs"] = str(small.directory)
    node.log_dir = small.directory
    with cluster.start():
        cluster.make_topic("t", [cluster.brokers])
        while (active := cluster.active_controller()) != victim:
            cluster.nodes[active].stop()
            cluster.active_controller(than=active)
            cluster.start_node(active)
        cluster.wait_until_all_in_sync()
        small.sync()
        with under_load(
            cluster, clients=CLIENTS, also=STORAGE, of=[each for each in cluster.nodes if each != victim]
        ) as load:
            load.wait_until_all_write()
            fails(small, way)
            assert node.process is not None
            assert node.process.wait(WAIT_SECONDS) == 1
            cluster.active_controller(than=victim)
            load.wait_until_all_write()
            comes_back(cluster, node, small, way)
            load.wait_until_all_write()
            create_topics_through_each_broker(cluster, "repaired")
