"""The steps of docs/security.md that secure a running cluster, while clients write and read."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from interop.brokers import free_port
from interop.cluster.load import CLIENTS, AioWriter, ConfluentReader, Load, PythonWriter
from interop.cluster.logins import Login
from interop.cluster.nodes import COMBINED, Cluster, Member
from interop.cluster.quorums import VOTER_KINDS, under_load
from interop.cluster.security_steps import ADD_LISTENERS, ALLOW, DENY, MOVE_NODES, PortOf, parse, step
from interop.tools import TOOLS, a_file, run

ALICE: Final = Login("alice", "alice-secret", "SCRAM-SHA-512")
ADMIN: Final = Login("admin", "admin-secret", "SCRAM-SHA-512")
ACLS: Final = (
    ("--operation", "Read", "--operation", "Write", "--operation", "Describe", "--topic", "t"),
    ("--operation", "Read", "--group", "*"),
    ("--operation", "Describe", "--cluster"),
)
"""The ACLs of alice. With the ACL for the cluster, the nodes need their principal in super.users."""
OFFSETS: Final = {"PLAINTEXT": 0, "CONTROLLER": 3, "CLIENTS": 6, "NODES": 9, "QUORUM": 12}
"""The ports of the first node of a test by listener, from the first port of `kwire cluster up` on."""
SOME_CLIENTS: Final = (PythonWriter, AioWriter, ConfluentReader)
WAIT_SECONDS: Final = 60.0


class KwireCluster:
    """A cluster of `kwire cluster up`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_port = first_free_port(15)

    def command(self, *arguments: str, status: int = 0, text: str | None = None) -> str:
        """Run a command of kwire, and return its output."""
        words = [sys.executable, "-m", "kwire", *arguments]
        ran = subprocess.run(words, capture_output=True, text=True, input=text, timeout=120)
        assert ran.returncode == status, (arguments, ran)
        return ran.stdout

    def cluster(self, *arguments: str) -> str:
        return self.command("cluster", *arguments, "--dir", str(self._directory))

    def port_of(self, listener: str, index: int) -> int:
        return self._first_port + OFFSETS[listener] + index

    def servers(self, listener: str) -> str:
        return ",".join(f"127.0.0.1:{self.port_of(listener, index)}" for index in range(3))

    def status(self) -> Any:
        return json.loads(self.cluster("status", "--json"))

    @contextmanager
    def running(self, *counts: str) -> Iterator[None]:
        self.cluster("up", "--port", str(self._first_port), *counts)
        try:
            yield
        finally:
            self.cluster("down")

    def apply(self, number: int) -> None:
        """Apply a step with a rolling restart."""
        for node in self.status()["nodes"]:
            path = self._directory / f"node-{node['node']}.properties"
            changes = step(number, node["node"] % 99 - 1, node["roles"], self.port_of)
            properties = parse(path.read_text()) | changes
            path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            self.cluster("restart", str(node["node"]))
            self._wait_until_healthy(node["node"])

    def _wait_until_healthy(self, node_id: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            status = self.status()
            [node] = [one for one in status["nodes"] if one["node"] == node_id]
            is_voter = "controller" not in node["roles"] or node["quorum"] in ("leader", "voter")
            if node["state"] == "running" and is_voter and not status["under_replicated"]:
                return
            assert time.monotonic() < deadline, status
            time.sleep(0.2)


def first_free_port(count: int) -> int:
    """Return the first of `count` consecutive free ports below the ephemeral range."""
    while True:
        port = random.randrange(20_000, 32_000)
        if all(is_free(one) for one in range(port, port + count)):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    "counts", [(), ("--brokers", "3", "--controllers", "3")], ids=["combined", "separate"]
)
def test_cluster_on_one_machine(tmp_path: Path, counts: tuple[str, ...]) -> None:
    nodes = KwireCluster(tmp_path / "cluster")
    with nodes.running(*counts):
        first = nodes.servers("PLAINTEXT")
        for login in (ADMIN, ALICE):
            nodes.command("users", "set", login.username, "-b", first, text=f"{login.password}\n")
        for topic in ("t", "before"):
            nodes.command("topics", "create", topic, "-b", first)
        with Load(first, "before", 1) as load_before:
            load_before.start(*SOME_CLIENTS)
            for number in (ADD_LISTENERS, MOVE_NODES, ALLOW):
                load_before.wait_until_all_write()
                nodes.apply(number)
            load_before.wait_until_all_write()
            load_before.stop()
            load_before.check()
        with Load(nodes.servers("CLIENTS"), "t", 1, ALICE) as load_after:
            load_after.start(*SOME_CLIENTS)
            load_after.wait_until_all_write()
            with a_file("".join(f"{key}={value}\n" for key, value in ADMIN.of_java().items())) as config:
                admin = ("-b", nodes.servers("CLIENTS"), "--command-config", config)
                for acl in ACLS:
                    nodes.command("acls", "add", "--allow-principal", "alice", *acl, *admin)
                nodes.command(
                    "configs", "alter", "logger", "1", "--set", "kafka.authorizer.logger=DEBUG", *admin
                )
            nodes.apply(DENY)
            load_after.wait_until_all_write()
            load_after.stop()
            load_after.check()
        # The commands for the cluster work with the credentials in the properties of the nodes.
        nodes.cluster("stop")
        nodes.cluster("up")
        assert nodes.status()["quorum"]["leader"] is not None


@pytest.mark.parametrize("cluster_kind", VOTER_KINDS)
def test_nodes_move_to_listeners_with_sasl(cluster_kind: str) -> None:
    """Add an ACL for the cluster at the end, which denies anonymous nodes.

    Unlike on the page, the listener CONTROLLER is kept, because the checks of the scenario connect to it.
    """
    members = tuple(Member(kind, COMBINED) for kind in VOTER_KINDS[cluster_kind])
    with Cluster(members, voters_in_log=True).start() as cluster:
        port_of = new_ports(cluster)
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS) as load:
            for number in (ADD_LISTENERS, MOVE_NODES, ALLOW):
                for index, (node_id, node) in enumerate(cluster.nodes.items()):
                    load.wait_until_all_write()
                    node.stop()
                    node.properties.pop("advertised.listeners", None)
                    changes = step(number, index, COMBINED, port_of)
                    if number == ALLOW:
                        del changes["listeners"], changes["controller.listener.names"]
                    node.properties |= changes
                    cluster.start_node(node_id)
                    cluster.wait_until_all_in_sync()
                    cluster.elect_preferred_leaders()
            response = run(
                *(f"{TOOLS}.AclCommand", "--bootstrap-server", cluster.bootstrap, "--add"),
                *("--allow-principal", "User:ANONYMOUS", "--cluster"),
                *("--operation", "Alter", "--operation", "Describe"),
            )
            assert response.status == 0, response
            for node_id, node in cluster.nodes.items():
                load.wait_until_all_write()
                node.stop()
                cluster.start_node(node_id)
                cluster.wait_until_all_in_sync()


def new_ports(cluster: Cluster) -> PortOf:
    """Return the ports of the listeners of a cluster, old and new ones."""
    nodes = list(cluster.nodes.values())
    new = {name: [free_port() for _ in nodes] for name in ("CLIENTS", "NODES", "QUORUM")}
    ports = {
        "PLAINTEXT": [node.port for node in nodes],
        "CONTROLLER": [node.controller_port for node in nodes],
    }
    return lambda listener, index: (ports | new)[listener][index]
