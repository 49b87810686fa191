"""The two brokers, each a child process on loopback with its own directory.

Apache Kafka gets the JVM flags of its start script. kwire runs in the Python of this process. Both get the
same properties. When this process exits, brokers that still run are killed.
"""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KAFKA_JARS = ROOT / "interop" / "target" / "kafka"

CLUSTER_ID = "kwire-bench-cluster-01"  # 22 characters: a UUID in Kafka's url-safe base64
FIRST_PORT, LAST_PORT = 27000, 27999  # below the ephemeral ports, which clients' connections use
PARTITIONS = 4
START_SECONDS = 300.0
STOP_SECONDS = 300.0
PAUSE_SECONDS = 0.001

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""An ApiVersions request: size, API key, version, correlation id and a null client id."""

KAFKA_FLAGS = [
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]
"""The default JVM flags of kafka-server-start."""


def free_ports() -> Iterator[int]:
    """Yield unused ports on loopback, each port once."""
    for port in range(FIRST_PORT + os.getpid() % 500, LAST_PORT + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_ports = free_ports()


def free_port() -> int:
    return next(_ports)


class Broker(ABC):
    """A broker that a measurement may start and stop several times."""

    name = "broker"
    open_files: int | None = None
    """The limit of open files for the broker's process; None to use the limit of this process."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        """Create a broker with `properties` in addition to the common properties."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self.port, controller_port = next(_ports), next(_ports)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.ports: dict[str, int] = {}
        """The ports of further listeners, by listener name."""
        self.client = {"bootstrap.servers": self.bootstrap}
        """The settings with which librdkafka connects."""
        self.properties_path = self.directory / "server.properties"
        self.log_path = self.directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        common = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "log.dirs": str(self.directory / "data"),
            "num.partitions": str(PARTITIONS),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.delete.delay.ms": "1000",
        }
        lines = [f"{key}={value}\n" for key, value in {**common, **(properties or {})}.items()]
        self.properties_path.write_text("".join(lines))
        atexit.register(self.discard)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line that starts the broker."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def prepare(self) -> None:  # noqa: B027 - a broker may have nothing to prepare
        """Do what the broker needs before its first start. `start` does not measure this time."""

    def start(self) -> float:
        """Start the broker and return the seconds from exec to its first ApiVersions response."""
        assert self._process is None, f"{self.name} is running already"
        if not (self.directory / "data").exists():
            self.prepare()
        with self.log_path.open("ab") as log:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environment(),
            )
            if self.open_files is not None:
                limit = (self.open_files, self.open_files)
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limit)
        while not self._responds():
            if self._process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                raise RuntimeError(
                    f"{self.name} does not respond:\n{self.log_path.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(PAUSE_SECONDS)
        return time.perf_counter() - begun

    def stop(self) -> None:
        """Send SIGTERM and wait for the clean shutdown.

        Raises RuntimeError, and kills the broker, if the shutdown takes longer than STOP_SECONDS.
        """
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise RuntimeError(f"{self.name} did not stop within {STOP_SECONDS:.0f} s") from None

    def kill(self) -> None:
        """Kill the broker with SIGKILL. Written data stays in the page cache."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.wait()

    def discard(self) -> None:
        """Kill the process and remove the directory."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.discard)

    def resident_bytes(self) -> int:
        assert self._process is not None
        statm = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_file_count(self) -> int:
        assert self._process is not None
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def cpu_seconds(self) -> float:
        """Return the processor time, user and kernel, of the broker's process and its descendants."""
        assert self._process is not None
        return cpu_ticks(self._process.pid) / os.sysconf("SC_CLK_TCK")

    def _responds(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(API_VERSIONS)
                return len(connection.recv(4)) == 4
        except OSError:
            return False


def cpu_ticks(pid: int) -> int:
    """Return the processor time, in clock ticks, of a process and its running and ended descendants."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        living = children(pid)
    except FileNotFoundError:
        return 0  # The process has ended, and the time of its parent already includes its time.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) + sum(map(cpu_ticks, living))


def children(pid: int) -> list[int]:
    """Return the running children of a process. Raises FileNotFoundError if the process has ended."""
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()  # a child belongs to the thread that started it
        for child in (task / "children").read_text(encoding="ascii").split()
    ]


class Kwire(Broker):
    """kwire in the Python of this process. It formats an empty directory itself."""

    name = "kwire"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "kwire", "serve", str(self.properties_path), "--log-level", "warning"]

    def environment(self) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # because an installed kwire has bytecode
        return environment


class ApacheKafka(Broker):
    """Apache Kafka of the version in interop/pom.xml, formatted before its first start."""

    name = "apache"

    def prepare(self) -> None:
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self.properties_path)]
        subprocess.run(self._java("kafka.tools.StorageTool", *arguments), check=True, capture_output=True)

    def command(self) -> list[str]:
        return self._java(*KAFKA_FLAGS, "kafka.Kafka", str(self.properties_path))

    @staticmethod
    def _java(*arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        return ["java", quiet, "-cp", f"{KAFKA_JARS}/*", *arguments]


BROKERS: dict[str, type[Broker]] = {"apache": ApacheKafka, "kwire": Kwire}


def why_missing(name: str) -> str | None:
    """Return why this broker cannot be measured on this machine, or None if it can."""
    if name != "apache":
        return None
    if shutil.which("java") is None:
        return "Apache Kafka is not measured: no Java on the PATH."
    if not (KAFKA_JARS / ".complete").exists():
        return "Apache Kafka is not measured: its jars are missing; `make interop` fetches them."
    return None


@contextmanager
def running(names: list[str]) -> Iterator[dict[str, Broker]]:
    """Start the named brokers, and discard them after the block."""
    brokers = {name: BROKERS[name]() for name in names}
    try:
        for broker in brokers.values():
            broker.start()
        yield brokers
    finally:
        for broker in brokers.values():
            broker.discard()
