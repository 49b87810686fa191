"""A cluster on this machine, as a folder: each node's properties, data, log and process.

    kwire-cluster/cluster.id
    kwire-cluster/node-1.properties   what the node is; an Apache Kafka node could start with it as it is
    kwire-cluster/node-1/             its data
    kwire-cluster/node-1.log          what it says
    kwire-cluster/node-1.pid          its process, while there is one

Nothing else is remembered: which nodes there are is read from their properties, each time.
"""

from __future__ import annotations

import os
import random
import re
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
from kwire.cli.broker_settings import CLUSTER_DIR
from kwire.cli.cluster.plan import (
    FIRST_CONTROLLER,
    ControllerAddresses,
    NodeCounts,
    Roles,
    addresses,
    properties,
)
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.wire.primitives import uuid_to_text

DEFAULT_PORT: Final = 9092
START_SECONDS: Final = 60
STOP_SECONDS: Final = 90
POLL_SECONDS: Final = 0.02
SHUTDOWN_ROUND_SECONDS: Final = 2
"""How long brokers that end are waited for once no majority of the controllers runs."""
NODE: Final = re.compile(r"node-[0-9]+")
"""What properties of a node are named; an editor may leave copies beside them."""
UNFINISHED: Final = ".unfinished"
"""What the properties of a node end with while its directories are not formatted."""
NODE_KEYS: Final = ("broker.id", "listeners", "log.dir", "log.dirs", "node.id", "process.roles")
"""What each node has for itself."""
CLUSTER_KEYS: Final = (
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
)
"""What all nodes of a cluster have, and follows from which there are."""
SERVING_PREFIX: Final = "kwire serves on "


class ClusterNode:
    """One node of a cluster's folder."""

    def __init__(self, properties: Path) -> None:
        self.properties = properties
        self.node_id = int(properties.stem.removeprefix("node-"))
        self.data, self.log, self._pid_file = (
            properties.with_suffix(suffix) for suffix in ("", ".log", ".pid")
        )
        self.config_error: str | None = None
        """What is wrong with its properties, which are there to be edited: then only its process is known."""
        self._config: BrokerConfig | None = None
        try:
            self._config = load(str(properties), {}, {})
        except (ConfigError, OSError) as error:
            self.config_error = f"{properties}: {error}"
        self._started = self._log_begins = 0

    @property
    def config(self) -> BrokerConfig:
        """Failure: there is none to be read."""
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
        """Where it listens: to clients, if it is a broker. None where that cannot be read."""
        if self._config is None:
            return None
        endpoints = (*self._config.listener_endpoints(), *self._config.controller_endpoints())
        return self._address_of(endpoints)

    @property
    def roles(self) -> str | None:
        return None if self._config is None else ",".join(self._config.process_roles)

    @property
    def role_set(self) -> Roles:
        """In one order, and as far as they are known."""
        held = {BROKER: self.is_broker, CONTROLLER: self.is_controller}
        return tuple(role for role, is_held in held.items() if is_held)

    @property
    def ports(self) -> list[int]:
        """Where it listens. Failure: that cannot be read."""
        endpoints = (*self.config.listener_endpoints(), *self.config.controller_endpoints())
        return [port for _, _, port in endpoints]

    @staticmethod
    def _address_of(endpoints: Iterable[tuple[str, str, int]]) -> str | None:
        return next((f"{host}:{port}" for _, host, port in endpoints), None)

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none. A number that another process has by now does not count."""
        try:
            pid = int(self._pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.properties) in arguments else None

    def start(self) -> None:
        """Start its process, which outlives this one."""
        self.log.touch()
        self._log_begins = self.log.stat().st_size
        flags = os.O_WRONLY | os.O_APPEND
        self._started = os.posix_spawn(
            sys.executable,
            # -P: a folder may hold a copy.py, or another module of the standard library's name.
            [sys.executable, "-P", "-m", "kwire", "serve", str(self.properties)],
            # Settings from the environment would be those of every node, its id among them.
            {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), flags, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._pid_file.write_text(f"{self._started}\n")

    def await_serving(self, deadline: float) -> None:
        """Wait until it serves, after `start`. Failure."""
        while True:
            ended, status = os.waitpid(self._started, os.WNOHANG)
            with self.log.open("rb") as log:
                log.seek(self._log_begins)
                told = log.read().decode(errors="replace")
            if any(line.startswith(SERVING_PREFIX) for line in told.splitlines()):
                return
            if ended:
                code = os.waitstatus_to_exitcode(status)
                last = next(iter(told.strip().splitlines()[-1:]), f"exit status {code}")
                raise CommandError(f"node {self.node_id} did not start: {last.removeprefix('kwire: ')}")
            if time.monotonic() > deadline:
                raise CommandError(
                    f"node {self.node_id} does not serve yet: {self.log} tells what it waits for"
                )
            time.sleep(POLL_SECONDS)

    def signal(self, number: int) -> bool:
        """Send its process a signal; False where there is none."""
        pid = self.pid
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def await_end(self, deadline: float) -> bool:
        """Wait until there is no process of it; False: there still is one."""
        while (pid := self.pid) is not None:
            with suppress(ChildProcessError):  # of a command before this one, which is not its parent
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return True


class ClusterDirectory:
    """The nodes of one cluster."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._id_file = self.path / "cluster.id"
        self._option = "" if self.path == Path(CLUSTER_DIR).absolute() else f" --dir {quote(path)}"

    def command(self, words: str) -> str:
        """What to type next, about this cluster and no other."""
        return f"'kwire cluster {words}{self._option}'"

    @property
    def exists(self) -> bool:
        return self._id_file.exists()

    def nodes(self) -> list[ClusterNode]:
        """All nodes, by id, controllers first. Failure: there is no cluster."""
        if not self.exists:
            raise CommandError(f"there is no cluster in {self.path}: {self.command('up')} makes one")
        found = [
            ClusterNode(path) for path in self.path.glob("node-*.properties") if NODE.fullmatch(path.stem)
        ]
        return sorted(found, key=lambda node: (node.is_broker, node.node_id))

    def node(self, node_id: int) -> ClusterNode:
        """One node. Failure: there is none of that id."""
        nodes = self.nodes()
        for node in nodes:
            if node.node_id == node_id:
                return node
        known = ", ".join(str(node.node_id) for node in nodes)
        raise CommandError(f"there is no node {node_id} in {self.path}: there are {known}")

    def create(self, wanted: NodeCounts, first_port: int | None, settings: Mapping[str, str]) -> list[int]:
        """Write properties and format directories, of what is not there yet; the ids of that. Failure.

        Brokers listen on `wanted_port` and those behind it, controllers behind them, and what is added later
        behind all that is there.
        """
        for key in NODE_KEYS:
            if key in settings:
                raise UsageError(f"--set {key}: each node has its own")
        for key in CLUSTER_KEYS:
            if key in settings:
                raise UsageError(f"--set {key}: it follows from the nodes of the cluster")
        try:
            load(None, {}, settings)
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
                    f"--port {first_port}: this cluster has its ports, from {min(ports)} on: "
                    f"{self.command('down')} first, or --dir for another one"
                )
        if not missing:
            return []
        self._remove_unfinished()
        port = DEFAULT_PORT if first_port is None else first_port
        if nodes:
            port = 1 + max(each for node in nodes for each in node.ports)
        most = MAX_PORT + 1 - sum(map(len, missing.values()))
        if not 1 <= port <= most:
            raise UsageError(f"--port {port}: expected 1 to {most}, for {len(missing)} nodes")
        cluster_id = self._cluster_id()
        self._write(nodes, missing, port, cluster_id, settings)
        self._finish()
        return list(missing)

    def _cluster_id(self) -> str:
        """That of the cluster, which begins with it. Failure."""
        if self.exists:
            return self._id_file.read_text().strip()
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise CommandError(f"{self.path} is not empty, and not a cluster's: give another --dir")
        cluster_id = uuid_to_text(new_uuid(random.SystemRandom()))
        # From here on 'up' goes on with what is there, and 'down' removes it.
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
        """All of the missing nodes but the names of their properties, which `_finish` gives them. Failure.

        The first controllers are formatted as voters; those that come to them later join by themselves.
        """
        rng = random.SystemRandom()
        at = addresses(missing, port)
        new = {each: f"127.0.0.1:{at[each].controller}" for each in missing if CONTROLLER in missing[each]}
        old = [node for node in nodes if node.is_controller]
        servers = [f"{host}:{port}" for node in old for _, host, port in node.config.controller_endpoints()]
        static = next((node.config.given.get(VOTERS, "") for node in old), "")
        if static and new:
            raise CommandError(
                f"the controller of {self.path} is named in the properties of its nodes, so that no "
                f"other joins it: a cluster that is made now can have more"
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
        """Give their names to the properties of nodes that are formatted; the voters among them last.

        So an 'up' that was cut short before it began with that is begun anew, for nothing has run; and later
        it goes on, for all are formatted that vote together.
        """
        for unfinished in sorted(self.path.glob(f"node-*{UNFINISHED}")):
            if (unfinished.with_suffix("") / META_PROPERTIES).exists():
                unfinished.rename(unfinished.with_suffix(".properties"))

    def remove(self) -> None:
        """Forget the cluster, and all its data; what else is in the folder stays."""
        for node in self.nodes():
            shutil.rmtree(node.data, ignore_errors=True)
            for path in (node.log, node.properties, node.properties.with_suffix(".pid")):
                path.unlink(missing_ok=True)
        self._remove_unfinished()
        self._id_file.unlink()
        with suppress(OSError):  # with files of somebody else's
            self.path.rmdir()

    def _remove_unfinished(self) -> None:
        """Remove what an 'up' left that was cut short."""
        for unfinished in self.path.glob(f"node-*{UNFINISHED}"):
            shutil.rmtree(unfinished.with_suffix(""), ignore_errors=True)
            unfinished.unlink()


def start(nodes: Sequence[ClusterNode]) -> None:
    """Start those that do not run, all at once, and wait until they serve. Failure."""
    idle = [node for node in nodes if node.pid is None]
    faults = [node.config_error for node in idle if node.config_error is not None]
    started = [node for node in idle if node.config_error is None]
    for node in started:
        node.start()
    deadline = time.monotonic() + START_SECONDS
    try:
        for node in started:
            node.await_serving(deadline)
    except CommandError as error:
        faults.append(str(error))
    if faults:
        raise CommandError("; ".join(faults) + describe_running(nodes))


def describe_running(nodes: Sequence[ClusterNode]) -> str:
    """Which of them run, to be told where others do not."""
    running = [str(node.node_id) for node in nodes if node.pid is not None]
    return f"; these run: {', '.join(running)}" if running else ""


def stop(nodes: Sequence[ClusterNode], has_majority: Callable[[], bool]) -> None:
    """Stop nodes in an orderly way, brokers first, which hand over what they lead. Failure: some run on.

    Of nodes that are broker and controller the last have nobody to hand over to, and nobody who lets them go:
    they are asked once more, which ends them at once.
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
            told = ", ".join(str(node.node_id) for node in late)
            raise CommandError(f"still stopping: node {told}; 'kwire cluster kill' ends a node at once")


def _await_ends(nodes: Sequence[ClusterNode], deadline: float) -> list[ClusterNode]:
    """Those of them that run on."""
    return [node for node in nodes if not node.await_end(deadline)]


def kill(nodes: Sequence[ClusterNode]) -> None:
    """End nodes at once, as a crash does."""
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
            beginning=InitialMetadata(
                unserved_feature_levels(), voters=parse_voters(voters, config) if voters else ()
            ),
        )
    except (ConfigError, StorageError, FormatError) as error:
        raise CommandError(str(error)) from error
