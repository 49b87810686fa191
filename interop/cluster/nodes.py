"""Clusters of several nodes of Apache Kafka and kwire, with any roles.

Node ids start at 1, and controllers have the lowest ids. All nodes get the same properties. A node's
directory and log are kept until the cluster is discarded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from interop.brokers import CLUSTER_ID, SMALL_JVM, ApacheKafka, Broker, Kwire, responds_to_api_versions
from interop.cluster.class_data_sharing import shared_class_options
from interop.cluster.log_checks import unexpected_lines
from interop.cluster.logins import BROKERS_LISTENER, Logins, log_in
from interop.cluster.network import Network
from interop.cluster.node_certificates import NodeCertificates
from interop.raw_client import TIMEOUT_S, RawClient
from interop.reference import NODE_KAFKA, TARGET, node_jars, old_kafka_jars
from interop.wire import Fields

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
COMBINED: Final = "broker,controller"
FEATURES: Final = ("--feature", "share.version=0", "--feature", "streams.version=0")
"""kwire does not support these features. If they were enabled, brokers of kwire could not register."""
RELEASE: Final = ("--release-version", "4.3-IV0")
"""The newest release that kwire supports. Newer nodes of Apache Kafka would format with their own."""
WAIT_SECONDS: Final = 60.0
KEPT_LOG_BYTES: Final = 2 << 20
"""If a scenario fails, this many bytes at the end of each node's log are saved: about 10,000 lines."""
SETTINGS: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "log.index.interval.bytes": "4096",
    # This is Kafka's default. Without the delay, the first member of a group may join before it knows its
    # topic, and would then wait for minutes.
    "group.initial.rebalance.delay.ms": "3000",
}
"""Production settings, except for a short broker session, because scenarios often wait for its timeout."""


class SmallKafka(ApacheKafka):
    """Apache Kafka in a small JVM, so that three nodes run on two cores."""

    def jars(self) -> Path:
        return node_jars()

    def java(self, *arguments: str) -> list[str]:
        command = super().java(*SMALL_JVM, *arguments)
        command[1] = "-Xmx384m"
        return command

    def command(self) -> list[str]:
        return self.java(
            *self.archive(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "kafka.Kafka",
            str(self.properties_path),
        )

    def archive(self) -> tuple[str, ...]:
        return shared_class_options()


class OldKafka(SmallKafka):
    """Apache Kafka `OLD_KAFKA`, which has to run in one cluster with newer nodes during an upgrade."""

    name = "old"

    def jars(self) -> Path:
        return old_kafka_jars()

    def archive(self) -> tuple[str, ...]:
        return ()


class Member(NamedTuple):
    """The description of a node: its kind and its roles."""

    kind: type[Broker]
    roles: str = BROKER


KAFKA: Final = (Member(SmallKafka, COMBINED), Member(SmallKafka), Member(SmallKafka))
KWIRE: Final = (Member(Kwire, COMBINED), Member(Kwire), Member(Kwire))
KWIRE_JOINS_KAFKA: Final = (Member(SmallKafka, COMBINED), Member(SmallKafka), Member(Kwire))
KAFKA_JOINS_KWIRE: Final = (Member(Kwire, COMBINED), Member(SmallKafka), Member(Kwire))
CLUSTER_KINDS: Final = {
    "kwire": KWIRE,
    "kwire joins kafka": KWIRE_JOINS_KAFKA,
    "kafka joins kwire": KAFKA_JOINS_KWIRE,
    "kafka": KAFKA,
}


class Cluster:
    """A cluster. Use a `with` block, or call `discard` at the end.

    The voters are in the properties, or with `voters_in_log` in the metadata log (kraft.version 1). With
    `network`, each node has its own IP address. With `logins`, all listeners are SASL_PLAINTEXT. With `tls`,
    nodes connect to each other over TLS with their certificates, and clients use PLAINTEXT.
    """

    def __init__(
        self,
        members: tuple[Member, ...],
        overrides: Mapping[str, str] | None = None,
        *,
        voters_in_log: bool = False,
        first_voters: Collection[int] = (),
        network: Network | None = None,
        logins: Logins | None = None,
        tls: NodeCertificates | None = None,
    ) -> None:
        """Create the nodes. `first_voters` are the ids of the initial voters (default: all controllers)."""
        self.nodes: dict[int, Broker] = {
            node_id: member.kind({**SETTINGS, **(overrides or {}), "node.id": str(node_id)})
            for node_id, member in enumerate(members, 1)
        }
        self.logins = logins
        self.tls = tls
        self._taken_over: list[Broker] = []
        """Nodes that `replace_software` replaced. Their directories are still in use by the new nodes."""
        self._roles = {node_id: member.roles for node_id, member in enumerate(members, 1)}
        if network is not None:
            for node_id, node in self.nodes.items():
                node.host, node.launcher = network.join(node_id)
        self.voters_in_log = voters_in_log
        self._first_voters = first_voters or self.controllers
        quorum = {"controller.quorum.voters": ",".join(map(self._voter, self.controllers))}
        if voters_in_log:
            quorum = {"controller.quorum.bootstrap.servers": self.controller_bootstrap}
        for node_id, node in self.nodes.items():
            listeners = {
                BROKER: f"{BROKERS_LISTENER if logins else 'PLAINTEXT'}://{node.bootstrap}",
                CONTROLLER: f"CONTROLLER://{node.controller_bootstrap}",
            }
            roles = self._roles[node_id].split(",")
            del node.properties["controller.quorum.voters"]
            node.properties |= {
                **quorum,
                "process.roles": self._roles[node_id],
                "listeners": ",".join(listeners[role] for role in roles),
                **(logins.properties() if logins else {}),
            }
            node.properties["advertised.listeners"] = listeners[BROKER]
            if tls is not None:
                node.properties |= tls.properties(node_id, node.properties)
            if BROKER not in roles:
                del node.properties["advertised.listeners"]

    def _voter(self, node_id: int) -> str:
        return f"{node_id}@{self.nodes[node_id].controller_bootstrap}"

    @property
    def controllers(self) -> list[int]:
        return [node_id for node_id, roles in self._roles.items() if CONTROLLER in roles]

    @property
    def brokers(self) -> list[int]:
        return [node_id for node_id, roles in self._roles.items() if BROKER in roles]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(self.nodes[node_id].bootstrap for node_id in self.brokers)

    @property
    def controller_bootstrap(self) -> str:
        return ",".join(self.nodes[each].controller_bootstrap for each in self.controllers)

    def start(
        self,
        *,
        without: Collection[int] = (),
        format_arguments: tuple[str, ...] = FEATURES,
        tools: Mapping[int, type[Broker]] | None = None,
        first: int | None = None,
    ) -> Self:
        """Format and start all nodes except `without`. Return once every started broker is unfenced.

        `first` is a controller that must listen before the other nodes are started.
        `tools` are the programs whose tools format the directories, by node id (default: see `format_node`).
        """
        try:
            self._format(format_arguments, tools or {})
            self._start_all(without, first)
        except BaseException as error:
            self.save_logs(error)
            raise
        return self

    def _format(self, format_arguments: tuple[str, ...], tools: Mapping[int, type[Broker]]) -> None:
        # Any directory ids would do, but all nodes must be formatted with the same ids of the voters.
        voters = ",".join(f"{self._voter(each)}:{each:K<21}Q" for each in self._first_voters)
        if self.logins is not None:
            format_arguments += self.logins.formatting()
        for node_id, node in self.nodes.items():
            quorum: tuple[str, ...] = ()
            if self.voters_in_log and node_id in self._first_voters:
                quorum = ("--initial-controllers", voters)
            elif self.voters_in_log and node_id in self.controllers:
                quorum = ("--no-initial-controllers",)
            format_node(node, *format_arguments, *quorum, tool=tools.get(node_id))

    def _start_all(self, without: Collection[int] = (), first: int | None = None) -> None:
        if first is not None:
            node = self.nodes[first]
            node.start(wait=False)
            wait_until(lambda: responds_to_api_versions(node.controller_port, host=node.host), "no listener")
        nodes = [node for node_id, node in self.nodes.items() if node_id not in without]
        for node in nodes:
            if node.process is None:
                node.start(wait=False)
        for node in nodes:
            node.wait_until_serving(pause_s=0.1)
        self.wait_until_unfenced(*(each for each in self.brokers if each not in without))

    def kill_and_restart_all(self) -> None:
        """Kill all nodes with SIGKILL, and then start all of them again."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
        for node in self.nodes.values():
            node.kill()
        self._start_all()

    def replace_software(self, node_id: int, kind: type[Broker]) -> None:
        """Replace the program of a stopped node. The new program gets the directory, properties and ports."""
        before = self.nodes[node_id]
        assert before.process is None, f"node {node_id} still runs"
        after = kind(directory=before.directory)
        after.port, after.controller_port = before.port, before.controller_port
        after.host, after.launcher = before.host, before.launcher
        after.properties = before.properties
        self.nodes[node_id] = after
        self._taken_over.append(before)

    def start_node(self, node_id: int) -> None:
        """Start a node and wait until its broker is unfenced."""
        self.nodes[node_id].start()
        if node_id in self.brokers:
            self.wait_until_unfenced(node_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.save_logs(error)
        self.discard()

    def save_logs(self, error: BaseException) -> None:
        """Save the end of each node's log in a directory, and add the path of the directory to the error."""
        title = os.environ.get("PYTEST_CURRENT_TEST", "cluster").partition(" (")[0]
        home = TARGET / "failed" / re.sub(r"[^\w.-]+", "-", title.rpartition("/")[2]).strip("-")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for node_id, node in self.nodes.items():
            if node.log_path.exists():
                with node.log_path.open("rb") as log:
                    log.seek(max(0, node.log_path.stat().st_size - KEPT_LOG_BYTES))
                    (home / f"node-{node_id}-{node.name}.log").write_bytes(log.read())
        error.add_note(f"The logs of the nodes are in {home}.")

    def discard(self) -> None:
        for node in (*reversed(self.nodes.values()), *self._taken_over):
            node.discard()

    def make_topic(self, name: str, assigned: list[list[int]], **configs: str) -> None:
        """Create a topic and wait until all its replicas are in sync.

        `assigned` contains the replicas of each partition. The first replica is the preferred leader.
        """
        self.create_topic_through(self.brokers[0], name, assigned, configs)

    def create_topic_through(
        self,
        queried_id: int,
        name: str,
        assigned: list[list[int]],
        configs: Mapping[str, str],
        *,
        expected: Collection[int] = (0,),
    ) -> None:
        """Create a topic through the broker `queried_id`, and wait until all its replicas are in sync.

        `assigned` has the form that `make_topic` describes. `expected` are the accepted error codes.
        """
        topic = {
            "Name": name,
            "NumPartitions": -1,
            "ReplicationFactor": -1,
            "Assignments": [
                {"PartitionIndex": index, "BrokerIds": replicas} for index, replicas in enumerate(assigned)
            ],
            "Configs": [{"Name": key, "Value": value} for key, value in configs.items()],
        }
        with self.connect(self.nodes[queried_id].bootstrap) as client:
            # Apache Kafka's broker may wait for a paused controller until the request times out.
            client.socket.settimeout(WAIT_SECONDS)
            made = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=60_000, validateOnly=False)
        assert made["Topics"][0]["ErrorCode"] in expected, made
        self.wait_until_in_sync(name, len(assigned))

    def elect_preferred_leaders(self) -> None:
        with self.connect(self.nodes[self.brokers[0]].bootstrap) as client:
            response = client.call("ElectLeaders", 2, ElectionType=0, TopicPartitions=None, TimeoutMs=30_000)
        assert response["ErrorCode"] == 0, response

    # --- Queries

    @contextmanager
    def connect(self, address: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[RawClient]:
        """Connect to this address, and authenticate if the cluster uses SASL."""
        with RawClient(address) as client:
            client.socket.settimeout(timeout_s)
            if self.tls is not None and address in self.controller_bootstrap.split(","):
                client.socket = self.tls.wrap(client.socket)
            if self.logins is not None:
                log_in(client, self.logins.client)
            yield client

    def metadata(self, *topics: str, queried_id: int | None = None, everything: bool = False) -> Fields:
        """Return the Metadata response for these topics, or for all topics with `everything`.

        `queried_id` is the broker to query (default: the first that responds). Raises ConnectionError if no
        broker responds.
        """
        wanted = [{"TopicId": bytes(16), "Name": name} for name in topics]
        error: Exception | None = None
        for node_id in [queried_id] if queried_id is not None else self.brokers:
            if not self.nodes[node_id].is_running:
                continue
            try:
                with self.connect(self.nodes[node_id].bootstrap, timeout_s=3.0) as client:
                    return client.call(
                        "Metadata",
                        12,
                        Topics=None if everything else wanted,
                        AllowAutoTopicCreation=False,
                        IncludeTopicAuthorizedOperations=False,
                    )
            except (OSError, EOFError) as raised:
                error = raised
        raise ConnectionError("no broker answers") from error

    def partition(self, topic: str, index: int = 0, *, queried_id: int | None = None) -> Fields:
        """Return a partition in the Metadata response: LeaderId, LeaderEpoch, ReplicaNodes and IsrNodes."""
        [found] = self.metadata(topic, queried_id=queried_id)["Topics"]
        for partition in found["Partitions"]:
            if partition["PartitionIndex"] == index:
                partition_found: Fields = partition
                return partition_found
        raise LookupError(f"{topic}-{index} is not there (error {found['ErrorCode']})")

    def all_partitions(self) -> dict[str, int]:
        """Return the number of partitions of every topic, including internal topics."""
        found = self.metadata(everything=True)["Topics"]
        return {topic["Name"]: len(topic["Partitions"]) for topic in found}

    def leader(self, topic: str, index: int = 0) -> int:
        leader_id: int = self.partition(topic, index)["LeaderId"]
        return leader_id

    def quorum(self, queried_id: int) -> Fields:
        """Return the partition in a voter's DescribeQuorum response: LeaderId, HighWatermark and others.

        Raises LookupError if the voter knows no active controller.
        """
        partitions = [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
        with self.connect(self.nodes[queried_id].controller_bootstrap, timeout_s=3.0) as client:
            answer = client.call("DescribeQuorum", 2, Topics=partitions)
        found: Fields = answer["Topics"][0]["Partitions"][0]
        if found["ErrorCode"] or found["LeaderId"] < 0:
            raise LookupError(f"node {queried_id} knows of no active controller")
        return found

    def active_controller(self, *, than: int = 0) -> int:
        """Wait until a controller other than `than` is active, and return its id."""
        found: list[int] = []

        def is_so() -> bool:
            for queried_id in self.controllers:
                if queried_id == than or not self.nodes[queried_id].is_running:
                    continue
                with suppress(OSError, EOFError, LookupError):
                    found[:] = [self.quorum(queried_id)["LeaderId"]]
                    if found != [than]:
                        return True
            return False

        wait_until(is_so, f"there is no active controller but {than}")
        return found[0]

    def wait_until_unfenced(self, *broker_ids: int) -> None:
        """Wait until the metadata of these brokers, and of the first broker, contains all of `broker_ids`."""

        def is_so() -> bool:
            return all(
                set(broker_ids)
                <= {each["NodeId"] for each in self.metadata(queried_id=queried_id)["Brokers"]}
                for queried_id in {*broker_ids, *self.brokers[:1]}
                if self.nodes[queried_id].is_running
            )

        wait_until(is_so, f"brokers {broker_ids} are not all there")

    def wait_for_another_leader(self, topic: str, index: int, *, than: int) -> None:
        wait_until(
            lambda: self.leader(topic, index) not in (than, -1), f"{topic}-{index} gets no other leader"
        )

    def wait_until_in_sync(self, topic: str, partitions: int = 1) -> None:
        """Wait until, in the metadata of every running broker, all replicas of a topic are in sync."""

        def is_so() -> bool:
            for queried_id in self.brokers:
                if not self.nodes[queried_id].is_running:
                    continue
                for index in range(partitions):
                    found = self.partition(topic, index, queried_id=queried_id)
                    if found["LeaderId"] < 0 or set(found["IsrNodes"]) != set(found["ReplicaNodes"]):
                        return False
            return True

        wait_until(is_so, f"the replicas of {topic} are not all in sync")

    def wait_until_out_of_sync(self, node_id: int) -> None:
        """Wait until the node is in no ISR. Otherwise a replica that lost its data could become leader."""
        for topic, partitions in self.all_partitions().items():
            for index in range(partitions):
                wait_until(
                    lambda topic=topic, index=index: (  # type: ignore[misc]
                        node_id not in self.partition(topic, index)["IsrNodes"]
                    ),
                    f"{node_id} is still in sync of {topic}-{index}",
                )

    def wait_until_all_in_sync(self) -> None:
        """Wait until all replicas of every topic are in sync, including internal topics."""
        for topic, partitions in self.all_partitions().items():
            self.wait_until_in_sync(topic, partitions)

    def segments(self, node_id: int, topic: str, index: int = 0) -> dict[str, bytes]:
        """Return the content of each segment file (`*.log`) of a replica, by file name."""
        homes = [
            Path(each) / f"{topic}-{index}" for each in self.nodes[node_id].properties["log.dirs"].split(",")
        ]
        return {path.name: path.read_bytes() for home in homes for path in sorted(home.glob("*.log"))}

    def wait_until_replicas_equal(self, topic: str, partitions: int = 1) -> None:
        """Wait until all replicas have the same segment files, byte for byte."""
        for index in range(partitions):
            replicas = self.partition(topic, index)["ReplicaNodes"]
            wait_until(
                lambda index=index, replicas=replicas: all(  # type: ignore[misc]
                    self.segments(each, topic, index) == self.segments(replicas[0], topic, index)
                    for each in replicas
                ),
                f"the replicas of {topic}-{index} on {replicas} are not the same",
            )

    def wait_until_replica_ends_equal(self, topic: str, partitions: int) -> None:
        """Wait until all replicas of a topic end with the same records, although old records are deleted.

        Replicas delete segments at different times, so each log must be a suffix of the longest log.
        """

        def is_so() -> bool:
            for index in range(partitions):
                replicas = self.partition(topic, index)["ReplicaNodes"]
                logs = [b"".join(self.segments(each, topic, index).values()) for each in replicas]
                if not all(max(logs, key=len).endswith(log) for log in logs):
                    return False
            return True

        wait_until(is_so, f"the replicas of {topic} do not end the same")

    def wait_until_all_replicas_equal(self) -> None:
        """Wait until all replicas of every topic, including internal topics, are in sync and equal."""
        self.wait_until_all_in_sync()
        for topic, partitions in self.all_partitions().items():
            self.wait_until_replicas_equal(topic, partitions)

    def check_logs(self, also: str = "(?!)", of: Collection[int] = ()) -> None:
        """Raise AssertionError if a node in `of` logged an unexpected line. By default, check all nodes.

        `also` is a pattern of further expected lines: see `unexpected_lines`.
        """
        found = [
            f"node {node_id}: {line}"
            for node_id in of or self.nodes
            for line in unexpected_lines(self.nodes[node_id], also)
        ]
        assert not found, "\n" + "\n".join(found)


def format_node(node: Broker, *arguments: str, tool: type[Broker] | None = None) -> Broker:
    """Format the node's directory for `RELEASE`, unless the arguments name another release.

    `tool` is the program whose tool formats the directory. The default is the node's own program, except that
    Apache Kafka's nodes in another version than the reference format kwire's directories, too.
    """
    node.write_properties()
    if tool is None and NODE_KAFKA and isinstance(node, Kwire):
        tool = SmallKafka
    program = node if tool is None else tool(directory=node.directory)
    if isinstance(program, ApacheKafka):
        command = program.java("kafka.tools.StorageTool")
    else:
        command = program.command()[: -len(("serve", "properties"))]
    release = () if RELEASE[0] in arguments else RELEASE
    command += ["format", "-t", CLUSTER_ID, "-c", str(node.properties_path), *release, *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=program.environment
    )
    if done.returncode:
        raise RuntimeError(f"{node.name} is not formatted:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return node


def wait_until(condition: Callable[[], object], description: object, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition is true. A condition that raises LookupError or OSError counts as false.

    Raises AssertionError with `description` at the timeout.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(LookupError, OSError):
            if condition():
                return
        assert time.monotonic() < deadline, description
        time.sleep(0.1)
