"""The start time of a broker, and its idle memory.

The start time is the time from exec to the first ApiVersions response. It is measured with an empty
directory, and with 100 topics after a clean stop. kwire formats an empty directory within this time. Apache
Kafka's directory is formatted before. Memory is the resident memory after five seconds without requests.

`python -c "import trio"` runs before each start of kwire with an empty directory, to measure the machine.
A start should take at most 1.4 times as long, and at most 0.07 of Apache Kafka's time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, Broker
from bench.figures import Figure

TOPICS = 100
IDLE_SECONDS = 5.0
STARTS = {"apache": 2, "kwire": 7}
"""The number of starts with each kind of directory. Apache Kafka has fewer, as a JVM starts slowly."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure the starts of each broker. `seconds` and `rounds` have no effect."""
    empty = Figure("start, empty directory", "s")
    full = Figure(f"start, {TOPICS} topics", "s")
    idle = Figure("idle memory, no topics", "MB")
    loaded = Figure(f"idle memory, {TOPICS} topics", "MB")
    imported = Figure("python -c 'import trio'", "s")
    against_import = Figure("start, empty directory / import trio", "")
    for name in names:
        _start_once(name)  # this compiles modules, and loads jars into the page cache
        for _ in range(STARTS[name]):
            import_seconds = import_trio() if name == "kwire" else None
            empty.add(name, _start_once(name))
            if import_seconds is not None:
                imported.add(name, import_seconds)
                against_import.add(name, empty.samples[name][-1] / import_seconds)
        broker = BROKERS[name]()
        try:
            broker.start()
            idle.add(name, _idle_megabytes(broker))
            _create_topics(broker)
            broker.stop()
            for _ in range(STARTS[name]):
                full.add(name, broker.start())
                if not loaded.samples.get(name):
                    loaded.add(name, _idle_megabytes(broker))
                broker.stop()
        finally:
            broker.discard()
    of_kwire = [imported, against_import] if "kwire" in names else []
    return [empty, full, idle, loaded, *of_kwire]


def import_trio() -> float:
    """Return the seconds that a process needs to start Python and import trio."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import trio"], check=True, env=environment)
    return time.perf_counter() - began


def _start_once(name: str) -> float:
    broker = BROKERS[name]()
    try:
        return broker.start()
    finally:
        broker.stop()
        broker.discard()


def _idle_megabytes(broker: Broker) -> float:
    time.sleep(IDLE_SECONDS)
    return broker.resident_bytes() / 1e6


def _create_topics(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    wanted = [NewTopic(f"topic-{number:03}", num_partitions=1) for number in range(TOPICS)]
    for created in admin.create_topics(wanted, request_timeout=30).values():
        created.result(30)
