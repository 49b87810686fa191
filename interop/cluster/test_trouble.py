"""A leader is paused until others lead, and wakes; a broker loses all that it had, and is filled again."""

from __future__ import annotations

import shutil

import pytest

from interop.cluster.complaints import OLD_EPOCH
from interop.cluster.load import (
    AioWriter,
    ConfluentReader,
    ConfluentWriter,
    Load,
    PythonReader,
    PythonWriter,
    TransactionalWriter,
)
from interop.cluster.nodes import FEATURES, MAKEUPS, Cluster, formatted

CLIENTS = (ConfluentReader, PythonReader, ConfluentWriter, PythonWriter, AioWriter, TransactionalWriter)


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_a_paused_leader_and_a_wiped_broker(makeup: str) -> None:
    with Cluster(MAKEUPS[makeup]).start() as cluster:
        # The controller stays, and leads last.
        cluster.make_topic("t", [[2, 3, 1], [3, 2, 1]])
        with Load(cluster.bootstrap, "t", 2) as load:
            load.start(*CLIENTS)
            for index, victim in enumerate((2, 3)):
                load.until_all_write()
                node = cluster.nodes[victim]
                node.pause()
                cluster.until_led_by_another("t", index, than=victim)
                node.wake()
                load.until_all_write()
                cluster.until_unfenced(victim)
                cluster.until_in_sync("t", 2)

                node.kill()
                shutil.rmtree(node.log_dir)
                formatted(node, *FEATURES)
                cluster.start_again(victim)
                for topic, partitions in cluster.all_partitions().items():
                    cluster.until_in_sync(topic, partitions)
            load.until_all_write()
            load.stop()
            load.check()
        for topic, partitions in cluster.all_partitions().items():
            cluster.until_the_same(topic, partitions)
        cluster.check_complaints(also=OLD_EPOCH)
