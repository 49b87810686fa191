"""A static quorum that becomes a dynamic quorum and removes a voter, as docs/cluster.md describes."""

from __future__ import annotations

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.nodes import COMBINED, Cluster, Member, SmallKafka, wait_until
from interop.cluster.quorums import (
    create_topics_through_each_broker,
    directory_id,
    remove_voter,
    under_load,
    voters,
)
from interop.tools import TOOLS, run

FEATURES = f"{TOOLS}.FeatureCommand"
VOTERS = "controller.quorum.voters"
CLUSTER_KINDS: dict[str, tuple[type[Broker], ...]] = {
    "kwire": (Kwire, Kwire, Kwire),
    "two of kwire": (Kwire, SmallKafka, Kwire),
    "one of kwire": (SmallKafka, Kwire, SmallKafka),
    "kafka": (SmallKafka, SmallKafka, SmallKafka),
}


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_static_quorum_becomes_dynamic(cluster_kind: str) -> None:
    members = tuple(Member(kind, COMBINED) for kind in CLUSTER_KINDS[cluster_kind])
    with Cluster(members).start() as cluster:
        cluster.make_topic("t", [[2, 3, 1]])
        with under_load(cluster):
            wait_until(lambda: is_raised(cluster), "kraft.version is not raised")
            for node_id, node in cluster.nodes.items():
                node.stop()
                named = node.properties.pop(VOTERS).split(",")
                servers = ",".join(voter.partition("@")[2] for voter in named)
                node.properties["controller.quorum.bootstrap.servers"] = servers
                cluster.start_node(node_id)
                cluster.wait_until_all_in_sync()
                create_topics_through_each_broker(cluster, f"again-{node_id}")
            leaving = cluster.active_controller()
            remove_voter(cluster, leaving, directory_id(cluster, leaving))
            assert len(voters(cluster)) == 2
            create_topics_through_each_broker(cluster, "of-two")


def is_raised(cluster: Cluster) -> bool:
    """Upgrade kraft.version, and return whether this succeeded.

    The upgrade fails until all voters have reported their directory ids.
    """
    response = run(
        FEATURES, "--bootstrap-server", cluster.bootstrap, "upgrade", "--feature", "kraft.version=1"
    )
    return response.status == 0
