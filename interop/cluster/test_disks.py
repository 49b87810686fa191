"""Disks are full, or fail, under stock clients: what is on them goes to other brokers, and comes back."""

from __future__ import annotations

import pytest

from interop.brokers import Broker
from interop.cluster.disks import Disk
from interop.cluster.load import CLIENTS, Client, Load, PythonReader, TransactionalWriter
from interop.cluster.nodes import MAKEUPS, WAIT_SECONDS, Cluster, eventually

SETTINGS = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "4000"}
VICTIM = 3
"""Of kwire, but in the cluster that has none; it leads everything."""
PARTITIONS = 6
STORAGE = (
    "NotEnoughReplicas|KAFKA_STORAGE_ERROR|KafkaStorageException|UnknownServerException|timed out after"
    "|marked offline, remaining directories|Detected non-monotonic update of fetch offset"
)
"""What followers are told until somebody else leads, and what clients are told then.

Who only observes the metadata does not sync its log, and has less of it when its disk is repaired.
"""


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("makeup", MAKEUPS)
def test_one_of_two_directories_fails(makeup: str, way: str, small: Disk) -> None:
    cluster = Cluster(MAKEUPS[makeup], SETTINGS)
    node = cluster.nodes[VICTIM]
    node.properties["log.dirs"] = f"{node.log_dir},{small.directory}"
    with cluster.start():
        cluster.make_topic("t", [[VICTIM, 2, 1]] * PARTITIONS)
        small.sync()
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*without_transactions(makeup))
            load.until_all_write()
            lost = {index for index in range(PARTITIONS) if (small.directory / f"t-{index}").exists()}
            assert 0 < len(lost) < PARTITIONS
            fails(small, way)
            eventually(lambda: offline(cluster) == lost, f"the partitions {lost} are not offline on {VICTIM}")
            for index in range(PARTITIONS):
                if index in lost:
                    cluster.until_led_by_another("t", index, than=VICTIM)
                else:
                    assert cluster.leader("t", index) == VICTIM
            load.until_all_write()
            comes_back(cluster, node, small, way)
            load.until_all_write()
            load.stop()
            check(load, makeup)
        cluster.until_all_the_same()
        cluster.check_complaints(also=STORAGE, of=[1, 2])


@pytest.mark.parametrize("way", ["full", "broken"])
@pytest.mark.parametrize("makeup", MAKEUPS)
def test_the_only_directory_fails(makeup: str, way: str, small: Disk) -> None:
    cluster = Cluster(MAKEUPS[makeup], SETTINGS)
    node = cluster.nodes[VICTIM]
    node.properties["log.dirs"] = str(small.directory)
    with cluster.start():
        cluster.make_topic("t", [[VICTIM, 2, 1]] * PARTITIONS)
        small.sync()
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*clients(makeup))
            load.until_all_write()
            fails(small, way)
            assert node.process is not None
            assert node.process.wait(WAIT_SECONDS) == 1
            for index in range(PARTITIONS):
                cluster.until_led_by_another("t", index, than=VICTIM)
            load.until_all_write()
            comes_back(cluster, node, small, way)
            load.until_all_write()
            load.stop()
            check(load, makeup)
        cluster.until_all_the_same()
        cluster.check_complaints(also=STORAGE, of=[1, 2])


def clients(makeup: str) -> list[type[Client]]:
    """All of them, but for one that ends where a leader of Apache Kafka's cannot read its disk.

    Who fetches is told UNKNOWN_SERVER_ERROR then, which a consumer of kafka-python's raises.
    """
    return [each for each in CLIENTS if makeup != "kafka" or each is not PythonReader]


def without_transactions(makeup: str) -> list[type[Client]]:
    """The same without transactions, where Apache Kafka may lead.

    What a coordinator wrote last in its partition may wait there until it times out, after a minute. The
    leader goes on to wait for a replica that the controller has just taken out of the in-sync set, for
    it has caught up lately and its broker lives, and looks again only when another follower has more.
    """
    return [each for each in clients(makeup) if makeup == "kwire" or each is not TransactionalWriter]


def check(load: Load, makeup: str) -> None:
    """Nothing is lost, and clients are told of no error.

    Apache Kafka's indexes are mapped: on a disk that is full or broken it may fail there first, with what it
    has no name for. Clients are told UNKNOWN_SERVER_ERROR, which ends an idempotent producer's sequence, and
    which consumers show.
    """
    if makeup == "kafka":
        assert not load.history.anomalies()
    else:
        load.check()


def fails(small: Disk, way: str) -> None:
    if way == "full":
        small.fill()
    else:
        small.break_down()


def comes_back(cluster: Cluster, node: Broker, small: Disk, way: str) -> None:
    """The broker is started again, with a disk that has room and works."""
    if node.process is not None and node.process.poll() is None:
        node.stop()
    node.kill()
    if way == "full":
        small.make_room()
    else:
        small.repair()
    cluster.start_again(int(node.properties["node.id"]))
    cluster.until_all_in_sync()


def offline(cluster: Cluster) -> set[int]:
    """Which partitions of the topic have no replica on the victim that works, while it lives."""
    [topic] = cluster.metadata("t", asked=1)["Topics"]
    return {each["PartitionIndex"] for each in topic["Partitions"] if VICTIM in each["OfflineReplicas"]}
