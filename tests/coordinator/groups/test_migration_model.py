"""A model test of mixed groups: no partition has two users in one generation under any order of events.

Classic consumers use the eager protocol: they revoke all partitions before they join. In a classic group, the
leader assigns the partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kwire.coordinator.groups.consumer.consumer_protocol import decode_assignment, encode_assignment
from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.primitives import Uuid
from tests.coordinator.coordinator_harness import Config, CoordinatorHarness, Reply
from tests.coordinator.groups.test_migration import metadata

GROUP = "g"
TOPIC = "t"
SESSION_MS = 45_000
ROUNDS_TO_SETTLE = 35
"""Long enough for two session timeouts: a downgrade restarts the session of a lost member."""


@dataclass
class ClassicClient:
    """A consumer of the classic protocol: outside the group, joining, syncing or in a generation."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joining: Reply | None = None
    syncing: Reply | None = None
    using: set[int] = field(default_factory=set)


@dataclass
class ConsumerClient:
    """A consumer of the consumer protocol (KIP-848)."""

    instance_id: str | None
    member_id: str
    epoch: int = 0
    using: set[int] = field(default_factory=set)


Client = ClassicClient | ConsumerClient


class MigrationModel(RuleBasedStateMachine):
    """Random events of the clients of one group, its coordinator and time."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = CoordinatorHarness(Config(group_initial_rebalance_delay_ms=0))
        self.clients: list[Client] = []
        self.ids = 0
        self.partition_count = 0

    # --- the classic protocol

    def join(self, client: ClassicClient) -> None:
        client.using.clear()
        client.generation = -1
        client.syncing = None
        client.joining = self.harness.join(
            GROUP,
            client.member_id,
            instance=client.instance_id,
            protocols=(("range", metadata(TOPIC)),),
            session_ms=SESSION_MS,
            rebalance_ms=10_000,
            id_first=False,
        )
        self.receive_responses()

    def on_joined(self, client: ClassicClient, response: JoinGroupResponse) -> None:
        client.joining = None
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            # A real client has its id from MEMBER_ID_REQUIRED, which is skipped here.
            client.member_id = response.member_id
        if code:
            return
        client.member_id, client.generation = response.member_id, response.generation_id
        assignments: dict[str, bytes] = {}
        for at, member in enumerate(response.members):
            partitions = frozenset(range(at, self.partition_count, len(response.members)))
            target = {self.topic_id: partitions}
            assignments[member.member_id] = encode_assignment(target, 1, self.harness.topics)
        client.syncing = self.harness.sync(response, assignments, instance=client.instance_id)

    def receive_responses(self) -> None:
        """Process all responses, including those that processing one makes available."""
        received = True
        while received:
            received = False
            for client in self.clients:
                if not isinstance(client, ClassicClient):
                    continue
                if client.joining is not None and not client.joining.pending:
                    self.on_joined(client, client.joining.value)
                    received = True
                elif client.syncing is not None and not client.syncing.pending:
                    reply, client.syncing = client.syncing, None
                    received = True
                    if reply.error == ErrorCode.NONE:
                        found = decode_assignment(reply.value.assignment, self.harness.topics)
                        client.using = set(found.get(self.topic_id, ()))
                    else:
                        client.generation = -1

    def send_classic_heartbeat(self, client: ClassicClient) -> None:
        if client.joining is not None or client.syncing is not None:
            return
        if client.generation < 0:
            self.join(client)
            return
        code = self.harness.service.heartbeat(GROUP, client.generation, client.member_id, client.instance_id)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        if code:
            self.join(client)

    # --- the consumer protocol

    def send_consumer_heartbeat(self, client: ConsumerClient, epoch: int | None = None) -> None:
        joins = client.epoch == 0
        reply = Reply()
        owned = [RequestTopicPartitions(topic_id=Uuid(self.topic_id), partitions=sorted(client.using))]
        self.harness.service.consumer_heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=client.member_id,
                instance_id=client.instance_id,
                member_epoch=client.epoch if epoch is None else epoch,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[TOPIC],
                topic_partitions=owned if client.using and not joins else [],
            ),
            ClientIdentity("c", "/h"),
            1,
            reply,
        )
        self.harness.host.run_pending()
        self.receive_responses()
        if reply.value.error_code:
            client.epoch = 0
            client.using.clear()
            if reply.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                # The group has no generation yet. As in Apache Kafka, this error ends the consumer.
                self.clients.remove(client)
            return
        client.epoch = max(reply.value.member_epoch, 0)
        if reply.value.assignment is not None:
            client.using = {
                partition
                for topic in reply.value.assignment.topic_partitions
                for partition in topic.partitions
            }

    def send_heartbeat(self, client: Client) -> None:
        if isinstance(client, ClassicClient):
            self.send_classic_heartbeat(client)
        else:
            self.send_consumer_heartbeat(client)

    # --- rules

    @property
    def topic_id(self) -> bytes:
        topic = self.harness.topics.by_name(TOPIC)
        assert topic is not None
        return topic.topic_id

    @initialize(count=st.integers(2, 6), first=st.sampled_from(["classic", "modern", "none"]))
    def create_topic_and_first_client(self, count: int, first: str) -> None:
        self.partition_count = count
        self.harness.topics.put(TOPIC, count)
        if first != "none":
            self.add_client(first == "classic", None)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(is_classic=st.booleans(), instance_id=st.sampled_from([None, None, "i"]))
    def add_client(self, is_classic: bool, instance_id: str | None) -> None:
        """Add a client; it replaces the client with the same instance id."""
        if instance_id is not None:
            for other in [one for one in self.clients if one.instance_id == instance_id]:
                self.clients.remove(other)
                if isinstance(other, ConsumerClient) and other.epoch and not is_classic:
                    self.send_consumer_heartbeat(other, epoch=-2)
        self.ids += 1
        client = ClassicClient(instance_id) if is_classic else ConsumerClient(instance_id, f"m{self.ids}")
        self.clients.append(client)
        self.send_heartbeat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.send_heartbeat(data.draw(st.sampled_from(self.clients)))

    @rule()
    def all_heartbeats(self) -> None:
        self.harness.advance(1_000)
        self.receive_responses()
        for client in list(self.clients):
            self.send_heartbeat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if isinstance(client, ConsumerClient):
            if client.epoch:
                self.send_consumer_heartbeat(client, epoch=-1)
        elif client.member_id:
            self.harness.leave((client.member_id, client.instance_id))
        self.receive_responses()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disappear(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(delay_ms=st.sampled_from([500, 1_000, 4_000, 10_000, SESSION_MS]))
    def wait(self, delay_ms: int) -> None:
        self.harness.advance(delay_ms)
        self.receive_responses()

    @rule()
    def restart(self) -> None:
        """Restart the coordinator; pending requests of clients get no response."""
        for client in self.clients:
            if isinstance(client, ClassicClient) and (client.joining or client.syncing):
                client.joining = client.syncing = None
                client.generation = -1
        self.harness.restart()

    # --- invariants

    def members(self) -> list[Client]:
        """Return the clients whose generation or epoch is current in the coordinator.

        If a group is downgraded and at once upgraded again, its classic members keep using the partitions of
        an old generation, whose commits are refused. Apache Kafka does the same.
        """
        machine = self.harness.service.shard_for(GROUP).machine
        consumer, classic = machine.consumer.groups.get(GROUP), machine.classic.groups.get(GROUP)
        assert consumer is None or classic is None
        generations: dict[str, int] = {}
        if consumer is not None:
            generations = {member.id: member.epoch for member in consumer.members.values()}
        elif classic is not None:
            generations = dict.fromkeys(classic.members, classic.generation)
        return [
            client
            for client in self.clients
            if client.member_id in generations
            and (isinstance(client, ConsumerClient) or client.generation == generations[client.member_id])
        ]

    @invariant()
    def each_partition_has_one_user(self) -> None:
        used: set[int] = set()
        for client in self.members():
            assert used.isdisjoint(client.using), self.clients
            used |= client.using

    def teardown(self) -> None:
        """After another join and without further events, all partitions are assigned.

        Until then a downgrade may leave partitions without an owner, as in Apache Kafka. If a static member
        returns with the classic protocol, members that wait for its partitions are not asked to rejoin. A
        restart forgets a rebalance in progress, and an upgrade cancels it.
        """
        self.settle()
        self.add_client(True, None)
        self.settle()
        used = [partition for client in self.clients for partition in client.using]
        assert sorted(used) == list(range(self.partition_count)), self.clients

    def settle(self) -> None:
        """Advance time while all clients send their next request."""
        for _ in range(ROUNDS_TO_SETTLE):
            self.harness.advance(4_000)
            self.receive_responses()
            for client in list(self.clients):
                self.send_heartbeat(client)
                self.harness.advance(1)
                self.receive_responses()
            self.each_partition_has_one_user()


TestMigration = MigrationModel.TestCase
TestMigration.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
