"""Broker kills while programs write in transactions. At the end, no transaction may be open.

The brokers are killed in turn, except the controller. The controller is never killed and is the last replica
of every partition. The preferred leaders alternate between the other brokers, also in the coordinators'
topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from interop.cluster.nodes import Cluster, wait_until
from interop.raw_client import RawClient

SETTINGS: Final = {
    "auto.leader.rebalance.enable": "false",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
INTERNAL: Final = {
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer"},
    "__transaction_state": {"cleanup.policy": "compact", "compression.type": "uncompressed"},
}
"""The configs with which brokers create these topics. Only the replica placement is different here."""
INTERNAL_PARTITIONS: Final = 4
ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort")


def make_topics(cluster: Cluster, partitions: int, *names: str) -> None:
    """Create these topics, and the internal topics of the coordinators."""
    [controller] = cluster.controllers
    others = _killable(cluster)

    def placed(count: int) -> list[list[int]]:
        turns = [others[at % len(others) :] + others[: at % len(others)] for at in range(count)]
        return [[*turn, controller] for turn in turns]

    for name, configs in INTERNAL.items():
        cluster.make_topic(name, placed(INTERNAL_PARTITIONS), **configs)
    for name in names:
        cluster.make_topic(name, placed(partitions))


def _killable(cluster: Cluster) -> list[int]:
    return [each for each in cluster.brokers if each not in cluster.controllers]


def kill_in_turn(
    cluster: Cluster, kills: int, works: Callable[[], None], meanwhile: Callable[[int], None]
) -> list[float]:
    """Kill brokers in turn. Return the time after each kill until the programs made progress, in seconds.

    `works` must wait until the programs have made progress. `kill_in_turn` calls `works` before each kill,
    while the broker is down, and after the restart. It calls `meanwhile` with the number of the kill right
    after each kill.
    """
    victims = _killable(cluster)
    gaps = []
    for number in range(kills):
        victim = victims[number % len(victims)]
        cluster.elect_preferred_leaders()
        wait_until_leading(cluster, victim)
        works()
        cluster.nodes[victim].kill()
        began = time.monotonic()
        meanwhile(number)
        works()
        gaps.append(round(time.monotonic() - began, 1))
        cluster.start_node(victim)
        for topic, count in cluster.all_partitions().items():
            cluster.wait_until_in_sync(topic, count)
        works()
    return gaps


def wait_until_leading(cluster: Cluster, node_id: int) -> None:
    """Wait until the node leads at least one partition of each coordinator topic."""

    def is_so() -> bool:
        return all(
            any(partition["LeaderId"] == node_id for partition in topic["Partitions"])
            for topic in cluster.metadata(*INTERNAL)["Topics"]
        )

    wait_until(is_so, f"node {node_id} leads too little")


def wait_until_no_open_transactions(cluster: Cluster) -> None:
    """Wait until no coordinator and no replica has an open transaction."""
    everything = cluster.all_partitions()
    requested = [
        {"Name": topic, "PartitionIndexes": list(range(count))} for topic, count in everything.items()
    ]
    for node_id in cluster.brokers:
        with RawClient(cluster.nodes[node_id].bootstrap) as client:

            def open_here(client: RawClient = client) -> list[object]:
                listed = client.call("ListTransactions", 0, StateFilters=[], ProducerIdFilters=[])
                described = client.call("DescribeProducers", 0, Topics=requested)
                assert listed["ErrorCode"] == 0, listed
                partitions = [each for topic in described["Topics"] for each in topic["Partitions"]]
                assert not any(each["ErrorCode"] for each in partitions), described
                found = [
                    each for each in listed["TransactionStates"] if each["TransactionState"] not in ENDED
                ]
                return found + [
                    producer
                    for partition in partitions
                    for producer in partition["ActiveProducers"]
                    if producer["CurrentTxnStartOffset"] >= 0
                ]

            wait_until(lambda: not open_here(), f"node {node_id} has something open")


def check_replicas(cluster: Cluster) -> None:
    """Check that no transaction is open, all replicas are equal, and no node has logged an error."""
    wait_until_no_open_transactions(cluster)
    for topic, partitions in cluster.all_partitions().items():
        if topic.endswith("-repartition"):
            # A Streams application deletes the records of its repartition topic after it has read them.
            cluster.wait_until_replica_ends_equal(topic, partitions)
        else:
            cluster.wait_until_replicas_equal(topic, partitions)
    cluster.check_logs()
