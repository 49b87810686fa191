"""A quorum of one grows to three and shrinks, under load: by Apache Kafka's own tool, and by itself."""

from __future__ import annotations

import shutil

import pytest

from interop.brokers import Kwire
from interop.cluster.complaints import NOT_ENOUGH, OLD_EPOCH
from interop.cluster.nodes import COMBINED, FEATURES, Cluster, Member, SmallKafka, eventually, formatted
from interop.cluster.quorums import (
    OF_THREE,
    add,
    at_work,
    directory_id,
    goes_on,
    remove,
    voters,
    voting_directories,
)

MAKEUPS = {**OF_THREE, "kwire takes over": (SmallKafka, SmallKafka, Kwire)}


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_voters_come_and_go(makeup: str) -> None:
    members = tuple(Member(kind, COMBINED) for kind in MAKEUPS[makeup])
    with Cluster(members, voters_in_log=True, first_voters=[1]).start() as cluster:
        assert voters(cluster) == [1]
        cluster.make_topic("t", [[2, 3, 1]])
        with at_work(cluster) as load:
            for node_id in (2, 3):
                add(cluster, node_id)
                load.until_all_write()
                goes_on(cluster, f"with-{node_id}")
            assert voters(cluster) == [1, 2, 3]
            active = cluster.active_controller()
            cluster.nodes[active].kill()
            cluster.active_controller(than=active)
            load.until_all_write()
            cluster.start_again(active)
            cluster.until_all_in_sync()
            for node_id in (1, 2):
                remove(cluster, node_id, directory_id(cluster, node_id))
                load.until_all_write()
                goes_on(cluster, f"without-{node_id}")
            assert voters(cluster) == [3]
            assert cluster.active_controller() == 3


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_voters_join_by_themselves(makeup: str) -> None:
    """As `controller.quorum.auto.join.enable` says; one that has lost its directory takes its own place."""
    members = tuple(Member(kind, COMBINED) for kind in MAKEUPS[makeup])
    joins = {"controller.quorum.auto.join.enable": "true"}
    with Cluster(members, joins, voters_in_log=True, first_voters=[1]).start() as cluster:
        eventually(lambda: voters(cluster) == [1, 2, 3], "not everybody has become a voter")
        cluster.make_topic("t", [[2, 3, 1]])
        with at_work(cluster, also=f"{NOT_ENOUGH}|{OLD_EPOCH}") as load:
            for victim in (2, 1):
                load.until_all_write()
                lost_id = directory_id(cluster, victim)
                node = cluster.nodes[victim]
                node.kill()
                cluster.active_controller(than=victim)
                cluster.until_out_of_sync(victim)
                shutil.rmtree(node.log_dir)
                formatted(node, *FEATURES, "--no-initial-controllers")
                cluster.start_again(victim)
                own_id = directory_id(cluster, victim)
                assert own_id != lost_id
                eventually(
                    lambda own_id=own_id: own_id in voting_directories(cluster),  # type: ignore[misc]
                    f"{victim} does not vote",
                )
                assert voters(cluster) == [1, 2, 3]
                cluster.until_all_in_sync()
                load.until_all_write()
                goes_on(cluster, f"wiped-{victim}")
