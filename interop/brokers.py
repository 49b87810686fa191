"""Apache Kafka in a JVM and the installed kwire behind one interface, each as a child process.

Both brokers read the same ``server.properties``. Every wait has a timeout. Brokers that still run when this
process exits are killed.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import IO, Protocol

from interop.reference import kafka_jars, require_java

CLUSTER_ID = "kwire-interop-cluster1"  # 22 characters: a UUID in Kafka's url-safe base64
FIRST_PORT, LAST_PORT = map(int, os.environ.get("INTEROP_PORTS", "28000-28999").split("-"))
WORKER, WORKERS = (
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
"""The index of this pytest-xdist worker and the number of workers. Each worker uses its own ports."""
START_SECONDS = 90.0
STOP_SECONDS = 60.0
SMALL_JVM = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


def shuffled_ports() -> deque[int]:
    """Return the ports of this worker in random order, so that successive runs start with different ports."""
    ports = list(range(FIRST_PORT + WORKER, LAST_PORT + 1, WORKERS))
    random.shuffle(ports)
    return deque(ports)


_ports = shuffled_ports()


def free_port() -> int:
    """Return a free loopback port below the ephemeral range.

    Outgoing connections use ephemeral ports, so they cannot occupy the port of a broker while it restarts.
    The function returns the least recently used port first: a run starts more brokers than there are ports,
    and a restarted broker must find its own port free.
    """
    for _ in range(len(_ports)):
        _ports.rotate(-1)
        port = _ports[-1]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


def responds_to_api_versions(port: int, timeout_s: float = 0.5, host: str = "127.0.0.1") -> bool:
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class Served(Protocol):
    """A broker or a cluster that clients can bootstrap from."""

    @property
    def bootstrap(self) -> str: ...


class Broker(ABC):
    """A broker process on loopback with its own directory."""

    name = "broker"
    host = "127.0.0.1"
    launcher: tuple[str, ...] = ()
    """The beginning of the command line, such as `nsenter` of `interop.cluster.network`. Default: none."""

    def __init__(self, overrides: dict[str, str] | None = None, *, directory: Path | None = None) -> None:
        self.port = free_port()
        self.controller_port = free_port()
        self._owns_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"interop-{self.name}-"))
        self.log_dir = self.directory / "data"
        self.log_path = self.directory / "broker.log"
        self.properties_path = self.directory / "server.properties"
        self.properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "socket.request.max.bytes": "20000000",
            "log.segment.delete.delay.ms": "2000",
            # Many records have timestamps of past years. Retention would delete these records in minutes.
            "log.retention.hours": str(100 * 365 * 24),
            **(overrides or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        self.environment = dict(os.environ)
        _started.append(self)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def controller_bootstrap(self) -> str:
        return f"{self.host}:{self.controller_port}"

    @property
    def serving_port(self) -> int:
        """The port of the first listener, or the controller port of a node that is only a controller."""
        return self.controller_port if self.properties["process.roles"] == "controller" else self.port

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.paused

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line that starts the broker."""

    def prepare(self) -> None:  # noqa: B027 - a broker may have nothing to prepare
        """Do what the broker needs before its first start, such as formatting the directory."""

    def write_properties(self) -> None:
        text = "".join(f"{key}={value}\n" for key, value in self.properties.items())
        self.properties_path.write_text(text)

    def start(self, *, wait: bool = True) -> None:
        """Start the process. With ``wait``, wait until the process responds to ApiVersions.

        Raises RuntimeError if the process ends instead, or does not respond within START_SECONDS.
        """
        assert self.process is None, f"{self.name} is running already"
        first = not self.properties_path.exists()
        self.write_properties()
        if first:
            self.prepare()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, *self.command()],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self.environment,
            )
        if wait:
            self.wait_until_serving()

    def wait_until_serving(self, pause_s: float = 0.02) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not responds_to_api_versions(self.serving_port, host=self.host):
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"{self.name} ended with {self.process.returncode}:\n{self.log_text()[-3000:]}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not answer:\n{self.log_text()[-3000:]}")
            time.sleep(pause_s)

    def stop(self) -> int:
        """Send SIGTERM, wait until the process has ended, and return its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL, wait until the process has ended, and return its exit status."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP. Connections stay open, but no request gets a response until `resume`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Send SIGCONT, so that a paused process continues."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def _end(self, how: signal.Signals) -> int:
        process, self.process, self.paused = self.process, None, False
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise RuntimeError(f"{self.name} did not end within {STOP_SECONDS} s of {how.name}") from None

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def rss_bytes(self) -> int:
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def discard(self) -> None:
        """Kill the process. Remove the directory, unless the caller passed it or INTEROP_KEEP is set."""
        if self.process is not None:
            self.kill()
        if self._owns_directory and not os.environ.get("INTEROP_KEEP"):
            shutil.rmtree(self.directory, ignore_errors=True)


class ApacheKafka(Broker):
    """Apache Kafka 4.3.1, formatted on its first start."""

    name = "apache"
    heap = "-Xmx512m"

    def java(self, *arguments: str) -> list[str]:
        return [require_java(), self.heap, "-cp", f"{self.jars()}/*", *arguments]

    def jars(self) -> Path:
        return kafka_jars()

    def prepare(self) -> None:
        format_ = self.java(
            *SMALL_JVM, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties_path)
        )
        subprocess.run(format_, check=True, capture_output=True, timeout=120)

    def command(self) -> list[str]:
        return self.java(
            "-XX:+UseG1GC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "kafka.Kafka",
            str(self.properties_path),
        )


class Kwire(Broker):
    """kwire as installed in this Python environment. kwire formats an empty directory when it starts."""

    name = "kwire"

    def command(self) -> list[str]:
        script = Path(sys.executable).with_name("kwire")
        launcher = [str(script)] if script.exists() else [sys.executable, "-m", "kwire"]
        if not script.exists():
            self.environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
        return [*launcher, "serve", str(self.properties_path)]


_started: list[Broker] = []
_tools: list[subprocess.Popen[bytes]] = []


def discard_all() -> None:
    """Kill all brokers and tools that still run, and discard all brokers."""
    while _tools:
        tool = _tools.pop()
        if tool.poll() is None:
            tool.kill()
            tool.wait(STOP_SECONDS)
    while _started:
        _started.pop().discard()


atexit.register(discard_all)


def run_tool(
    main: str, *arguments: str, stdin: str = "", timeout_s: float = 120.0, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command-line tool of Apache Kafka and wait until it has ended."""
    return subprocess.run(
        tool_command(main, *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=check,
    )


def start_tool(
    main: str,
    *arguments: str,
    stdout: IO[bytes] | int = subprocess.PIPE,
    stderr: IO[bytes] | int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a tool that runs until the caller ends it."""
    process = subprocess.Popen(
        tool_command(main, *arguments), stdout=stdout, stderr=stderr, stdin=subprocess.PIPE
    )
    _tools.append(process)
    return process


def tool_command(main: str, *arguments: str) -> list[str]:
    """Return the command line of a tool. The tool's JVM is small, starts fast, and logs only warnings."""
    return [
        require_java(),
        "-Xmx256m",
        *SMALL_JVM,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{kafka_jars()}/*",
        main,
        *arguments,
    ]
