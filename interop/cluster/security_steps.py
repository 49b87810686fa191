"""The steps of docs/security.md that secure a running cluster, as properties of nodes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from interop.cluster.nodes import BROKER, CONTROLLER

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
SECTION: Final = "### In a running cluster\n"
BASE_PORTS: Final = {"PLAINTEXT": 9092, "CONTROLLER": 9095, "CLIENTS": 9192, "NODES": 9292, "QUORUM": 9392}
"""The ports of node 1 on the page, by listener."""
OF_CONTROLLERS: Final = ("CONTROLLER", "QUORUM")
ADD_LISTENERS, MOVE_NODES, ALLOW, DENY = range(4)
"""The blocks of properties on the page, each for one rolling restart."""

PortOf = Callable[[str, int], int]
"""Returns the port of a listener on a node: 0 is the first node."""


def parse(text: str) -> dict[str, str]:
    """Parse properties of which the values have no escapes, only continued lines."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}


def step(number: int, index: int, roles: str, port_of: PortOf) -> dict[str, str]:
    """Return the properties of a step for the node with this index, with the ports of a test."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n### ")[0]
    blocks = re.findall(r"^   ```properties\n(.*?)^   ```", section, re.MULTILINE | re.DOTALL)
    properties = parse(textwrap.dedent(blocks[number]))
    if "listeners" in properties:
        names = re.findall(r"(\w+)://127\.0\.0\.1:(\d+)", properties["listeners"])
        assert all(BASE_PORTS[name] == int(port) for name, port in names)
        wanted = [name for name, _ in names if (CONTROLLER if name in OF_CONTROLLERS else BROKER) in roles]
        properties["listeners"] = ",".join(f"{name}://127.0.0.1:{port_of(name, index)}" for name in wanted)
    key = "controller.quorum.bootstrap.servers"
    if key in properties:
        ports = re.findall(r":(\d+)", properties[key])
        properties[key] = ",".join(
            f"127.0.0.1:{port_of('QUORUM', int(port) - BASE_PORTS['QUORUM'])}" for port in ports
        )
    return properties
