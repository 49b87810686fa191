"""A leader that is paused until another one is elected, and a broker that loses its directory."""

from __future__ import annotations

import shutil

import pytest

from interop.cluster.load import (
    AioWriter,
    ConfluentReader,
    ConfluentWriter,
    Load,
    PythonReader,
    PythonWriter,
    TransactionalWriter,
)
from interop.cluster.log_checks import OLD_EPOCH
from interop.cluster.nodes import CLUSTER_KINDS, FEATURES, Cluster, format_node

CLIENTS = (ConfluentReader, PythonReader, ConfluentWriter, PythonWriter, AioWriter, TransactionalWriter)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_paused_leaders_and_wiped_brokers_recover(cluster_kind: str) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        # The controller is the last replica of each partition.
        cluster.make_topic("t", [[2, 3, 1], [3, 2, 1]])
        with Load(cluster.bootstrap, "t", 2) as load:
            load.start(*CLIENTS)
            for index, victim in enumerate((2, 3)):
                load.wait_until_all_write()
                node = cluster.nodes[victim]
                node.pause()
                cluster.wait_for_another_leader("t", index, than=victim)
                node.resume()
                load.wait_until_all_write()
                cluster.wait_until_unfenced(victim)
                cluster.wait_until_in_sync("t", 2)

                node.kill()
                shutil.rmtree(node.log_dir)
                format_node(node, *FEATURES)
                cluster.start_node(victim)
                for topic, partitions in cluster.all_partitions().items():
                    cluster.wait_until_in_sync(topic, partitions)
            load.wait_until_all_write()
            load.stop()
            load.check()
        for topic, partitions in cluster.all_partitions().items():
            cluster.wait_until_replicas_equal(topic, partitions)
        cluster.check_logs(also=OLD_EPOCH)
