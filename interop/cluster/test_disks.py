"""Full and failing disks under unmodified clients: partitions fail over and return after the repair."""

from __future__ import annotations

import pytest

from interop.brokers import Broker
from interop.cluster.disks import Disk
from interop.cluster.load import CLIENTS, Client, Load, PythonReader, TransactionalWriter
from interop.cluster.nodes import CLUSTER_KINDS, WAIT_SECONDS, Cluster, wait_until

SETTINGS = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "4000"}
VICTIM = 3
"""The id of the broker that uses the small disk and leads every partition: kwire in mixed clusters."""
PARTITIONS = 6
STORAGE = (
    "NotEnoughReplicas|KAFKA_STORAGE_ERROR|KafkaStorageException|UnknownServerException|timed out after"
    "|marked offline, remaining directories|Detected non-monotonic update of fetch offset"
)
"""Errors that followers and clients may report until another replica is elected leader.

A fetch offset is not monotonic if an observer's metadata log lost its end: an observer does not sync the log.
"""


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_partitions_fail_over_if_one_log_directory_fails(cluster_kind: str, way: str, small: Disk) -> None:
    cluster = Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS)
    node = cluster.nodes[VICTIM]
    node.properties["log.dirs"] = f"{node.log_dir},{small.directory}"
    with cluster.start():
        cluster.make_topic("t", [[VICTIM, 2, 1]] * PARTITIONS)
        small.sync()
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*without_transactions(cluster_kind))
            load.wait_until_all_write()
            lost = {index for index in range(PARTITIONS) if (small.directory / f"t-{index}").exists()}
            assert 0 < len(lost) < PARTITIONS
            fails(small, way)
            wait_until(lambda: offline(cluster) == lost, f"the partitions {lost} are not offline on {VICTIM}")
            for index in range(PARTITIONS):
                if index in lost:
                    cluster.wait_for_another_leader("t", index, than=VICTIM)
                else:
                    assert cluster.leader("t", index) == VICTIM
            load.wait_until_all_write()
            comes_back(cluster, node, small, way)
            load.wait_until_all_write()
            load.stop()
            check(load, cluster_kind)
        cluster.wait_until_all_replicas_equal()
        cluster.check_logs(also=STORAGE, of=[1, 2])


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_broker_exits_if_its_only_log_directory_fails(cluster_kind: str, way: str, small: Disk) -> None:
    cluster = Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS)
    node = cluster.nodes[VICTIM]
    node.properties["log.dirs"] = str(small.directory)
    with cluster.start():
        cluster.make_topic("t", [[VICTIM, 2, 1]] * PARTITIONS)
        small.sync()
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*clients(cluster_kind))
            load.wait_until_all_write()
            fails(small, way)
            assert node.process is not None
            assert node.process.wait(WAIT_SECONDS) == 1
            for index in range(PARTITIONS):
                cluster.wait_for_another_leader("t", index, than=VICTIM)
            load.wait_until_all_write()
            comes_back(cluster, node, small, way)
            load.wait_until_all_write()
            load.stop()
            check(load, cluster_kind)
        cluster.wait_until_all_replicas_equal()
        cluster.check_logs(also=STORAGE, of=[1, 2])


def clients(cluster_kind: str) -> list[type[Client]]:
    """Return all clients without a JVM. On Apache Kafka alone, leave out kafka-python's consumer.

    If Apache Kafka's leader cannot read its disk, it returns UNKNOWN_SERVER_ERROR to a fetch, and this
    consumer raises the error.
    """
    return [each for each in CLIENTS if cluster_kind != "kafka" or each is not PythonReader]


def without_transactions(cluster_kind: str) -> list[type[Client]]:
    """Return the clients. Unless all nodes are kwire, leave out the transactional producer.

    The last write of a transaction coordinator may wait for a minute until it times out. Apache Kafka's
    leader waits for a replica that was recently caught up and whose broker is alive, even after the
    controller has removed the replica from the ISR. The leader stops waiting only when another follower
    fetches later records.
    """
    return [
        each for each in clients(cluster_kind) if cluster_kind == "kwire" or each is not TransactionalWriter
    ]


def check(load: Load, cluster_kind: str) -> None:
    """Check that no record is lost and that clients reported no error.

    In a cluster of Apache Kafka, clients may report errors. Apache Kafka maps its indexes into memory, which
    can fail on a full or failed disk. The broker then returns UNKNOWN_SERVER_ERROR. This error breaks the
    sequence of an idempotent producer, and consumers report it.
    """
    if cluster_kind == "kafka":
        assert not load.history.anomalies()
    else:
        load.check()


def fails(small: Disk, way: str) -> None:
    if way == "full":
        small.fill()
    else:
        small.fail()


def comes_back(cluster: Cluster, node: Broker, small: Disk, way: str) -> None:
    """Stop the node if it still runs, free the `full` disk or repair it, and start the node again."""
    if node.process is not None and node.process.poll() is None:
        node.stop()
    node.kill()
    if way == "full":
        small.free_space()
    else:
        small.repair()
    cluster.start_node(int(node.properties["node.id"]))
    cluster.wait_until_all_in_sync()


def offline(cluster: Cluster) -> set[int]:
    """Return the partitions of `t` whose replica on the broker VICTIM is offline, as broker 1 reports."""
    [topic] = cluster.metadata("t", queried_id=1)["Topics"]
    return {each["PartitionIndex"] for each in topic["Partitions"] if VICTIM in each["OfflineReplicas"]}
