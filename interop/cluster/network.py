"""A network in which a test can disconnect nodes in one or both directions.

Each node has a network namespace, and a bridge connects the namespaces. The host is on the bridge too, so
clients on the host always reach every node. To disconnect a node from another node, the network maps the
other node's address to a link-layer address that no interface has. So the packets are dropped without an
error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from itertools import product
from typing import Final

UNUSED_MAC: Final = "02:00:00:00:00:01"


class NetworkUnavailable(Exception):
    """This machine cannot create network namespaces. The message contains the reason."""


class Network:
    """The network of one cluster. Call `discard` at the end."""

    def __init__(self) -> None:
        # The process id makes the interface names unique. Linux limits an interface name to 15 characters.
        self._name = f"kw{os.getpid()}"
        self._subnet = f"10.{64 + os.getpid() // 250 % 128}.{os.getpid() % 250}"
        self._joined: list[int] = []
        self._cuts: list[tuple[int, int]] = []
        ip("link", "add", self._name, "type", "bridge")
        ip("address", "add", f"{self._subnet}.1/24", "dev", self._name)
        ip("link", "set", self._name, "up")

    def join(self, node_id: int) -> tuple[str, tuple[str, ...]]:
        """Add a node. Return its IP address, and the prefix for its command line."""
        space = self._space(node_id)
        ip("netns", "add", space)
        self._joined.append(node_id)
        ip("link", "add", space, "type", "veth", "peer", "name", "wire", "netns", space)
        ip("link", "set", space, "master", self._name, "up")
        ip("-n", space, "address", "add", f"{self._address(node_id)}/24", "dev", "wire")
        ip("-n", space, "link", "set", "wire", "up")
        ip("-n", space, "link", "set", "lo", "up")
        return self._address(node_id), ("nsenter", f"--net=/run/netns/{space}")

    def disconnect(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """Drop all packets from `senders` to `receivers` until `heal` is called."""
        for sender, receiver in product(senders, receivers):
            if sender != receiver:
                unused = ("lladdr", UNUSED_MAC, "nud", "permanent", "dev", "wire")
                ip("-n", self._space(sender), "neighbor", "replace", self._address(receiver), *unused)
                self._cuts.append((sender, receiver))

    def heal(self) -> None:
        while self._cuts:
            sender, receiver = self._cuts.pop()
            ip("-n", self._space(sender), "neighbor", "delete", self._address(receiver), "dev", "wire")

    def discard(self) -> None:
        for node_id in self._joined:
            ip("link", "delete", self._space(node_id))
            ip("netns", "delete", self._space(node_id))
        ip("link", "delete", self._name)

    def _space(self, node_id: int) -> str:
        return f"{self._name}n{node_id}"

    def _address(self, node_id: int) -> str:
        return f"{self._subnet}.{10 + node_id}"


def create_network() -> Network:
    """Create a network.

    Raises NetworkUnavailable, or RuntimeError if networks are available but a command fails.
    """
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        raise NetworkUnavailable(f"there is no program {' and no '.join(missing)}")
    tried = f"kw{os.getpid()}tried"
    try:
        ip("netns", "add", tried)
        ip("netns", "delete", tried)
    except RuntimeError as error:
        raise NetworkUnavailable(str(error)) from error
    return Network()


def ip(*arguments: str) -> None:
    """Run the command `ip` of iproute2. Raises RuntimeError if the command fails."""
    done = subprocess.run(("ip", *arguments), check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"'ip {' '.join(arguments)}' failed: {done.stderr.strip()}")
