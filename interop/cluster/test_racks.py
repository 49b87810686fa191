"""Consumers in mixed clusters that fetch from the follower in their rack (KIP-392).

The leader does not name a lagging follower as preferred read replica. If a consumer's follower is killed, the
consumer returns to the leader.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from interop.cluster.nodes import CLUSTER_KINDS, Cluster, wait_until
from interop.raw_client import RawClient
from interop.scenarios.clients_confluent import producer_of
from interop.tools import TOOLS, run
from interop.wire import Fields

SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.lag.time.max.ms": "3000",
    "broker.session.timeout.ms": "20000",
}
"""With these settings, a paused broker is removed from the ISR before its session times out."""
VERSION = 12
COUNT = 300
WAIT_S = 30.0


def fetch(cluster: Cluster, queried_id: int, index: int, offset: int, rack: str = "") -> Fields:
    """Fetch a partition of topic t as a client in this rack. Returns the partition in the response."""
    partition = {
        "Partition": index,
        "CurrentLeaderEpoch": -1,
        "FetchOffset": offset,
        "LastFetchedEpoch": -1,
        "LogStartOffset": -1,
        "PartitionMaxBytes": 1 << 20,
    }
    with RawClient(cluster.nodes[queried_id].bootstrap) as client:
        answer = client.call(
            "Fetch",
            VERSION,
            ReplicaId=-1,
            MaxWaitMs=0,
            MinBytes=1,
            MaxBytes=1 << 20,
            IsolationLevel=0,
            SessionId=0,
            SessionEpoch=-1,
            Topics=[{"Topic": "t", "Partitions": [partition]}],
            ForgottenTopicsData=[],
            RackId=rack,
        )
    found: Fields = answer["Responses"][0]["Partitions"][0]
    return found


def preferred(cluster: Cluster, queried_id: int, index: int, offset: int, rack: str) -> int:
    found = fetch(cluster, queried_id, index, offset, rack)
    assert found["ErrorCode"] == 0
    assert found["PreferredReadReplica"] < 0 or not found["Records"]
    replica_id: int = found["PreferredReadReplica"]
    return replica_id


def write(cluster: Cluster, name: str, *partitions: int) -> list[bytes]:
    """Produce COUNT records to each of these partitions with acks=all. Return the values."""
    values = [b"%s %d" % (name.encode(), number) for number in range(COUNT)]
    producer = producer_of(cluster, **{"enable.idempotence": True, "log_level": 0})
    for index in partitions:
        for value in values:
            producer.produce("t", value, partition=index)
    assert producer.flush(WAIT_S) == 0
    return values


def until_it_is_committed(cluster: Cluster, queried_id: int, index: int) -> None:
    def is_so() -> bool:
        return bool(fetch(cluster, queried_id, index, 0)["HighWatermark"] == COUNT)

    wait_until(is_so, f"{queried_id} never hears what is committed")


class Reader:
    """A consumer in a rack that reads one partition from its beginning."""

    def __init__(self, cluster: Cluster, rack: str, index: int) -> None:
        self.reads_from: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "reads",
                "client.rack": rack,
                "statistics.interval.ms": 200,
                "stats_cb": self._on_statistics,
                "topic.metadata.refresh.interval.ms": 1000,
                # By default, the consumer waits a minute for the response of a paused broker.
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._index = index
        self._consumer.assign([TopicPartition("t", index, 0)])

    def _on_statistics(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        partition = topics.get("t", {"partitions": {}})["partitions"].get(str(self._index))
        if partition is not None:
            self.reads_from.add(partition["broker"])

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            taken = self._consumer.consume(count - len(found), WAIT_S)
            assert taken, f"{len(found)} of {count}"
            for message in taken:
                if message.error():
                    raise KafkaException(message.error())
                found.append(message.value() or b"")
        return found

    def until_it_reads_from(self, node_id: int) -> None:
        def is_so() -> bool:
            self.reads_from.clear()
            self._consumer.poll(1.0)
            return node_id in self.reads_from

        wait_until(is_so, f"nobody reads from {node_id}")

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_consumers_fetch_from_the_replica_in_their_rack(cluster_kind: str) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS) as cluster:
        for node_id, node in cluster.nodes.items():
            node.properties["broker.rack"] = f"r{node_id}"
        cluster.start()
        cluster.make_topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        values = write(cluster, "first", 0, 1, 2)
        for index, leader in enumerate((1, 2, 3)):
            assert preferred(cluster, leader, index, 0, "") == -1
            assert preferred(cluster, leader, index, 0, "elsewhere") == -1
            for node_id in (1, 2, 3):
                sent_to = preferred(cluster, leader, index, 0, f"r{node_id}")
                assert sent_to == (-1 if node_id == leader else node_id)
                until_it_is_committed(cluster, node_id, index)
                assert fetch(cluster, node_id, index, COUNT)["ErrorCode"] == 0
                assert fetch(cluster, node_id, index, COUNT + 1)["ErrorCode"] == 1
        readers = [Reader(cluster, "r3", index) for index in range(3)]
        for index, reader in enumerate(readers):
            assert reader.read(COUNT) == values
            reader.until_it_reads_from(3)
            assert preferred(cluster, index + 1, index, COUNT, "r3") == (-1 if index == 2 else 3)
        java = run(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", "t", "--from-beginning"),
            *("--max-messages", str(3 * COUNT), "--command-property", "client.rack=r3"),
        )
        assert len(java.stdout.splitlines()) == 3 * COUNT, java.stderr

        # The leader stops preferring a lagging follower, so the follower's consumers return to the leader.
        cluster.nodes[3].pause()
        wait_until(
            lambda: all(
                set(cluster.partition("t", index, queried_id=1)["IsrNodes"]) == {1, 2} for index in (0, 1)
            ),
            "the paused broker stays in sync",
        )
        more = write(cluster, "without 3", 0, 1)
        for index, leader in ((0, 1), (1, 2)):
            assert preferred(cluster, leader, index, COUNT, "r3") == -1
            assert readers[index].read(COUNT) == more
        cluster.nodes[3].resume()
        cluster.wait_until_in_sync("t", 3)
        for index in (0, 1):
            readers[index].until_it_reads_from(3)
        cluster.nodes[3].kill()
        last = write(cluster, "last", 0, 1)
        for index in (0, 1):
            assert readers[index].read(COUNT) == last
        for reader in readers:
            reader.close()
