"""A running cluster of Apache Kafka's becomes one of kwire's, and Apache Kafka's again, as the docs tell it.

One node after the other, on the same directories, while stock clients write and read, or Streams counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from interop.brokers import Kwire
from interop.cluster import dying
from interop.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster, Member, SmallKafka
from interop.cluster.quorums import SNAPSHOTS_OFTEN, at_work, goes_on, has_the_same_metadata
from interop.cluster.words import PARTITIONS, TOPICS, counting

COMBINED_NODES = (Member(SmallKafka, COMBINED),) * 3
SEPARATE = (*(Member(SmallKafka, CONTROLLER),) * 3, *(Member(SmallKafka, BROKER),) * 3)
CLUSTERS = {
    "combined": (COMBINED_NODES, False),
    "combined, voters in the log": (COMBINED_NODES, True),
    "separate": (SEPARATE, False),
    "separate, voters in the log": (SEPARATE, True),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_taken_over_and_handed_back(name: str) -> None:
    members, voters_in_log = CLUSTERS[name]
    with Cluster(members, SNAPSHOTS_OFTEN, voters_in_log=voters_in_log).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with at_work(cluster) as load:
            for node_id in taken_over_and_back(cluster, load.until_all_write):
                goes_on(cluster, f"{cluster.nodes[node_id].name}-{node_id}")


@pytest.mark.parametrize("name", ["combined, voters in the log", "separate, voters in the log"])
def test_taken_over_and_handed_back_while_streams_counts(name: str) -> None:
    members, voters_in_log = CLUSTERS[name]
    settings = {**SNAPSHOTS_OFTEN, **dying.SETTINGS}
    with Cluster(members, settings, voters_in_log=voters_in_log).start() as cluster:
        for topic in TOPICS:
            cluster.make_topic(topic, [cluster.brokers] * PARTITIONS)
        with counting(cluster.bootstrap) as words:
            for _ in taken_over_and_back(cluster, words.goes_on):
                words.goes_on()
            print(f"{words.end()} words")
        dying.check_replicas(cluster)
        has_the_same_metadata(cluster)


def taken_over_and_back(cluster: Cluster, works: Callable[[], None]) -> Iterator[int]:
    """Every node becomes one of kwire's, then every one one of Apache Kafka's; gives each when it is back."""
    for kind in (Kwire, SmallKafka):
        for node_id in cluster.nodes:
            works()
            cluster.nodes[node_id].stop()
            cluster.becomes(node_id, kind)
            cluster.start_again(node_id)
            cluster.until_all_in_sync()
            yield node_id
