"""The brokers of `kwire.testing`: starts, stops, topics, and the throughput that the recorder costs.

Starts, stops and the creation of topics are measured in a separate process, after the import, with a broker
in a thread of that process ("embedded") and in its child process ("child"). A later start should take at most
10 ms, and a topic at most 2 ms.

For the throughput, an embedded broker runs in its own process with the recorder, and a second one without it.
They take turns, in reverse order every second round. The recorder should cost at most 10%.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import PARTITIONS
from bench.figures import Figure, Samples
from bench.throughput import SIZES, consume, produce

PROCESSES: Final = 7
"""The number of processes in which starts are measured."""
WARM_UP_SECONDS: Final = 2.0

IN_TESTS = """
import json, socket, sys, time
from kwire.testing import Broker

starts, topics = [], []
for _ in range(30):
    broker, began = Broker(process=sys.argv[1]), time.perf_counter()
    broker.start()
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))  # ApiVersions v0
        sock.recv(1000)
        responded = time.perf_counter()
    for _ in range(5):
        began_topic = time.perf_counter()
        broker.new_topic("orders")
        topics.append(time.perf_counter() - began_topic)
    stopping = time.perf_counter()
    broker.stop()
    starts.append((responded - began, time.perf_counter() - stopping))
print(json.dumps([starts, topics]))
"""
SERVE = """
import sys
from kwire.testing import Broker, interceptor

if sys.argv[1] == "without the recorder":
    interceptor.Interceptor = lambda *arguments: None
with Broker() as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""
LABELS: Final = "with the recorder", "without the recorder"


@dataclass
class _Target:
    """A broker in its own process, for `bench.throughput`."""

    name: str
    client: dict[str, str]


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure kwire. The other broker has nothing to measure here."""
    if "kwire" not in names:
        return []
    return [*_starts(), *_recorder(seconds, rounds)]


def _starts() -> list[Figure]:
    figures: dict[str, Figure] = {}
    for number in range(PROCESSES + 1):
        for process, kind in (("thread", "embedded"), ("child", "child")):
            command = [sys.executable, "-c", IN_TESTS, process]
            done = subprocess.run(command, capture_output=True, check=True, text=True, env=_environment())
            if not number:  # the first process writes the bytecode
                continue
            measured, topics = json.loads(done.stdout)
            starts, stops = zip(*measured, strict=True)
            samples = Samples(figures, "kwire")
            samples.add(f"{kind}: first start", "ms", 1000 * starts[0])
            samples.add(f"{kind}: later starts", "ms", *(1000 * start for start in starts[1:]))
            samples.add(f"{kind}: a new topic", "ms", *(1000 * took for took in topics))
            samples.add(f"{kind}: stop", "ms", *(1000 * stop for stop in stops))
    return list(figures.values())


def _recorder(seconds: float, rounds: int) -> list[Figure]:
    figures: dict[str, Figure] = {}
    samples = Samples(figures, "kwire")
    with ExitStack() as stack:
        brokers = [stack.enter_context(_serving(label)) for label in LABELS]
        for broker in brokers:
            _throughput(broker, 100, WARM_UP_SECONDS)
        for number in range(rounds):
            for label, size in SIZES.items():
                for broker in brokers if number % 2 == 0 else reversed(brokers):
                    produced, consumed = _throughput(broker, size, seconds)
                    samples.add(f"produce {label} {broker.name}", "records/s", produced)
                    samples.add(f"consume {label} {broker.name}", "records/s", consumed)
    return list(figures.values())


@contextmanager
def _serving(label: str) -> Iterator[_Target]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, label],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _Target(label, {"bootstrap.servers": process.stdout.readline().strip()})
        finally:
            process.stdin.close()


def _throughput(broker: _Target, size: int, seconds: float) -> tuple[float, float]:
    """Return the records per second of a producer and of a consumer."""
    admin = AdminClient({**broker.client, "log_level": 4})
    topic = f"bench-{size}-{os.urandom(4).hex()}"
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(30)
    count, producing = produce(broker, topic, size, seconds)
    consuming = consume(broker, topic, count)
    admin.delete_topics([topic])[topic].result(30)
    return count / producing, count / consuming


def _environment() -> dict[str, str]:
    """Return an environment in which Python writes bytecode, which an installed package has."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
