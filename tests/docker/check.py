"""docker/check: builds the image from its Dockerfile and runs the compose files without a container engine.

It needs root and Linux namespaces (mounts, network, processes). Nothing outside of the namespaces is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kwire.broker.observe.ring_file import MEMORY
from tests.docker.client import exchange, is_ready
from tests.docker.compose import OURS, THEIRS, Service, read
from tests.docker.container import Container, make_network, running
from tests.docker.image import TOP, Image, build

WITHIN = "KWIRE_CHECK_WITHIN"
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
STOP_SECONDS = 60
TIMEOUT_SECONDS = 900


def compose_files() -> list[Path]:
    return [*sorted(OURS.glob("compose*.yaml")), *sorted(THEIRS.rglob("*.yaml"))]


def refusal() -> str | None:
    """Return why this machine cannot run the check, or None."""
    if os.geteuid() != 0:
        return "an image is built by root alone, who may have namespaces: run docker/check as root"
    try:
        ran = subprocess.run(
            [*NAMESPACES, "ip", "link", "set", "lo", "up"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except OSError as error:
        return f"{error.filename} is needed, and is not here: install util-linux and iproute2"
    return f"this machine gives no namespaces: {ran.stderr.strip()}" if ran.returncode else None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="docker/check",
        description="Build the image from its Dockerfile, in a root of its own, and run compose files.",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="compose.yaml", help="default: all of this project"
    )
    options = parser.parse_args(arguments)
    if WITHIN in os.environ:
        files = [path.resolve() for path in options.files] or compose_files()
        return check(files, Path(os.environ[WITHIN]))
    reason = refusal()
    if reason is not None:
        print(f"docker/check: {reason}; tests/docker/test_compose.py does without", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        try:
            return subprocess.run(
                [*NAMESPACES, sys.executable, "-m", "tests.docker.check", *arguments],
                env={**os.environ, WITHIN: home, "PYTHONPATH": str(TOP)},
                check=False,
                timeout=TIMEOUT_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            print(f"docker/check: not done within {TIMEOUT_SECONDS} s", file=sys.stderr)
            return 1


def check(files: list[Path], home: Path) -> int:
    """Build the image and run each file, within the namespaces."""
    (home / "root").mkdir()
    began = time.monotonic()
    make_network()
    image = build(home / "root")
    print(f"built the image from docker/Dockerfile in {time.monotonic() - began:.1f} s", flush=True)
    for number, path in enumerate(files):
        began = time.monotonic()
        directory = home / f"run{number}"
        directory.mkdir()
        run(path, image, directory)
        shown = path.relative_to(TOP) if path.is_relative_to(TOP) else path
        print(f"{shown}: served, and stopped, in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def run(path: Path, image: Image, directory: Path) -> None:
    """Start the services of a file, use them through their published ports, and stop them."""
    services = read(path)
    for service in services:
        if not service.is_node and not service.is_command:
            print(
                f"{path.name}: {service.name} is left out, for {service.image} is not built here", flush=True
            )
    (directory / "volumes").mkdir()
    with running(services, image, directory / "containers", directory / "volumes", path.parent) as containers:
        for container in containers:
            assert container.check_health() == 0, f"{container.service.name} is not healthy"
        exchange([f"localhost:{one.port}" for service in services for one in service.client_ports])
        for one in (one for service in services for one in service.http_ports):
            assert is_ready(f"localhost:{one.port}")
        if any(volume.target == MEMORY for volume in containers[0].service.volumes):
            containers[0].kill_and_restart()
            assert "ApiVersions" in last_requested_apis(containers[0]), containers[0].stderr_text()
        by_name = {container.service.name: container for container in containers}
        for name in stoppable_services([container.service for container in containers]):
            assert by_name[name].stop(STOP_SECONDS) == 0, by_name[name].stderr_text()


def last_requested_apis(container: Container) -> set[str]:
    """Return the APIs in the flight record of the previous, killed container."""
    (record,) = container.host_path(container.environment["KAFKA_LOG_DIRS"]).glob("kwire-flight-*.jsonl")
    head, *requests = map(json.loads, record.read_text().splitlines())
    assert head["end"].startswith("the process was killed"), head
    return {request["api"] for request in requests}


def stoppable_services(services: list[Service]) -> list[str]:
    """Return the services that can shut down while the other controllers keep a majority."""
    brokers = [one.name for one in services if one.environment.get("KAFKA_PROCESS_ROLES") == "broker"]
    return brokers or [services[-1].name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
