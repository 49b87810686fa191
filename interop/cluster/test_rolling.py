"""Every node is restarted, one after another, under stock clients: no user is told of an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop.cluster.load import CLIENTS, Load
from interop.cluster.nodes import MAKEUPS, Cluster

if TYPE_CHECKING:
    from interop.record import Record

PARTITIONS = 3


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_nodes_are_restarted_one_after_another(makeup: str, record: Record) -> None:
    with Cluster(MAKEUPS[makeup]).start() as cluster:
        brokers = cluster.brokers
        cluster.make_topic("t", [brokers[at:] + brokers[:at] for at in range(PARTITIONS)])
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*CLIENTS)
            load.until_all_write()
            for node_id in (2, 3, 1):
                cluster.nodes[node_id].stop()
                if node_id not in cluster.controllers:
                    load.until_all_write()
                cluster.start_again(node_id)
                for topic, partitions in cluster.all_partitions().items():
                    cluster.until_in_sync(topic, partitions)
                load.until_all_write()
            load.stop()
            told = {
                client.name: round(load.history.longest_ack_gap_s(client.name), 1) for client in load.writers
            }
            record.save(f"cluster.rolling.{makeup}", {"longest gap": told})
            load.check()
            for topic, partitions in cluster.all_partitions().items():
                cluster.until_the_same(topic, partitions)
            cluster.check_complaints()
