"""Clusters of controllers and brokers, each node a child process on loopback. A node can have both roles.

Both clusters have the same nodes and properties. Apache Kafka's nodes get the JVM flags of its start script,
with a heap of at most 512 MiB, because four of them share a machine.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import CLUSTER_ID, KAFKA_FLAGS, KAFKA_JARS, ROOT, STOP_SECONDS, cpu_ticks, free_port

BROKERS = (1, 2, 3)
CONTROLLER = 100
REPLICAS = 3
START_SECONDS = 120.0
CLIENT: dict[str, str | int | float | bool] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
}
"""Client properties for fast reconnects to restarted brokers."""
FEATURES = ("--feature", "share.version=0", "--feature", "streams.version=0")
"""Options that disable features which kwire does not support yet. Both clusters are formatted with them."""
POLL_SECONDS = 0.02


class PartitionMetadata(Protocol):
    """The metadata of a partition in the client library."""

    leader: int
    replicas: list[int]
    isrs: list[int]


class Cluster(ABC):
    """A formatted cluster. Call `start` before its use, and `discard` at the end."""

    name = "cluster"

    def __init__(
        self,
        controllers: tuple[int, ...] = (CONTROLLER,),
        brokers: tuple[int, ...] = BROKERS,
        *,
        replicas: int = REPLICAS,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        atexit.register(self.discard)
        self.controllers, self.brokers = controllers, brokers
        self._replicas = min(replicas, len(brokers))
        self.ports = {node: free_port() for node in controllers}
        """The port of each controller's listener."""
        broker_ports = {node: free_port() for node in brokers}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in broker_ports.values())
        self.client = {"bootstrap.servers": self.bootstrap}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        for node in dict.fromkeys((*controllers, *brokers)):
            listeners = {
                name: ports[node]
                for name, ports in (("PLAINTEXT", broker_ports), ("CONTROLLER", self.ports))
                if node in ports
            }
            roles = {"PLAINTEXT": "broker", "CONTROLLER": "controller"}
            settings = {
                "process.roles": ",".join(roles[name] for name in listeners),
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": str(self.directory / f"node-{node}"),
                "offsets.topic.replication.factor": str(min(REPLICAS, len(brokers))),
                "min.insync.replicas": str(min(2, len(brokers))),
                "group.initial.rebalance.delay.ms": "0",
                "log.segment.delete.delay.ms": "1000",
            }
            self._properties(node).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            format_it = self._format("-t", CLUSTER_ID, "-c", str(self._properties(node)), *FEATURES)
            subprocess.run(format_it, check=True, capture_output=True, env=self._environment())

    @abstractmethod
    def _format(self, *arguments: str) -> list[str]:
        """Return the command line that formats a node's directory."""

    @abstractmethod
    def _serve(self, properties: Path) -> list[str]:
        """Return the command line that starts a node."""

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # because an installed kwire has bytecode
        return environment

    def _properties(self, node: int) -> Path:
        return self.directory / f"node-{node}.properties"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    # --- nodes

    def start(self) -> Self:
        for node in dict.fromkeys((*self.controllers, *self.brokers)):
            self.start_node(node)
        return self

    def start_node(self, node: int) -> None:
        with (self.directory / f"node-{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                self._serve(self._properties(node)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment(),
            )

    def stop_node(self, node: int, *, cleanly: bool) -> None:
        """Send SIGTERM for a controlled shutdown, or SIGKILL. Does not wait until the process has ended."""
        self._running[node].send_signal(signal.SIGTERM if cleanly else signal.SIGKILL)

    def has_ended(self, node: int) -> bool:
        return self._running[node].poll() is not None

    def await_end(self, node: int) -> None:
        self._running.pop(node).wait(STOP_SECONDS)

    def discard(self) -> None:
        """Kill all nodes and remove the directory."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.discard)

    def cpu_seconds(self, nodes: Collection[int] = ()) -> float:
        """Return the processor time in seconds of these nodes, or of all nodes."""
        running = [one for node, one in self._running.items() if not nodes or node in nodes]
        return sum(cpu_ticks(one.pid) for one in running) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        pages = (Path(f"/proc/{one.pid}/statm").read_text().split()[1] for one in self._running.values())
        return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")

    # --- topics

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({**CLIENT, "bootstrap.servers": self.bootstrap})

    def create_topics(self, names: list[str], partitions: int) -> None:
        """Create topics. Retries until enough brokers have registered.

        Raises RuntimeError if a topic cannot be created within START_SECONDS.
        """
        admin, deadline = self.admin, time.perf_counter() + START_SECONDS
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=self._replicas) for name in names
        ]
        while wanted:
            responses = admin.create_topics(wanted, request_timeout=30, operation_timeout=30)
            failed = {name for name, created in responses.items() if created.exception(60) is not None}
            if failed and time.perf_counter() > deadline:
                raise RuntimeError(f"{self.name} did not create {failed}: {self.directory}")
            wanted = [topic for topic in wanted if topic.topic in failed]
            if wanted:
                time.sleep(POLL_SECONDS)

    def leader_of(self, topic: str) -> int:
        """Return the leader of the topic's first partition."""
        return int(self.admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader)

    def await_replicas(self, topic: str) -> None:
        """Wait until all replicas of a topic are in sync and each preferred leader is the leader."""
        self.await_all(lambda one: len(one.isrs) == REPLICAS and one.leader == one.replicas[0], topic)

    def await_all(self, condition: Callable[[PartitionMetadata], bool], *topics: str) -> float:
        """Wait until all partitions of these topics meet a condition. Return the `perf_counter` time then."""
        admin, deadline = self.admin, time.perf_counter() + START_SECONDS
        while True:
            known = admin.list_topics(timeout=30).topics
            if all(topic in known for topic in topics) and all(
                condition(one) for topic in topics for one in known[topic].partitions.values()
            ):
                return time.perf_counter()
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{self.name}: partitions do not become ready: {self.directory}")
            time.sleep(POLL_SECONDS)


class KwireCluster(Cluster):
    name = "kwire"

    def _format(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "kwire", "format", *arguments]

    def _serve(self, properties: Path) -> list[str]:
        return _kwire(properties)


class ApacheCluster(Cluster):
    name = "apache"

    def _format(self, *arguments: str) -> list[str]:
        return self._java("-Xmx256m", "kafka.tools.StorageTool", "format", *arguments)

    def _serve(self, properties: Path) -> list[str]:
        flags = ["-Xmx512M", *(flag for flag in KAFKA_FLAGS if not flag.startswith("-Xm"))]
        return self._java(*flags, "kafka.Kafka", str(properties))

    @staticmethod
    def _java(*arguments: str) -> list[str]:
        return [
            "java",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            f"{KAFKA_JARS}/*",
            *arguments,
        ]


class ApacheControllers(ApacheCluster):
    """Controllers of Apache Kafka with brokers of kwire, because kwire's brokers need little memory."""

    def _serve(self, properties: Path) -> list[str]:
        is_broker = any(properties == self._properties(node) for node in self.brokers)
        return _kwire(properties) if is_broker else super()._serve(properties)


def _kwire(properties: Path) -> list[str]:
    return [sys.executable, "-m", "kwire", "serve", str(properties), "--log-level", "warning"]


CLUSTERS: dict[str, type[Cluster]] = {"apache": ApacheCluster, "kwire": KwireCluster}
