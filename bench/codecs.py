"""The processor time of a broker per record of 100 B, for each codec. The broker decompresses every batch."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import PARTITIONS, Broker, running
from bench.figures import Figure
from bench.throughput import WARM_UP_SECONDS, produce

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIZE_BYTES = 100


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """In each round, produce records with each codec to each broker for `seconds`."""
    figures: dict[str, Figure] = {}
    with running(names) as brokers:
        for broker in brokers.values():
            for codec in CODECS:
                _cpu_us_per_record(broker, codec, WARM_UP_SECONDS)
        for number in range(rounds):
            for codec in CODECS:
                for name in names if number % 2 == 0 else reversed(names):
                    label = f"produce {SIZE_BYTES} B, {codec}, broker's CPU"
                    figure = figures.setdefault(label, Figure(label, "µs/record"))
                    figure.add(name, _cpu_us_per_record(brokers[name], codec, seconds))
    return list(figures.values())


def _cpu_us_per_record(broker: Broker, codec: str, seconds: float) -> float:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    topic = f"bench-{codec}-{time.monotonic_ns()}"
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(30)
    before = broker.cpu_seconds()
    count, _ = produce(broker, topic, SIZE_BYTES, seconds, compression=codec)
    used = broker.cpu_seconds() - before
    admin.delete_topics([topic])[topic].result(30)
    return used / count * 1e6
