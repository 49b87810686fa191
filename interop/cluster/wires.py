"""Wires between nodes that a test can cut, one way or both: a network namespace for each, joined by a bridge.

The host has an end too, so clients reach every node, whatever is cut between nodes. A cut is silent, as in a
real network: what is sent goes to a link address that nobody has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from itertools import product
from typing import Final

NOBODY: Final = "02:00:00:00:00:01"


class NoWires(Exception):
    """This machine lets no namespaces be made; says why."""


class Wires:
    """Nodes `join`; what is between them is `cut`, and `heal`ed. Discarded in the end."""

    def __init__(self) -> None:
        # Of this process alone, also in the names of the interfaces, which have at most 15 characters.
        self._name = f"kw{os.getpid()}"
        self._subnet = f"10.{64 + os.getpid() // 250 % 128}.{os.getpid() % 250}"
        self._joined: list[int] = []
        self._cuts: list[tuple[int, int]] = []
        ip("link", "add", self._name, "type", "bridge")
        ip("address", "add", f"{self._subnet}.1/24", "dev", self._name)
        ip("link", "set", self._name, "up")

    def join(self, node_id: int) -> tuple[str, tuple[str, ...]]:
        """The address of a node, and what runs its command."""
        space = self._space(node_id)
        ip("netns", "add", space)
        self._joined.append(node_id)
        ip("link", "add", space, "type", "veth", "peer", "name", "wire", "netns", space)
        ip("link", "set", space, "master", self._name, "up")
        ip("-n", space, "address", "add", f"{self._address(node_id)}/24", "dev", "wire")
        ip("-n", space, "link", "set", "wire", "up")
        ip("-n", space, "link", "set", "lo", "up")
        return self._address(node_id), ("nsenter", f"--net=/run/netns/{space}")

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """From now on, nothing of what these send to those arrives."""
        for sender, receiver in product(senders, receivers):
            if sender != receiver:
                nobody = ("lladdr", NOBODY, "nud", "permanent", "dev", "wire")
                ip("-n", self._space(sender), "neighbour", "replace", self._address(receiver), *nobody)
                self._cuts.append((sender, receiver))

    def heal(self) -> None:
        """All that was cut."""
        while self._cuts:
            sender, receiver = self._cuts.pop()
            ip("-n", self._space(sender), "neighbour", "delete", self._address(receiver), "dev", "wire")

    def discard(self) -> None:
        for node_id in self._joined:
            ip("link", "delete", self._space(node_id))
            ip("netns", "delete", self._space(node_id))
        ip("link", "delete", self._name)

    def _space(self, node_id: int) -> str:
        return f"{self._name}n{node_id}"

    def _address(self, node_id: int) -> str:
        return f"{self._subnet}.{10 + node_id}"


def wires() -> Wires:
    """To be discarded. NoWires where there can be none; what fails where there can is a RuntimeError."""
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        raise NoWires(f"there is no program {' and no '.join(missing)}")
    tried = f"kw{os.getpid()}tried"
    try:
        ip("netns", "add", tried)
        ip("netns", "delete", tried)
    except RuntimeError as error:
        raise NoWires(str(error)) from error
    return Wires()


def ip(*arguments: str) -> None:
    """Run iproute2's command. RuntimeError."""
    done = subprocess.run(("ip", *arguments), check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"'ip {' '.join(arguments)}' says: {done.stderr.strip()}")
