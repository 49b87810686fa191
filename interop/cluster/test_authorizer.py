"""Clusters with an authorizer: every node decides alike, and it is turned on without a failed request."""

from __future__ import annotations

import pytest

from interop.cluster.load import CLIENTS
from interop.cluster.logins import PLAIN, log_in, logins
from interop.cluster.nodes import CLUSTER_KINDS, Cluster, wait_until
from interop.cluster.quorums import under_load
from interop.raw_client import RawClient
from interop.tools import TOOLS, a_file, run

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:broker;User:quorum",
}
ALLOWS_ALL, DENIES = {"allow.everyone.if.no.acl.found": "true"}, {"allow.everyone.if.no.acl.found": "false"}
TOPIC_AUTHORIZATION_FAILED = 29
RIGHTS = (
    ("--operation", "All", "--topic", "t"),
    ("--operation", "Describe", "--topic", "*"),
    ("--operation", "Read", "--group", "*"),
    ("--operation", "Write", "--operation", "Describe", "--transactional-id", "*"),
    # For the scenario itself, which elects leaders and looks at the quorum.
    ("--operation", "Alter", "--operation", "Describe", "--cluster"),
)
"""What the clients of the load need, as arguments of kafka-acls."""


def create_topic(cluster: Cluster, node_id: int, name: str) -> int:
    """Create a topic through a broker as the client. Return the error code."""
    assert cluster.logins is not None
    with RawClient(cluster.nodes[node_id].bootstrap) as client:
        log_in(client, cluster.logins.client)
        topic = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
        response = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=10_000, validateOnly=True)
    code: int = response["Topics"][0]["ErrorCode"]
    return code


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_authorization_is_turned_on_by_rolling_restarts(cluster_kind: str) -> None:
    """Turn on the authorizer, create ACLs, and deny the rest, while clients write and read."""
    known = logins(PLAIN, PLAIN)
    with Cluster(CLUSTER_KINDS[cluster_kind], logins=known).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS) as load:
            for settings in (ALLOWS_ALL, DENIES):
                for node_id, node in cluster.nodes.items():
                    load.wait_until_all_write()
                    node.stop()
                    node.properties |= AUTHORIZER | settings
                    cluster.start_node(node_id)
                    cluster.wait_until_all_in_sync()
                    cluster.elect_preferred_leaders()
                if settings is ALLOWS_ALL:
                    assert create_topic(cluster, cluster.brokers[-1], "open") == 0
                    add_rights(cluster)
            for node_id in cluster.brokers:
                wait_until(
                    lambda node_id=node_id: (
                        create_topic(cluster, node_id, "closed") == TOPIC_AUTHORIZATION_FAILED
                    ),  # type: ignore[misc]
                    f"node {node_id} creates a topic without a right",
                )


def add_rights(cluster: Cluster) -> None:
    """Give the client its rights with kafka-acls, as a node."""
    assert cluster.logins is not None
    properties = cluster.logins.between_brokers.of_java()
    with a_file("".join(f"{key}={value}\n" for key, value in properties.items())) as config:
        for right in RIGHTS:
            response = run(
                f"{TOOLS}.AclCommand",
                *("--bootstrap-server", cluster.bootstrap, "--command-config", config),
                *("--add", "--allow-principal", "User:alice", *right),
            )
            assert response.status == 0, response
