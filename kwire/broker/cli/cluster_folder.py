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
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kwire.broker.cli.settings import Failure
from kwire.broker.config import ConfigError, load
from kwire.broker.config.properties import ENVIRONMENT_PREFIX
from kwire.broker.controller.topics import new_uuid
from kwire.broker.node.format import Beginning, FormatError, format_directories
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.wire.primitives import uuid_to_text

CONTROLLER_ID: Final = 100
MAX_BROKERS: Final = 32
MAX_REPLICAS: Final = 3
MAX_PORT: Final = 65_535
START_SECONDS: Final = 60
STOP_SECONDS: Final = 90
LOOK_SECONDS: Final = 0.02
UNFINISHED: Final = ".unfinished"
"""What the properties of a node end with while its directories are not formatted."""
OF_A_NODE: Final = ("broker.id", "listeners", "log.dir", "log.dirs", "node.id", "process.roles")
"""What each node has for itself."""
NOT_SERVED: Final = {"share.version": 0, "streams.version": 0}
"""Features that Kafka's releases begin with and kwire's brokers do not serve: such a cluster refuses them."""
SERVING: Final = "kwire serves on "


class ClusterNode:
    """One node of a cluster's folder."""

    def __init__(self, properties: Path) -> None:
        self.properties = properties
        self.node_id = int(properties.stem.removeprefix("node-"))
        self.data, self.log, self._pid_file = (
            properties.with_suffix(suffix) for suffix in ("", ".log", ".pid")
        )
        try:
            self.config = load(str(properties), {}, {})
        except ConfigError as error:
            raise Failure(f"{properties}: {error}") from error
        self._started = self._log_begins = 0

    @property
    def is_broker(self) -> bool:
        return self._address_of(self.config.listener_endpoints()) is not None

    @property
    def address(self) -> str:
        """Where it listens: to clients, if it is a broker."""
        endpoints = (*self.config.listener_endpoints(), *self.config.controller_endpoints())
        return self._address_of(endpoints) or ""

    @property
    def roles(self) -> str:
        return ",".join(self.config.process_roles)

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
            if any(line.startswith(SERVING) for line in told.splitlines()):
                return
            if ended:
                code = os.waitstatus_to_exitcode(status)
                last = next(iter(told.strip().splitlines()[-1:]), f"exit status {code}")
                raise Failure(f"node {self.node_id} did not start: {last.removeprefix('kwire: ')}")
            if time.monotonic() > deadline:
                raise Failure(f"node {self.node_id} does not serve yet: {self.log} tells what it waits for")
            time.sleep(LOOK_SECONDS)

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
            time.sleep(LOOK_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return True


class ClusterFolder:
    """The nodes of one cluster."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._id_file = self.path / "cluster.id"

    @property
    def exists(self) -> bool:
        return self._id_file.exists()

    def nodes(self) -> list[ClusterNode]:
        """All nodes, by id, controllers first. Failure: there is no cluster."""
        if not self.exists:
            raise Failure(f"there is no cluster in {self.path}: 'kwire cluster up' makes one")
        found = [ClusterNode(path) for path in self.path.glob("node-*.properties")]
        return sorted(found, key=lambda node: (node.is_broker, node.node_id))

    def node(self, node_id: int) -> ClusterNode:
        """One node. Failure: there is none of that id."""
        nodes = self.nodes()
        for node in nodes:
            if node.node_id == node_id:
                return node
        known = ", ".join(str(node.node_id) for node in nodes)
        raise Failure(f"there is no node {node_id} in {self.path}: there are {known}")

    def make(self, brokers: int, port: int, settings: Mapping[str, str]) -> None:
        """Write properties and format directories, of what is not there yet. Failure.

        Broker N listens on `port` + N - 1, the controller on the port behind the last of the first brokers,
        and those that are added later on the ports behind it.
        """
        if not 1 <= brokers <= MAX_BROKERS:
            raise Failure(f"--brokers {brokers}: expected 1 to {MAX_BROKERS}")
        for key in OF_A_NODE:
            if key in settings:
                raise Failure(f"--set {key}: each node has its own")
        try:
            load(None, {}, settings)
        except ConfigError as error:
            raise Failure(str(error)) from error
        rng = random.SystemRandom()
        known = {node.node_id: node for node in self.nodes()} if self.exists else {}
        if len([node for node in known.values() if node.is_broker]) > brokers:
            raise Failure(f"the cluster in {self.path} has more than {brokers} brokers already")
        if 1 in known:
            port = known[1].config.listener_endpoints()[0][2]
        if not 1 <= port <= MAX_PORT - brokers:
            raise Failure(f"--port {port}: expected 1 to {MAX_PORT - brokers}, for {brokers} brokers")
        if self.exists:
            cluster_id = self._id_file.read_text().strip()
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise Failure(f"{self.path} is not empty, and not a cluster's: give another --dir")
            cluster_id = uuid_to_text(new_uuid(rng))
            # From here on 'up' goes on with what is there, and 'down' removes it.
            self._id_file.write_text(f"{cluster_id}\n")
        controller_port = port + brokers
        if CONTROLLER_ID in known:
            controller_port = known[CONTROLLER_ID].config.controller_endpoints()[0][2]
        for node_id in (CONTROLLER_ID, *range(1, brokers + 1)):
            if node_id not in known:
                data = self.path / f"node-{node_id}"
                shutil.rmtree(data, ignore_errors=True)  # of an 'up' that was cut short
                own_port = port + node_id - 1
                if node_id == CONTROLLER_ID:
                    own_port = controller_port
                elif port <= controller_port <= own_port:
                    own_port += 1
                unfinished = data.with_suffix(UNFINISHED)
                unfinished.write_text(
                    _properties(node_id, own_port, controller_port, brokers, data, settings)
                )
                _format(unfinished, rng, cluster_id)
                unfinished.rename(data.with_suffix(".properties"))

    def remove(self) -> None:
        """Forget the cluster, and all its data; what else is in the folder stays."""
        for node in self.nodes():
            shutil.rmtree(node.data, ignore_errors=True)
            for path in (node.log, node.properties, node.properties.with_suffix(".pid")):
                path.unlink(missing_ok=True)
        for unfinished in self.path.glob(f"node-*{UNFINISHED}"):
            shutil.rmtree(unfinished.with_suffix(""), ignore_errors=True)
            unfinished.unlink()
        self._id_file.unlink()
        with suppress(OSError):  # with files of somebody else's
            self.path.rmdir()


def start(nodes: Sequence[ClusterNode]) -> None:
    """Start those that do not run, all at once, and wait until they serve. Failure."""
    idle = [node for node in nodes if node.pid is None]
    for node in idle:
        node.start()
    deadline = time.monotonic() + START_SECONDS
    for node in idle:
        node.await_serving(deadline)


def stop(nodes: Sequence[ClusterNode]) -> None:
    """Stop nodes in an orderly way, brokers first, which hand over what they lead. Failure: some run on."""
    for group in ([one for one in nodes if one.is_broker], [one for one in nodes if not one.is_broker]):
        running = [node for node in group if node.signal(signal.SIGTERM)]
        deadline = time.monotonic() + STOP_SECONDS
        late = [str(node.node_id) for node in running if not node.await_end(deadline)]
        if late:
            raise Failure(f"still stopping: node {', '.join(late)}; 'kwire cluster kill' ends a node at once")


def kill(nodes: Sequence[ClusterNode]) -> None:
    """End nodes at once, as a crash does."""
    killed = [node for node in nodes if node.signal(signal.SIGKILL)]
    deadline = time.monotonic() + STOP_SECONDS
    for node in killed:
        node.await_end(deadline)


def _properties(
    node_id: int, port: int, controller_port: int, brokers: int, data: Path, settings: Mapping[str, str]
) -> str:
    replicas = min(MAX_REPLICAS, brokers)
    lines = {
        "process.roles": "controller" if node_id == CONTROLLER_ID else "broker",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "group.initial.rebalance.delay.ms": "0",
    }
    listener = "CONTROLLER" if node_id == CONTROLLER_ID else "PLAINTEXT"
    lines["listeners"] = f"{listener}://127.0.0.1:{port}"
    return "".join(f"{key}={value}\n" for key, value in {**lines, **settings}.items())


def _format(properties: Path, rng: random.Random, cluster_id: str) -> None:
    try:
        format_directories(
            load(str(properties), {}, {}),
            RealDisk(),
            rng,
            int(time.time() * 1000),
            cluster_id=cluster_id,
            beginning=Beginning(NOT_SERVED),
        )
    except (ConfigError, StorageError, FormatError) as error:
        raise Failure(str(error)) from error
