"""The launch of three combined nodes, which is what users start: broker and controller in each process.

- launch: from the start of the nodes to the first acknowledged write. For kwire this is `kwire cluster up` in
  a new directory, which also formats the nodes. Apache Kafka's nodes are formatted before. The client tries
  to create a topic with three replicas from the first moment on.
- `kwire cluster up`: until the command returns.
- `import trio`: `python -c "import trio"`, as a measure of the machine.
- `kwire_cluster`: the start of the cluster of the pytest fixture, in a new process and again in the same
  process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.brokers import free_port
from bench.figures import Samples
from bench.nodes import BROKERS, CLIENT, ApacheCluster, Cluster
from bench.start import import_trio

ROUNDS = 5
TOPIC = "first"
FIXTURE = """
import json, time
from kwire.testing import Cluster

seconds = []
for _ in range(2):
    cluster, began = Cluster(), time.perf_counter()
    cluster.start()
    seconds.append(time.perf_counter() - began)
    cluster.stop()
print(json.dumps(seconds))
"""


class ClusterUp(Cluster):
    """Three combined nodes of `kwire cluster up`."""

    name = "kwire"

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bench-up-"))
        self._port = _free_block(2 * len(BROKERS))
        self._replicas = len(BROKERS)
        self.bootstrap = ",".join(f"127.0.0.1:{self._port + index}" for index in range(len(BROKERS)))
        self._up: subprocess.Popen[bytes] | None = None

    def _command(self, *arguments: str) -> list[str]:
        where = str(self.directory / "cluster")
        return [sys.executable, "-m", "kwire", "cluster", *arguments, "--dir", where]

    def start(self) -> ClusterUp:
        self._up = subprocess.Popen(
            self._command("up", "--port", str(self._port)),
            stdout=subprocess.DEVNULL,
            env=self._environment(),
        )
        return self

    def await_up(self) -> None:
        """Wait until the command returns."""
        assert self._up is not None
        if self._up.wait(60):
            raise RuntimeError(f"kwire cluster up failed: {self.directory}")

    def discard(self) -> None:
        subprocess.run(self._command("down"), stdout=subprocess.DEVNULL, env=self._environment(), check=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _format(self, *arguments: str) -> list[str]:
        raise NotImplementedError  # `kwire cluster up` formats the directories

    def _serve(self, properties: Path) -> list[str]:
        raise NotImplementedError  # `kwire cluster up` starts the nodes


def measure_combined_launches(samples: Samples) -> None:
    """Measure the launches of one kind of cluster."""
    launch = "three combined nodes: launch to the first acknowledged write"
    if samples.name == "apache":
        for _ in range(ROUNDS):
            with ApacheCluster(BROKERS) as cluster:
                began = time.perf_counter()
                write_first_record(cluster.start())
                samples.add(launch, "s", time.perf_counter() - began)
        return
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for number in range(ROUNDS + 1):
        imported = import_trio()
        with ClusterUp() as up:
            began = time.perf_counter()
            write_first_record(up.start())
            written = time.perf_counter() - began
            up.await_up()
            returned = time.perf_counter() - began
        fixture = subprocess.run(
            [sys.executable, "-c", FIXTURE], capture_output=True, check=True, env=environment
        )
        first, later = json.loads(fixture.stdout)
        if not number:
            continue  # the first round writes the bytecode
        samples.add(launch, "s", written)
        samples.add("kwire cluster up: until it returns", "s", returned)
        samples.add("python -c 'import trio'", "s", imported)
        samples.add("launch of three combined nodes / import trio", "", written / imported)
        samples.add("kwire_cluster: first start", "s", first)
        samples.add("kwire_cluster: later start", "s", later)


def write_first_record(cluster: Cluster) -> None:
    """Create a topic with all replicas, and write a record, as soon as the cluster allows both."""
    cluster.create_topics([TOPIC], 1)
    write_record(cluster)


def write_record(cluster: Cluster) -> None:
    """Write a record to the topic, as soon as the cluster allows it."""
    producer = Producer(
        {**CLIENT, "bootstrap.servers": cluster.bootstrap, "acks": "all", "retry.backoff.ms": 20}
    )
    errors: list[object] = []
    producer.produce(TOPIC, b"x" * 100, on_delivery=lambda error, message: errors.append(error))
    if producer.flush(60) or errors != [None]:
        raise RuntimeError(f"{cluster.name} did not acknowledge the first record: {errors}")


def _free_block(count: int) -> int:
    """Return the first of `count` consecutive unused ports."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        for _ in range(count - 1):
            free_port()
        return first
