"""The compose files: they are valid, and their services work.

No container engine is needed: each service runs as a process with its environment, with ports and paths of
this machine.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kwire.broker.config.broker import SUPPORTED_KEYS
from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.properties import environment_settings
from kwire.cli.server.container import DEFAULT_CLUSTER_ID
from tests.docker.check import stoppable_services
from tests.docker.client import CLIENT_SECONDS, exchange, is_ready
from tests.docker.compose import OURS, THEIRS, Service, read

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60
UNFENCED = "Transitioning from RECOVERY to RUNNING"
"""The log line that testcontainers waits for."""

ADDRESS = re.compile(r"(?<=[/@])([\w.-]*):(\d+)")

FILES = [*sorted(OURS.glob("compose*.yaml")), *sorted(THEIRS.glob("*.yaml"))]


def nodes(path: Path) -> list[Service]:
    return [service for service in read(path) if service.is_node]


class PortMapping:
    """The ports of this machine that replace the container ports."""

    def __init__(self, services: list[Service]) -> None:
        self._services = services
        self._ports: dict[tuple[str, int], int] = {}
        self._held = ExitStack()

    def port(self, name: str, container_port: int) -> int:
        """Return a reserved free port."""
        if (name, container_port) not in self._ports:
            held = self._held.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            self._ports[name, container_port] = held.getsockname()[1]
        return self._ports[name, container_port]

    def release(self) -> None:
        self._held.close()

    def text(self, service: Service, text: str) -> str:
        """Replace each address in a setting of a service."""

        def moved(match: re.Match[str]) -> str:
            host, port = match[1], int(match[2])
            if host == "localhost":
                (port,) = (one.container_port for one in service.published if one.port == port)
            elif host not in ("", service.hostname):
                assert host in {one.hostname for one in self._services}, f"{host} is no service"
            name = host if host not in ("", "localhost") else service.hostname
            return f"127.0.0.1:{self.port(name, port)}"

        return ADDRESS.sub(moved, text)


@contextmanager
def running(path: Path, place: Path) -> Iterator[list[str]]:
    """Run the services of a file as processes and yield the addresses of the brokers."""
    services = nodes(path)
    moved = PortMapping(services)
    clients, browsers = [], []
    environments = {}
    for service in services:
        home = place / service.name
        mounted = home / "mounted"
        mounted.mkdir(parents=True)
        environment = {
            variable: moved.text(service, value) for variable, value in service.environment.items()
        }
        for one in service.http_ports:
            environment["KWIRE_HTTP"] = f"127.0.0.1:{moved.port(service.hostname, one.container_port)}"
            browsers.append(environment["KWIRE_HTTP"])
        for volume in service.volumes:
            if volume.target == "/mnt/shared/config":
                for file in (path.parent / volume.source).iterdir():
                    text = re.sub("(?m)^log.dirs=.*", f"log.dirs={home / 'data'}", file.read_text())
                    (mounted / file.name).write_text(moved.text(service, text))
        if "KAFKA_LOG_DIRS" in environment:
            environment["KAFKA_LOG_DIRS"] = str(home / "data")
        environments[service.name] = {
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",  # no other member joins
            **environment,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(OURS.parent),
        }
        clients += [
            f"127.0.0.1:{moved.port(service.hostname, one.container_port)}" for one in service.client_ports
        ]
    moved.release()
    logs = ExitStack()
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "kwire", "container", "run", *broker_addresses(place / name)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=logs.enter_context((place / name / "log").open("w")),
            text=True,
        )
        for name, environment in environments.items()
    }
    try:
        for name, process in processes.items():
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("formatted "), (place / name / "log").read_text()
            line = process.stdout.readline()
            assert line.startswith("kwire serves on "), (place / name / "log").read_text()
            assert run_health_check(place / name, environments[name]).returncode == 0
            becomes_unfenced = "broker" in environments[name]["KAFKA_PROCESS_ROLES"]
            if "KAFKA_LOG4J_ROOT_LOGLEVEL" not in environments[name]:
                assert (UNFENCED in (place / name / "log").read_text()) == becomes_unfenced
        assert all(map(is_ready, browsers))
        yield clients
        for name in stoppable_services(services):
            processes[name].send_signal(signal.SIGTERM)
            assert processes[name].wait(STOP_TIMEOUT_SECONDS) == 0
            result = run_health_check(place / name, environments[name])
            assert result.returncode == 1
            assert result.stderr.startswith("kwire: not healthy: ")
            assert result.stderr.count("\n") == 1
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        logs.close()


def broker_addresses(home: Path) -> list[str]:
    return ["--mounted-configs-dir", str(home / "mounted"), "--default-configs-dir", str(OURS)]


def run_health_check(home: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kwire", "container", "healthy", *broker_addresses(home)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_SECONDS,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_is_a_supported_kafka_key(path: Path) -> None:
    for service in nodes(path):
        for name, (variable, _) in environment_settings(service.environment).items():
            assert name in BROKER_KEYS, f"{path.name}: {service.name} has {variable}"
            assert name in SUPPORTED_KEYS, f"{path.name}: {service.name} has {variable}, which has no effect"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_services_of_the_file_produce_and_consume(path: Path, tmp_path: Path) -> None:
    with running(path, tmp_path) as addresses:
        exchange(addresses)
        admin = AdminClient({"bootstrap.servers": ",".join(addresses)})
        output = admin.describe_cluster().result(CLIENT_SECONDS)
        assert {f"{node.host}:{node.port}" for node in output.nodes} == set(addresses)
        named = {service.environment.get("CLUSTER_ID", DEFAULT_CLUSTER_ID) for service in nodes(path)}
        assert {output.cluster_id} == named
