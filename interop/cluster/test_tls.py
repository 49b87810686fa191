"""Clusters whose nodes connect to each other over TLS, each with its own certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster.load import CLIENTS
from interop.cluster.node_certificates import NodeCertificates
from interop.cluster.nodes import CLUSTER_KINDS, COMBINED, Cluster, Member
from interop.cluster.quorums import VOTER_KINDS, create_topics_through_each_broker, under_load


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_failover_and_restart_with_tls(cluster_kind: str, tmp_path: Path) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind], tls=NodeCertificates(tmp_path)).start() as cluster:
        [controller] = cluster.controllers
        others = [each for each in cluster.brokers if each != controller]
        cluster.make_topic("t", [[*others, controller]])
        with under_load(cluster, clients=CLIENTS) as load:
            load.wait_until_all_write()
            for victim in (cluster.leader("t"), controller):
                cluster.nodes[victim].kill()
                if victim != controller:
                    cluster.wait_for_another_leader("t", 0, than=victim)
                    load.wait_until_all_write()
                cluster.start_node(victim)
                cluster.wait_until_all_in_sync()
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"after-{victim}")


@pytest.mark.parametrize("cluster_kind", VOTER_KINDS)
def test_controller_election_with_tls(cluster_kind: str, tmp_path: Path) -> None:
    members = tuple(Member(kind, COMBINED) for kind in VOTER_KINDS[cluster_kind])
    with Cluster(members, tls=NodeCertificates(tmp_path)).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS) as load:
            load.wait_until_all_write()
            active = cluster.active_controller()
            cluster.nodes[active].kill()
            cluster.active_controller(than=active)
            load.wait_until_all_write()
            cluster.start_node(active)
            cluster.wait_until_all_in_sync()
            create_topics_through_each_broker(cluster, f"after-{active}")
