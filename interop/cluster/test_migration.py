"""A rolling migration from Apache Kafka to kwire and back, on the same directories and under load.

The test performs the steps of docs/cluster.md. The load is unmodified clients or a Streams application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from interop.brokers import Kwire
from interop.cluster import broker_kills
from interop.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster, Member, SmallKafka
from interop.cluster.quorums import (
    SNAPSHOTS_OFTEN,
    check_same_metadata,
    create_topics_through_each_broker,
    under_load,
)
from interop.cluster.word_count import PARTITIONS, TOPICS, word_count

COMBINED_NODES = (Member(SmallKafka, COMBINED),) * 3
SEPARATE = (*(Member(SmallKafka, CONTROLLER),) * 3, *(Member(SmallKafka, BROKER),) * 3)
CLUSTERS = {
    "combined": (COMBINED_NODES, False),
    "combined, voters in the log": (COMBINED_NODES, True),
    "separate": (SEPARATE, False),
    "separate, voters in the log": (SEPARATE, True),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_migration_and_back_under_stock_clients(name: str) -> None:
    members, voters_in_log = CLUSTERS[name]
    with Cluster(members, SNAPSHOTS_OFTEN, voters_in_log=voters_in_log).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster) as load:
            for node_id in migrate_each_node(cluster, load.wait_until_all_write):
                create_topics_through_each_broker(cluster, f"{cluster.nodes[node_id].name}-{node_id}")


@pytest.mark.parametrize("name", ["combined, voters in the log", "separate, voters in the log"])
def test_migration_and_back_under_a_streams_application(name: str) -> None:
    members, voters_in_log = CLUSTERS[name]
    settings = {**SNAPSHOTS_OFTEN, **broker_kills.SETTINGS}
    with Cluster(members, settings, voters_in_log=voters_in_log).start() as cluster:
        for topic in TOPICS:
            cluster.make_topic(topic, [cluster.brokers] * PARTITIONS)
        with word_count(cluster.bootstrap) as words:
            for _ in migrate_each_node(cluster, words.wait_for_more):
                words.wait_for_more()
            print(f"{words.end()} words")
        broker_kills.check_replicas(cluster)
        check_same_metadata(cluster)


def migrate_each_node(cluster: Cluster, wait_for_progress: Callable[[], None]) -> Iterator[int]:
    """Migrate each node to kwire, then each node back. Yields the id of each node after its restart."""
    for kind in (Kwire, SmallKafka):
        for node_id in cluster.nodes:
            wait_for_progress()
            cluster.nodes[node_id].stop()
            cluster.replace_software(node_id, kind)
            cluster.start_node(node_id)
            cluster.wait_until_all_in_sync()
            yield node_id
