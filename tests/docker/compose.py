"""A reader of compose files: services with environment, ports, volumes and names.

Unknown keys and keys in the wrong place are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "docker"
THEIRS = Path(__file__).parent / "files"

OURS_IS = "kwire"
"""The name of the image that the check builds."""
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}

AT_THE_TOP = {"version", "name", "services", "volumes"}
OF_A_SERVICE = {
    "build", "command", "container_name", "depends_on", "environment", "extends",
    "healthcheck", "hostname", "image",
    "ports", "profiles", "restart", "stop_grace_period", "user", "volumes",
}  # fmt: skip
DURATION = re.compile(r"(\d+(us|ms|[smh]))+")


class Published(NamedTuple):
    """A published port and the container port that it forwards to."""

    port: int
    container_port: int


class Volume(NamedTuple):
    """A named volume or a relative path, and its target in the container."""

    source: str
    target: str


class Service(NamedTuple):
    """One service of a compose file."""

    name: str
    image: str
    hostname: str
    environment: dict[str, str]
    published: list[Published]
    volumes: list[Volume]
    command: list[str] | None
    depends_on: list[str]
    user: str | None

    @property
    def is_node(self) -> bool:
        """Return whether it is a broker or a controller."""
        return self.image == OURS_IS and (self.command is None or "KAFKA_PROCESS_ROLES" in self.environment)

    @property
    def client_ports(self) -> list[Published]:
        """Return the published ports of listeners."""
        return [one for one in self.published if one not in self.http_ports]

    @property
    def http_ports(self) -> list[Published]:
        """Return the published HTTP ports."""
        http = self.environment.get("KWIRE_HTTP", "")
        return [one for one in self.published if http.endswith(f":{one.container_port}")]

    @property
    def is_command(self) -> bool:
        """Return whether it runs one kwire command and exits."""
        return self.image == OURS_IS and not self.is_node


def read(path: Path) -> list[Service]:
    """Return the services of a compose file. Raise ValueError if it is invalid."""
    content = yaml.safe_load(path.read_text())
    check_keys(path.name, content, AT_THE_TOP)
    named = content.get("volumes", {})
    services = []
    for name, one in content["services"].items():
        given = dict(one)
        if "extends" in given:
            base = given.pop("extends")
            other = yaml.safe_load((path.parent / base["file"]).read_text())
            given = {**other["services"][base["service"]], **given}
        services.append(service(f"{path.name}: {name}", name, given))
    names = {one.name for one in services}
    for one in services:
        for volume in one.volumes:
            if not volume.source.startswith((".", "/")) and volume.source not in named:
                raise ValueError(f"{path.name}: {one.name} has volume {volume.source}, which volumes lacks")
        if missing := set(one.depends_on) - names:
            raise ValueError(f"{path.name}: {one.name} depends on {missing}, which services lacks")
    return services


def service(where: str, name: str, given: Mapping[str, Any]) -> Service:
    check_keys(where, given, OF_A_SERVICE)
    if "stop_grace_period" in given and not DURATION.fullmatch(given["stop_grace_period"]):
        raise ValueError(
            f"{where}: stop_grace_period is {given['stop_grace_period']!r}, which is no duration"
        )
    environment = given.get("environment", {})
    if isinstance(environment, list):
        environment = dict(entry.partition("=")[::2] for entry in environment)
    if not all(
        isinstance(value, str | int) and not isinstance(value, bool) for value in environment.values()
    ):
        raise ValueError(f"{where}: a value of environment is neither text nor a number: put it into quotes")
    depends_on = given.get("depends_on", [])
    if isinstance(depends_on, dict) and not all(
        one["condition"] in CONDITIONS for one in depends_on.values()
    ):
        raise ValueError(f"{where}: depends_on has a condition that is none")
    command = given.get("command")
    return Service(
        name,
        given["image"],
        given.get("hostname", name),
        {variable: str(value) for variable, value in environment.items()},
        [Published(*map(int, str(port).split(":")[-2:])) for port in given.get("ports", [])],
        [Volume(*text.split(":")[:2]) for text in given.get("volumes", [])],
        command.split() if isinstance(command, str) else command,
        list(depends_on),
        given.get("user"),
    )


def check_keys(where: str, given: Mapping[str, Any], keys: set[str]) -> None:
    unknown = {key for key in given if key not in keys and not key.startswith("x-")}
    if unknown:
        raise ValueError(f"{where} has {', '.join(sorted(unknown))}")
