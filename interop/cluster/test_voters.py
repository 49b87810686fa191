"""A controller quorum that grows and shrinks under load, with Kafka's tool or automatically."""

from __future__ import annotations

import shutil

import pytest

from interop.brokers import Kwire
from interop.cluster.log_checks import NOT_ENOUGH, OLD_EPOCH
from interop.cluster.nodes import COMBINED, FEATURES, Cluster, Member, SmallKafka, format_node, wait_until
from interop.cluster.quorums import (
    VOTER_KINDS,
    add_voter,
    create_topics_through_each_broker,
    directory_id,
    remove_voter,
    under_load,
    voter_directory_ids,
    voters,
)

CLUSTER_KINDS = {**VOTER_KINDS, "kwire takes over": (SmallKafka, SmallKafka, Kwire)}


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_voters_are_added_and_removed_under_load(cluster_kind: str) -> None:
    members = tuple(Member(kind, COMBINED) for kind in CLUSTER_KINDS[cluster_kind])
    with Cluster(members, voters_in_log=True, first_voters=[1]).start() as cluster:
        assert voters(cluster) == [1]
        cluster.make_topic("t", [[2, 3, 1]])
        with under_load(cluster) as load:
            for node_id in (2, 3):
                add_voter(cluster, node_id)
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"with-{node_id}")
            assert voters(cluster) == [1, 2, 3]
            active = cluster.active_controller()
            cluster.nodes[active].kill()
            cluster.active_controller(than=active)
            load.wait_until_all_write()
            cluster.start_node(active)
            cluster.wait_until_all_in_sync()
            for node_id in (1, 2):
                remove_voter(cluster, node_id, directory_id(cluster, node_id))
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"without-{node_id}")
            assert voters(cluster) == [3]
            assert cluster.active_controller() == 3


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_voters_join_automatically(cluster_kind: str) -> None:
    """Let voters join automatically. A voter that lost its directory replaces its old voter entry."""
    members = tuple(Member(kind, COMBINED) for kind in CLUSTER_KINDS[cluster_kind])
    joins = {"controller.quorum.auto.join.enable": "true"}
    with Cluster(members, joins, voters_in_log=True, first_voters=[1]).start() as cluster:
        wait_until(lambda: voters(cluster) == [1, 2, 3], "not everybody has become a voter")
        cluster.make_topic("t", [[2, 3, 1]])
        with under_load(cluster, also=f"{NOT_ENOUGH}|{OLD_EPOCH}") as load:
            for victim in (2, 1):
                load.wait_until_all_write()
                lost_id = directory_id(cluster, victim)
                node = cluster.nodes[victim]
                node.kill()
                cluster.active_controller(than=victim)
                cluster.wait_until_out_of_sync(victim)
                shutil.rmtree(node.log_dir)
                format_node(node, *FEATURES, "--no-initial-controllers")
                cluster.start_node(victim)
                own_id = directory_id(cluster, victim)
                assert own_id != lost_id
                wait_until(
                    lambda own_id=own_id: own_id in voter_directory_ids(cluster),  # type: ignore[misc]
                    f"{victim} does not vote",
                )
                assert voters(cluster) == [1, 2, 3]
                cluster.wait_until_all_in_sync()
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"wiped-{victim}")
