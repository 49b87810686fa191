"""A cluster with both kinds of brokers, which follow, lead, are killed, and return with identical logs."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from interop.cluster.nodes import CLUSTER_KINDS, Cluster

COUNT = 200
WAIT_S = 30.0


def send(cluster: Cluster, topic: str, partition: int, name: str) -> list[bytes]:
    """Produce COUNT records with acks=all with each of two client libraries. Return the values in order."""
    sent = [b"%s %d" % (name.encode(), number) for number in range(2 * COUNT)]
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    rd = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in sent[:COUNT]:
        rd.produce(topic, value, partition=partition, on_delivery=delivered)
    assert rd.flush(WAIT_S) == 0
    assert not failed, failed
    python = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), acks="all")
    for future in [python.send(topic, value, partition=partition) for value in sent[COUNT:]]:
        future.get(WAIT_S)
    python.close()
    return sent


def read(cluster: Cluster, topic: str, partition: int, count: int) -> list[bytes]:
    """Read this many records with two client libraries, and check that both get the same values."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reads", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    while len(found) < count:
        taken = consumer.consume(count - len(found), WAIT_S)
        assert taken, f"{len(found)} of {count}"
        for message in taken:
            if message.error():
                raise KafkaException(message.error())
            found.append(message.value() or b"")
    consumer.close()
    python = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    python.assign([PythonPartition(topic, partition)])
    assert [next(python).value for _ in range(count)] == found
    python.close()
    return found


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_replicas_stay_identical_as_brokers_fail_and_return(cluster_kind: str) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        brokers = cluster.brokers
        # Broker n + 1 leads partition n.
        assigned = [brokers[at:] + brokers[:at] for at in range(len(brokers))]
        cluster.make_topic("t", assigned, **{"segment.bytes": "1048576"})
        sent = {at: send(cluster, "t", at, "first") for at in range(len(brokers))}
        cluster.wait_until_replicas_equal("t", len(brokers))
        # The controller is not killed here: see test_controllers.py.
        for number, victim in enumerate(each for each in brokers if each not in cluster.controllers):
            at = brokers.index(victim)
            assert cluster.leader("t", at) == victim
            (cluster.nodes[victim].kill if number % 2 == 0 else cluster.nodes[victim].stop)()
            cluster.wait_for_another_leader("t", at, than=victim)
            sent[at] += send(cluster, "t", at, f"without {victim}")
            cluster.nodes[victim].start()
            cluster.wait_until_unfenced(victim)
            cluster.wait_until_in_sync("t", len(brokers))
            sent[at] += send(cluster, "t", at, f"with {victim}")
        cluster.wait_until_replicas_equal("t", len(brokers))
        for at, values in sent.items():
            assert read(cluster, "t", at, len(values)) == values
        cluster.check_logs()
