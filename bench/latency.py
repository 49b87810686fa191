"""The latency of one record: to its acknowledgement, and to a consumer in a long poll.

One librdkafka producer sends one record of 100 bytes at a time, with acks=all and linger.ms=0. The latency of
a delivery is the time from produce() in the producer to the return of poll() in the consumer. Both latencies
include the time in the client library's threads.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Broker, running
from bench.figures import Figure, percentile

VALUE = b"x" * 100
WARM_UP_RECORDS = 200
PAUSE_SECONDS = 0.002
"""The pause between deliveries. During the pause, the consumer's next fetch reaches the broker."""

PRODUCER = {"acks": "all", "linger.ms": 0, "socket.nagle.disable": True}
CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 500,
    "fetch.min.bytes": 1,
    "socket.nagle.disable": True,
}


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """In each round, measure both latencies of each broker, each for `seconds`."""
    figures = {
        (kind, percent): Figure(f"{label}, p{percent}", "ms")
        for kind, label in (("ack", "produce one record"), ("delivery", "deliver one record"))
        for percent in (50, 99)
    }
    with running(names) as brokers:
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                latencies = {
                    "ack": acknowledgements(brokers[name], seconds),
                    "delivery": _deliveries(brokers[name], seconds),
                }
                for (kind, percent), figure in figures.items():
                    figure.add(name, percentile(latencies[kind], percent) * 1e3)
    return list(figures.values())


def _new_topic(broker: Broker) -> str:
    topic = f"latency-{time.monotonic_ns()}"
    admin = AdminClient({**broker.client, "log_level": 4})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(30)
    return topic


def acknowledgements(broker: Broker, seconds: float, pause_seconds: float = 0.0) -> list[float]:
    """Return the seconds until the acknowledgement of each record that is sent within `seconds`.

    A pause of `pause_seconds` precedes each record. The first `WARM_UP_RECORDS` do not count.
    """
    topic = _new_topic(broker)
    producer = Producer({**broker.client, **PRODUCER})
    latencies: list[float] = []
    until = float("inf")
    while time.perf_counter() < until:
        if pause_seconds:
            time.sleep(pause_seconds)
        begun = time.perf_counter()
        producer.produce(topic, VALUE, partition=0)
        if producer.flush(30):
            raise RuntimeError(f"{broker.name} did not acknowledge a record in 30 s")
        latencies.append(time.perf_counter() - begun)
        if len(latencies) == WARM_UP_RECORDS:
            until = time.perf_counter() + seconds
    return latencies[WARM_UP_RECORDS:]


def _deliveries(broker: Broker, seconds: float) -> list[float]:
    topic = _new_topic(broker)
    producer = Producer({**broker.client, **PRODUCER})
    consumer = Consumer({**broker.client, **CONSUMER})
    latencies: list[float] = []
    until = float("inf")
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while time.perf_counter() < until:
            time.sleep(PAUSE_SECONDS)
            begun = time.perf_counter()
            producer.produce(topic, VALUE, partition=0)
            message = consumer.poll(30)
            latencies.append(time.perf_counter() - begun)
            if message is None or message.error() is not None:
                raise RuntimeError(f"{broker.name} did not deliver: {message and message.error()}")
            producer.poll(0)
            if len(latencies) == WARM_UP_RECORDS:
                until = time.perf_counter() + seconds
        producer.flush(30)
    finally:
        consumer.close()
    return latencies[WARM_UP_RECORDS:]
