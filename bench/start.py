"""How soon a broker answers, and what it weighs when it does nothing.

From the exec of the process to its first ApiVersions answer: on an empty directory (kwire formats it within
that time, Apache Kafka was formatted before) and on one that a clean stop has left with 100 topics. Memory is
what is resident after five seconds in which nobody asked for anything.

An embedded broker is measured in a process of its own that has just imported `kwire.testing`: from its first
start, and later ones, to the answer, and how long it takes to stop.
"""

from __future__ import annotations

import json
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
"""How often each is started on each kind of directory: a JVM takes its time."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Starts of each broker; how many does not depend on `seconds`."""
    empty = Figure("start, empty directory", "s")
    full = Figure(f"start, {TOPICS} topics", "s")
    idle = Figure("idle memory, no topics", "MB")
    loaded = Figure(f"idle memory, {TOPICS} topics", "MB")
    for name in names:
        _start_once(name)  # modules compiled, jars in the page cache
        for _ in range(STARTS[name]):
            empty.add(name, _start_once(name))
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
    return [empty, full, idle, loaded, *(_embedded() if "kwire" in names else [])]


EMBEDDED = """
import json, socket, time
from kwire.testing import Broker

seconds = []
for _ in range(30):
    broker, began = Broker(), time.perf_counter()
    broker.start()
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))  # ApiVersions v0
        sock.recv(1000)
        answered = time.perf_counter()
    broker.stop()
    seconds.append((answered - began, time.perf_counter() - answered))
print(json.dumps(seconds))
"""


def _embedded() -> list[Figure]:
    first, later = Figure("embedded: first start", "ms"), Figure("embedded: later starts", "ms")
    stop = Figure("embedded: stop", "ms")
    # An installed package has its bytecode.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for number in range(STARTS["kwire"] + 1):
        command = [sys.executable, "-c", EMBEDDED]
        told = subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout
        starts = [1000 * start for start, _ in json.loads(told)]
        if number:  # the first has written the bytecode
            first.add("kwire", starts[0])
            later.add("kwire", *starts[1:])
            stop.add("kwire", *(1000 * stopped for _, stopped in json.loads(told)))
    return [first, later, stop]


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
