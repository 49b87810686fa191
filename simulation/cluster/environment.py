"""The environment of a cluster simulation: the topics, the simulated clients and their oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kwire.broker.replication.roles import Role
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.network import NetworkFaults
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.cluster_invariants import describe_partition
from kwire.testing.simulated.environment import MAX_START_MS, ClusterSpec, SimulatedEnvironment
from kwire.testing.simulated.nodes import address_of
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.violation import Violation
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from simulation.cluster.client_oracle import ClientOracle
from simulation.cluster.simulated_client import SimulatedClient
from simulation.cluster.unclean_elections import UncleanElectionInvariants

C = TypeVar("C", bound=SimulatedClient)

CREATE_TOPICS_VERSION: Final = 7
MAX_PARTITIONS: Final = 3


class ClusterEnvironment(SimulatedEnvironment):
    """A simulated cluster with topics, and with clients that report to an oracle."""

    def __init__(
        self, rng: random.Random, spec: ClusterSpec, faults: NetworkFaults, topics: dict[str, int]
    ) -> None:
        """Create the environment. `topics` maps each topic that `create_topics` creates to a partition count.

        `faults` are the faults of the network.
        """
        self.clients: list[SimulatedClient] = []
        self.topics = topics
        self.partitions = [
            TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)
        ]
        self._possible_partitions = [
            TopicPartition(topic, index) for topic in topics for index in range(MAX_PARTITIONS)
        ]
        """All partitions that exist or may exist later, when topics grow."""
        self.oracle = ClientOracle(self._led_epoch)
        super().__init__(rng, spec, faults, self.oracle)

    def _new_invariants(self, oracle: Oracle) -> UncleanElectionInvariants:
        invariants = UncleanElectionInvariants(self.nodes, oracle, self.spec.min_insync_replicas, self.note)
        invariants.partitions[:0] = self._possible_partitions
        if self.spec.unclean_elections:
            invariants.unclean_topics = self.topics
        return invariants

    def _check(self) -> None:
        super()._check()
        for topic_partition in self._possible_partitions:
            if (
                topic_partition not in self.partitions
                and self.invariants.partition(topic_partition) is not None
            ):
                self.partitions.append(topic_partition)

    def _led_epoch(self, topic_partition: TopicPartition, address: PeerAddress) -> int | None:
        """Return the leader epoch in which the broker at an address leads a partition.

        Returns None if the broker is not the leader, or if the broker's leader epoch is out of date.
        """
        known = self.invariants.partition(topic_partition)
        node = next((each for each in self.nodes.values() if address_of(each.node_id) == address), None)
        if known is None or node is None or known.leader != node.node_id or not node.is_running:
            return None
        partition = node.node.replica_manager.get(*topic_partition)
        if partition is None or partition.role is not Role.LEADER:
            return None
        return known.leader_epoch if partition.leader_epoch == known.leader_epoch else None

    def log_state(self) -> None:
        """Add the state of all nodes and partitions to the transcript."""
        image = self.invariants.image
        for node in self.nodes.values():
            state = "paused" if node.host.is_paused else "up" if node.is_running else "down"
            known = image.brokers.get(node.node_id)
            fenced = "" if known is None else ", fenced" if known.fenced else ", unfenced"
            self.note(f"= {node.name} is {state}{fenced}")
        for topic_partition in self.invariants.partitions:
            known_partition = self.invariants.partition(topic_partition)
            if known_partition is None:
                continue
            self.note(
                f"= {topic_partition}: {describe_partition(known_partition)}, "
                f"committed up to offset {self.oracle.committed_in(topic_partition).end}"
            )
            for node in self.nodes.values():
                partition = (
                    node.node.replica_manager.get(*topic_partition)
                    if node.is_broker and node.is_running
                    else None
                )
                if partition is not None:
                    log = partition.log
                    self.note(
                        f"=   {node.name}: {partition.role.value} in leader epoch {partition.leader_epoch}, "
                        f"offsets {log.log_start_offset} to {log.log_end_offset}, "
                        f"high watermark {log.high_watermark}"
                    )

    def add_client(self, kind: Callable[..., C], name: str, **more: Any) -> C:
        """Create a client of class `kind` and start it. `more` are further arguments of the class."""
        client = kind(
            name,
            self.network,
            {node_id: address_of(node_id) for node_id in self.spec.brokers},
            list(self.topics),
            random.Random(self.rng.getrandbits(64)),
            self.note,
            **more,
        )
        self.clients.append(client)
        client.start()
        return client

    def create_topics(self) -> None:
        """Wait until all brokers are unfenced, and create the topics.

        Raises Violation after a timeout, or if a topic cannot be created.
        """
        self.wait_for_brokers()
        unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=self.spec.replicas,
                configs=[unclean] if self.spec.unclean_elections else [],
            )
            for name, count in self.topics.items()
        ]
        responses: list[Any] = []
        accepted = {ErrorCode.NONE}

        def are_created() -> bool:
            if responses and isinstance(responses[-1], PeerUnreachable):
                # The broker does not know yet that it is unfenced, or the response was lost.
                accepted.add(ErrorCode.TOPIC_ALREADY_EXISTS)
                send()
            return bool(responses) and not isinstance(responses[-1], PeerUnreachable)

        def send() -> None:
            responses.clear()
            connection = self.network.connect(address_of(self.spec.brokers[0]), "operator")

            def on_response(response: Any) -> None:
                responses.append(response)
                connection.close()

            connection.send(CREATE_TOPICS_VERSION, CreateTopicsRequest(topics=topics), on_response)

        send()
        self.advance_until(are_created, MAX_START_MS, lambda: "topics are not created")
        for topic in responses[0].topics:
            if topic.error_code not in accepted:
                raise Violation(f"{topic.name} is not created: {topic.error_code} {topic.error_message}")
