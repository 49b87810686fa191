"""A quorum of one grows to three, and shrinks to one other, by Apache Kafka's own tool and under load."""

from __future__ import annotations

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.nodes import COMBINED, Cluster, Member, SmallKafka
from interop.cluster.quorums import add, at_work, directory_id, goes_on, remove, voters

MAKEUPS: dict[str, tuple[type[Broker], ...]] = {
    "kwire": (Kwire, Kwire, Kwire),
    "kafka joins kwire": (Kwire, SmallKafka, Kwire),
    "kwire joins kafka": (SmallKafka, Kwire, SmallKafka),
    "kwire takes over": (SmallKafka, SmallKafka, Kwire),
    "kafka": (SmallKafka, SmallKafka, SmallKafka),
}


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_voters_come_and_go(makeup: str) -> None:
    members = tuple(Member(kind, COMBINED) for kind in MAKEUPS[makeup])
    with Cluster(members, voters_in_log=True, first_voters=[1]).start() as cluster:
        assert voters(cluster) == [1]
        cluster.make_topic("t", [[2, 3, 1]])
        with at_work(cluster) as load:
            for node_id in (2, 3):
                add(cluster, node_id)
                load.until_all_write()
                goes_on(cluster, f"with-{node_id}")
            assert voters(cluster) == [1, 2, 3]
            active = cluster.active_controller()
            cluster.nodes[active].kill()
            cluster.active_controller(than=active)
            load.until_all_write()
            cluster.start_again(active)
            cluster.until_all_in_sync()
            for node_id in (1, 2):
                remove(cluster, node_id, directory_id(cluster, node_id))
                load.until_all_write()
                goes_on(cluster, f"without-{node_id}")
            assert voters(cluster) == [3]
            assert cluster.active_controller() == 3
