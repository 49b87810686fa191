"""A rolling restart of all nodes under unmodified clients, which must report no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop.cluster.load import CLIENTS, Load
from interop.cluster.nodes import CLUSTER_KINDS, Cluster

if TYPE_CHECKING:
    from interop.record import Record

PARTITIONS = 3


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_rolling_restart_causes_no_client_error(cluster_kind: str, record: Record) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        brokers = cluster.brokers
        cluster.make_topic("t", [brokers[at:] + brokers[:at] for at in range(PARTITIONS)])
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(*CLIENTS)
            load.wait_until_all_write()
            for node_id in (2, 3, 1):
                cluster.nodes[node_id].stop()
                if node_id not in cluster.controllers:
                    load.wait_until_all_write()
                cluster.start_node(node_id)
                for topic, partitions in cluster.all_partitions().items():
                    cluster.wait_until_in_sync(topic, partitions)
                load.wait_until_all_write()
            load.stop()
            output = {
                client.name: round(load.history.longest_ack_gap_s(client.name), 1) for client in load.writers
            }
            record.save(f"cluster.rolling.{cluster_kind}", {"longest gap": output})
            load.check()
            for topic, partitions in cluster.all_partitions().items():
                cluster.wait_until_replicas_equal(topic, partitions)
            cluster.check_logs()
