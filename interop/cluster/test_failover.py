"""Repeated kills of the partition leader under unmodified clients: no record is lost or duplicated."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from interop.cluster.load import ALL_CLIENTS, Load
from interop.cluster.nodes import CLUSTER_KINDS, Cluster

if TYPE_CHECKING:
    from interop.record import Record

KILLS = int(os.environ.get("INTEROP_KILLS", "10"))


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_failover_neither_loses_nor_duplicates_records(cluster_kind: str, record: Record) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind], {"auto.leader.rebalance.enable": "false"}).start() as cluster:
        # The controller is never killed and is the last replica, so only the other two brokers take turns as
        # leader.
        [controller] = cluster.controllers
        cluster.make_topic("t", [[*(each for each in cluster.brokers if each != controller), controller]])
        with Load(cluster.bootstrap, "t", 1) as load:
            load.start(*ALL_CLIENTS)
            gaps = []
            for _ in range(KILLS):
                before = load.history.acknowledged_count
                load.wait_until_all_write()
                victim = cluster.leader("t")
                assert victim != controller
                began = time.monotonic()
                cluster.nodes[victim].kill()
                cluster.wait_for_another_leader("t", 0, than=victim)
                load.wait_until_all_write()
                gaps.append(round(time.monotonic() - began, 1))
                cluster.nodes[victim].start()
                cluster.wait_until_unfenced(victim)
                cluster.wait_until_in_sync("t")
                assert load.history.acknowledged_count > before
            load.stop()
            output = {
                client.name: round(load.history.longest_ack_gap_s(client.name), 1) for client in load.writers
            }
            record.save(
                f"cluster.failover.{cluster_kind}", {"seconds until all write": gaps, "longest gap": output}
            )
            print(
                json.dumps(
                    {"gaps": gaps, "longest_gaps": output, "acknowledged": load.history.acknowledged_count}
                )
            )
            cluster.wait_until_replicas_equal("t")
            load.check()
            cluster.check_logs()
