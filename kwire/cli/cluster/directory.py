"""The directory of a cluster on this machine: each node's properties, data, log and process id.

    kwire-cluster/cluster.id
    kwire-cluster/node-1.properties   configuration; Apache Kafka can start a node with it, too
    kwire-cluster/node-1/             data
    kwire-cluster/node-1.log          output and log
    kwire-cluster/node-1.pid          process id, while the node runs

There is no other state: each command reads the nodes from their properties files.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final

from kwire.broker.config import BrokerConfig, ConfigError, load
from kwire.broker.config.listeners import MAX_PORT
from kwire.broker.config.properties import ENVIRONMENT_PREFIX
from kwire.broker.config.roles import BROKER, CONTROLLER, VOTERS
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.features import unserved_feature_levels
from kwire.broker.node.format import FormatError, InitialMetadata, format_directories, parse_voters
from kwire.broker.storage.checkpoints import META_PROPERTIES
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.cli.broker_settings import CLUSTER_DIR, READY_FD
from kwire.cli.cluster.plan import (
    FIRST_CONTROLLER,
    ControllerAddresses,
    NodeCounts,
    Roles,
    assign_ports,
    properties,
)
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.host.platform.processes import has_argument
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import uuid_to_text

DEFAULT_PORT: Final = 9092
START_SECONDS: Final = 60
STOP_SECONDS: Final = 90
POLL_SECONDS: Final = 0.02
SHUTDOWN_ROUND_SECONDS: Final = 2
"""Time to wait for brokers before signaling them again, if the controllers have lost their majority."""
NODE: Final = re.compile(r"node-[0-9]+")
"""Name of a properties file, without its suffix; an editor may leave copies with other names."""
UNFINISHED: Final = ".unfinished"
"""Suffix of a node's properties until its directories are formatted."""
NODE_KEYS: Final = ("broker.id", "listeners", "log.dir", "log.dirs", "node.id", "process.roles")
"""Keys that differ from node to node."""
CLUSTER_KEYS: Final = (
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
)
"""Keys that are equal on all nodes and follow from the list of nodes."""
CHILD_READY_FD: Final = 3
"""The number of a node's `READY_FD` in the node's process."""


class ClusterNode:
    """One node of a cluster."""

    def __init__(self, properties: Path) -> None:
        self.properties = properties
        self.node_id = int(properties.stem.removeprefix("node-"))
        self.data, self.log, self._pid_file = (
            properties.with_suffix(suffix) for suffix in ("", ".log", ".pid")
        )
        self.config_error: str | None = None
        """The error in the properties, which users may edit. With an error, only the process is known."""
        self._config: BrokerConfig | None = None
        try:
            self._config = load(str(properties), {}, {})
        except (ConfigError, OSError) as error:
            self.config_error = f"{properties}: {error}"

    @property
    def config(self) -> BrokerConfig:
        """The parsed properties. Raises CommandError if they are invalid."""
        if self._config is None:
            raise CommandError(str(self.config_error))
        return self._config

    @property
    def is_broker(self) -> bool:
        return self.node_id < FIRST_CONTROLLER if self._config is None else self._config.is_broker

    @property
    def is_controller(self) -> bool:
        return self.node_id >= FIRST_CONTROLLER if self._config is None else self._config.is_controller

    @property
    def address(self) -> str | None:
        """Address of the first listener, a client listener on brokers; None if the properties are invalid."""
        if self._config is None:
            return None
        endpoints = (*self._config.listener_endpoints(), *self._config.controller_endpoints())
        return self._address_of(endpoints)

    @property
    def roles(self) -> str | None:
        return None if self._config is None else ",".join(self._config.process_roles)

    @property
    def role_set(self) -> Roles:
        """Roles in a fixed order; guessed from the id if the properties are invalid."""
        held = {BROKER: self.is_broker, CONTROLLER: self.is_controller}
        return tuple(role for role, is_held in held.items() if is_held)

    @property
    def ports(self) -> list[int]:
        """All ports of the node. Raises CommandError if the properties are invalid."""
        endpoints = (*self.config.listener_endpoints(), *self.config.controller_endpoints())
        return [port for _, _, port in endpoints]

    @staticmethod
    def _address_of(endpoints: Iterable[tuple[str, str, int]]) -> str | None:
        return next((f"{host}:{port}" for _, host, port in endpoints), None)

    @property
    def pid(self) -> int | None:
        """The process id; None if the node is down, even if another program has its old process id."""
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if has_argument(pid, str(self.properties)) else None

    def start(self) -> StartingNode:
        """Start the node's process, which outlives this command."""
        self.log.touch()
        log_begins = self.log.stat().st_size
        flags = os.O_WRONLY | os.O_APPEND
        environment = {
            # Kafka settings in the environment would apply to every node, including node.id.
            **{name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
            READY_FD: str(CHILD_READY_FD),
        }
        ready_fd, child_ready_fd = os.pipe()
        pid = os.posix_spawn(
            sys.executable,
            # -P: a module in the current directory, such as copy.py, would hide a standard module.
            [sys.executable, "-P", "-m", "kwire", "serve", str(self.properties)],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), flags, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, child_ready_fd, CHILD_READY_FD),
            ],
            setsid=True,
        )
        os.close(child_ready_fd)
        self._pid_file.write_text(f"{pid}\n")
        return StartingNode(self, pid, ready_fd, log_begins)

    def signal(self, number: int) -> bool:
        """Send a signal to the process, and return whether the node was running."""
        pid = self.pid
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def await_end(self, deadline: float) -> bool:
        """Wait until the process has ended, or until the deadline. Return whether the process has ended."""
        while (pid := self.pid) is not None:
            with suppress(ChildProcessError):  # started by an earlier command
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return True


class StartingNode(NamedTuple):
    """A node that this command has started, and that does not serve yet."""

    node: ClusterNode
    pid: int
    ready_fd: int
    """The pipe to which the node writes a byte as soon as it serves. It is closed when the node ends."""
    log_begins: int
    """The size of the log in bytes before the start."""

    def check(self) -> None:
        """Raise CommandError if the node has ended. `ready_fd` must be readable."""
        if os.read(self.ready_fd, 1):
            return
        _, status = os.waitpid(self.pid, 0)
        with self.node.log.open("rb") as log:
            log.seek(self.log_begins)
            lines = log.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {os.waitstatus_to_exitcode(status)}"
        raise CommandError(f"node {self.node.node_id} did not start: {last.removeprefix('kwire: ')}")


class ClusterDirectory:
    """The directory of one cluster."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._id_file = self.path / "cluster.id"
        self._option = "" if self.path == Path(CLUSTER_DIR).absolute() else f" --dir {quote(path)}"

    def command(self, words: str) -> str:
        """Return a command for this cluster, quoted for a message."""
        return f"'kwire cluster {words}{self._option}'"

    @property
    def exists(self) -> bool:
        return self._id_file.exists()

    def nodes(self) -> list[ClusterNode]:
        """Return all nodes, controllers first, then by id. Raises CommandError if there is no cluster."""
        if not self.exists:
            raise CommandError(f"there is no cluster in {self.path}: {self.command('up')} creates one")
        found = [
            ClusterNode(path) for path in self.path.glob("node-*.properties") if NODE.fullmatch(path.stem)
        ]
        return sorted(found, key=lambda node: (node.is_broker, node.node_id))

    def node(self, node_id: int) -> ClusterNode:
        """Return one node. Raises CommandError if there is none with that id."""
        nodes = self.nodes()
        for node in nodes:
            if node.node_id == node_id:
                return node
        known = ", ".join(str(node.node_id) for node in nodes)
        raise CommandError(f"there is no node {node_id} in {self.path}: the nodes are {known}")

    def create(self, wanted: NodeCounts, first_port: int | None, settings: Mapping[str, str]) -> list[int]:
        """Write properties and format directories of missing nodes, and return their ids.

        Brokers use the ports from `first_port` on, and controllers use the ports after the brokers. Nodes
        that are added later use ports above all used ports. Raises CommandError.
        """
        for key in NODE_KEYS:
            if key in settings:
                raise UsageError(f"--set {key}: kwire cluster sets this key for each node")
        for key in CLUSTER_KEYS:
            if key in settings:
                raise UsageError(f"--set {key}: kwire cluster sets this key from the nodes of the cluster")
        try:
            accepts = os.environ.get("KWIRE_ACCEPT_UNPROTECTED") == "true"
            load(None, {}, settings, accept_unprotected=accepts)
        except ConfigError as error:
            raise UsageError(str(error)) from error
        nodes = self.nodes() if self.exists else []
        if nodes:
            self._finish()
            nodes = self.nodes()
        all_nodes = wanted.nodes({node.node_id: node.role_set for node in nodes})
        known = {node.node_id for node in nodes}
        missing = {each: all_nodes[each] for each in all_nodes if each not in known}
        if nodes and first_port is not None and all(node.config_error is None for node in nodes):
            ports = [each for node in nodes for each in node.ports]
            if first_port not in ports:
                raise CommandError(
                    f"--port {first_port}: this cluster already uses ports from {min(ports)} on: "
                    f"use {self.command('down')} first, or --dir for another cluster"
                )
        if not missing:
            return []
        if secured := [
            node.node_id for node in nodes if node.config_error is None and _is_secured(node.config)
        ]:
            raise CommandError(
                f"node {secured[0]} has an authorizer, or listeners with authentication or TLS, which new "
                "nodes of this command would not have: write the properties of a new node by hand, and use "
                "'kwire format' and 'kwire serve'"
            )
        self._remove_unfinished()
        port = DEFAULT_PORT if first_port is None else first_port
        if nodes:
            port = 1 + max(each for node in nodes for each in node.ports)
        most = MAX_PORT + 1 - sum(map(len, missing.values()))
        if not 1 <= port <= most:
            raise UsageError(f"--port {port}: expected 1 to {most}, for {plural(len(missing), 'node')}")
        cluster_id = self._cluster_id()
        self._write(nodes, missing, port, cluster_id, settings)
        self._finish()
        return list(missing)

    def _cluster_id(self) -> str:
        """Return the cluster id; create the directory and the id for a new cluster. Raises CommandError."""
        if self.exists:
            return self._id_file.read_text().strip()
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise CommandError(f"{self.path} is not empty and has no cluster: choose another --dir")
        cluster_id = uuid_to_text(new_uuid(random.SystemRandom()))
        # From here on, 'up' can continue and 'down' can clean up.
        self._id_file.write_text(f"{cluster_id}\n")
        return cluster_id

    def _write(
        self,
        nodes: Sequence[ClusterNode],
        missing: Mapping[int, Roles],
        port: int,
        cluster_id: str,
        settings: Mapping[str, str],
    ) -> None:
        """Write the properties of the missing nodes, and format their data directories.

        The properties files have temporary names until `_finish` renames them. The first controllers are
        formatted as voters; later controllers join the quorum when they start. Raises CommandError.
        """
        rng = random.SystemRandom()
        at = assign_ports(missing, port)
        new = {each: f"127.0.0.1:{at[each].controller}" for each in missing if CONTROLLER in missing[each]}
        old = [node for node in nodes if node.is_controller]
        servers = [f"{host}:{port}" for node in old for _, host, port in node.config.controller_endpoints()]
        static = next((node.config.static_settings.get(VOTERS, "") for node in old), "")
        if static and new:
            raise CommandError(
                f"the cluster in {self.path} has static controller.quorum.voters, so no controller can be "
                f"added: create a new cluster with more controllers in another directory (--dir)"
            )
        quorum = ControllerAddresses([*servers, *new.values()], static)
        brokers = sum(BROKER in roles for roles in missing.values()) + sum(node.is_broker for node in nodes)
        voters = "" if old else ",".join(f"{each}@{new[each]}:{uuid_to_text(new_uuid(rng))}" for each in new)
        for node_id, roles in missing.items():
            data = self.path / f"node-{node_id}"
            unfinished = data.with_suffix(UNFINISHED)
            lines = quorum.lines(roles, joins=bool(old))
            unfinished.write_text(properties(node_id, roles, at[node_id], lines, brokers, data, settings))
            _format(unfinished, rng, cluster_id, voters if CONTROLLER in roles else "")

    def _finish(self) -> None:
        """Rename the properties of nodes that are formatted.

        An 'up' that was interrupted before the first rename starts over, since no node has run. After the
        first rename, all initial voters are formatted, and 'up' continues.
        """
        for unfinished in sorted(self.path.glob(f"node-*{UNFINISHED}")):
            if (unfinished.with_suffix("") / META_PROPERTIES).exists():
                unfinished.rename(unfinished.with_suffix(".properties"))

    def remove(self) -> None:
        """Remove the cluster and its data; other files in the directory are kept."""
        for node in self.nodes():
            shutil.rmtree(node.data, ignore_errors=True)
            for path in (node.log, node.properties, node.properties.with_suffix(".pid")):
                path.unlink(missing_ok=True)
        self._remove_unfinished()
        self._id_file.unlink()
        with suppress(OSError):  # the directory has other files
            self.path.rmdir()

    def _remove_unfinished(self) -> None:
        """Remove the files of an interrupted 'up'."""
        for unfinished in self.path.glob(f"node-*{UNFINISHED}"):
            shutil.rmtree(unfinished.with_suffix(""), ignore_errors=True)
            unfinished.unlink()


def start(nodes: Sequence[ClusterNode]) -> None:
    """Start all stopped nodes together, and wait until they serve. Raises CommandError."""
    idle = [node for node in nodes if node.pid is None]
    faults = [node.config_error for node in idle if node.config_error is not None]
    starting = [node.start() for node in idle if node.config_error is None]
    try:
        _await_ready(starting, time.monotonic() + START_SECONDS)
    except CommandError as error:
        faults.append(str(error))
    finally:
        for one in starting:
            os.close(one.ready_fd)
    if faults:
        raise CommandError("; ".join(faults) + describe_running(nodes))


def _await_ready(starting: Sequence[StartingNode], deadline: float) -> None:
    """Wait until all nodes serve. Raises CommandError as soon as one ends, or at the deadline."""
    waiting = {one.ready_fd: one for one in starting}
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            node = next(iter(waiting.values())).node
            raise CommandError(f"node {node.node_id} does not serve yet: see {node.log}")
        for fd in ready:
            waiting.pop(fd).check()


def describe_running(nodes: Sequence[ClusterNode]) -> str:
    """Return the ids of running nodes, as the end of an error message."""
    running = [str(node.node_id) for node in nodes if node.pid is not None]
    return f"; running: {', '.join(running)}" if running else ""


def stop(nodes: Sequence[ClusterNode], has_majority: Callable[[], bool]) -> None:
    """Shut down nodes cleanly, brokers first. Raises CommandError if some still run after STOP_SECONDS.

    A controlled shutdown needs an active controller. When only the last combined nodes run, there is no
    active controller, so these nodes get a second signal, which ends them at once.
    """
    for group in ([one for one in nodes if one.is_broker], [one for one in nodes if not one.is_broker]):
        late = [node for node in group if node.signal(signal.SIGTERM)]
        deadline = time.monotonic() + STOP_SECONDS
        while late and time.monotonic() < deadline:
            had_majority = has_majority()
            late = _await_ends(late, min(deadline, time.monotonic() + SHUTDOWN_ROUND_SECONDS))
            for node in late:
                if node.is_broker and not had_majority:
                    node.signal(signal.SIGTERM)
        if late:
            ids = ", ".join(str(node.node_id) for node in late)
            raise CommandError(
                f"still stopping: node {ids}, see {late[0].log}; the same command again ends a broker "
                f"without a controlled shutdown"
            )


def _await_ends(nodes: Sequence[ClusterNode], deadline: float) -> list[ClusterNode]:
    """Return the nodes that are still running at the deadline."""
    return [node for node in nodes if not node.await_end(deadline)]


def kill(nodes: Sequence[ClusterNode]) -> None:
    """Kill nodes with SIGKILL, as in a crash, and wait until they have ended."""
    killed = [node for node in nodes if node.signal(signal.SIGKILL)]
    deadline = time.monotonic() + STOP_SECONDS
    for node in killed:
        node.await_end(deadline)


def _format(path: Path, rng: random.Random, cluster_id: str, voters: str) -> None:
    try:
        config = load(str(path), {}, {})
        format_directories(
            config,
            RealDisk(),
            rng,
            int(time.time() * 1000),
            cluster_id=cluster_id,
            initial_metadata=InitialMetadata(
                unserved_feature_levels(), voters=parse_voters(voters, config) if voters else ()
            ),
        )
    except (ConfigError, StorageError, FormatError) as error:
        raise CommandError(str(error)) from error


def _is_secured(config: BrokerConfig) -> bool:
    """Return whether a node has security settings, which `properties` does not write."""
    endpoints = [*config.listener_endpoints(), *config.controller_endpoints()]
    has_protocol = any(config.protocol(endpoint.name) != "PLAINTEXT" for endpoint in endpoints)
    return has_protocol or bool(config.static_settings.get("authorizer.class.name"))
