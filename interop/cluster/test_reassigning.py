"""A broker of one kind joins two brokers of the other kind, takes over all partitions, and gives them back.

While the new broker has all partitions, the other two are restarted, the controller last. At the end, all
three brokers are replicas with identical logs.
"""

from __future__ import annotations

import json

import pytest

from interop.brokers import Kwire
from interop.cluster.load import ConfluentReader, ConfluentWriter, Load, PythonReader, PythonWriter
from interop.cluster.nodes import COMBINED, CONTROLLER, Cluster, Member, SmallKafka, wait_until
from interop.tools import TOOLS, a_file, run

REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
CLUSTER_KINDS = {
    "kwire joins kafka": (Member(SmallKafka, COMBINED), Member(SmallKafka), Member(Kwire)),
    "kwire joins kafka under kwire": (
        Member(Kwire, CONTROLLER),
        Member(SmallKafka),
        Member(SmallKafka),
        Member(Kwire),
    ),
    "kafka joins kwire": (Member(Kwire, COMBINED), Member(Kwire), Member(SmallKafka)),
    "kafka": (Member(SmallKafka, COMBINED), Member(SmallKafka), Member(SmallKafka)),
    "kwire": (Member(Kwire, COMBINED), Member(Kwire), Member(Kwire)),
}
SETTINGS = {
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
}


def reassign(cluster: Cluster, replicas: list[int]) -> None:
    """Reassign all partitions to these brokers with Kafka's tool, and wait until this is complete."""
    moves = [
        {"topic": topic, "partition": index, "replicas": replicas}
        for topic, partitions in sorted(cluster.all_partitions().items())
        for index in range(partitions)
    ]
    with a_file(json.dumps({"version": 1, "partitions": moves})) as plan:
        tool_options = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", plan)
        done = run(REASSIGN, *tool_options, "--execute", timeout_s=90)
        assert "Successfully started partition reassignments" in done.stdout, done

        def is_complete() -> bool:
            output = run(REASSIGN, *tool_options, "--verify", timeout_s=90).stdout
            return output.count("is completed.") == len(moves)

        wait_until(is_complete, f"not everything is reassigned to {replicas}")
    for move in moves:
        found = cluster.partition(str(move["topic"]), int(str(move["partition"])))
        assert found["ReplicaNodes"] == replicas, (move, found)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_all_partitions_move_to_a_new_broker_and_back(cluster_kind: str) -> None:
    cluster = Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS)
    first, second, joins = cluster.brokers
    with cluster.start(without=[joins]), Load(cluster.bootstrap, "t", 2) as load:
        cluster.make_topic("t", [[first, second], [second, first]], **{"segment.bytes": "1048576"})
        load.start(ConfluentReader, PythonReader, ConfluentWriter, PythonWriter)
        load.wait_until_all_write()
        cluster.start_node(joins)
        reassign(cluster, [joins])
        load.wait_until_all_write()
        others = [second, first]
        for node_id in others:
            cluster.nodes[node_id].stop()
            load.wait_until_all_write()
        for node_id in reversed(others):
            cluster.start_node(node_id)
        load.wait_until_all_write()
        reassign(cluster, [first, second, joins])
        load.wait_until_all_write()
        load.stop()
        load.check()
        for topic, partitions in cluster.all_partitions().items():
            cluster.wait_until_in_sync(topic, partitions)
            cluster.wait_until_replicas_equal(topic, partitions)
        cluster.check_logs()
