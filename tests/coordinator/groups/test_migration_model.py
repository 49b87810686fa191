"""Members of both protocols under every order of events: no partition has two users in one generation.

Consumers of the classic protocol are eager here: they give up all they have before they join. In a classic
group their leader shares the partitions out.
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
from tests.coordinator.groups.test_migration import metadata
from tests.coordinator.scripting import Cluster, Config, Reply

GROUP = "g"
TOPIC = "t"
SESSION_MS = 45_000
ROUNDS_TO_SETTLE = 35
"""Long enough for two sessions: that of a member which is gone begins anew when its group is downgraded."""


@dataclass
class Classic:
    """A consumer of the classic protocol: out, waiting for a join or a sync to end, or in a generation."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joining: Reply | None = None
    syncing: Reply | None = None
    using: set[int] = field(default_factory=set)


@dataclass
class Modern:
    """A consumer of the protocol of KIP-848."""

    instance_id: str | None
    member_id: str
    epoch: int = 0
    using: set[int] = field(default_factory=set)


Client = Classic | Modern


class MigrationModel(RuleBasedStateMachine):
    """Clients of one group, its coordinator, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(Config(group_initial_rebalance_delay_ms=0))
        self.clients: list[Client] = []
        self.ids = 0
        self.count = 0

    # --- the classic protocol

    def join(self, client: Classic) -> None:
        client.using.clear()
        client.generation = -1
        client.syncing = None
        client.joining = self.cluster.join(
            GROUP,
            client.member_id,
            instance=client.instance_id,
            protocols=(("range", metadata(TOPIC)),),
            session_ms=SESSION_MS,
            rebalance_ms=10_000,
            id_first=False,
        )
        self.hear()

    def joined(self, client: Classic, response: JoinGroupResponse) -> None:
        client.joining = None
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            # A client has had its id since MEMBER_ID_REQUIRED, which is left out here.
            client.member_id = response.member_id
        if code:
            return
        client.member_id, client.generation = response.member_id, response.generation_id
        shares: dict[str, bytes] = {}
        for at, member in enumerate(response.members):
            partitions = frozenset(range(at, self.count, len(response.members)))
            target = {self.topic_id: partitions}
            shares[member.member_id] = encode_assignment(target, 1, self.cluster.topics)
        client.syncing = self.cluster.sync(response, shares, instance=client.instance_id)

    def hear(self) -> None:
        """Clients take the answers that have come. One may be what another waits for."""
        heard = True
        while heard:
            heard = False
            for client in self.clients:
                if not isinstance(client, Classic):
                    continue
                if client.joining is not None and not client.joining.pending:
                    self.joined(client, client.joining.value)
                    heard = True
                elif client.syncing is not None and not client.syncing.pending:
                    reply, client.syncing = client.syncing, None
                    heard = True
                    if reply.error == ErrorCode.NONE:
                        found = decode_assignment(reply.value.assignment, self.cluster.topics)
                        client.using = set(found.get(self.topic_id, ()))
                    else:
                        client.generation = -1

    def beat_classic(self, client: Classic) -> None:
        if client.joining is not None or client.syncing is not None:
            return
        if client.generation < 0:
            self.join(client)
            return
        code = self.cluster.service.heartbeat(GROUP, client.generation, client.member_id, client.instance_id)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        if code:
            self.join(client)

    # --- the protocol of KIP-848

    def beat_modern(self, client: Modern, epoch: int | None = None) -> None:
        joins = client.epoch == 0
        reply = Reply()
        owned = [RequestTopicPartitions(topic_id=Uuid(self.topic_id), partitions=sorted(client.using))]
        self.cluster.service.consumer_heartbeat(
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
        self.cluster.host.run_pending()
        self.hear()
        if reply.value.error_code:
            client.epoch = 0
            client.using.clear()
            if reply.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                # The group has no generation yet: here as in Apache Kafka that ends a consumer.
                self.clients.remove(client)
            return
        client.epoch = max(reply.value.member_epoch, 0)
        if reply.value.assignment is not None:
            client.using = {
                partition
                for topic in reply.value.assignment.topic_partitions
                for partition in topic.partitions
            }

    def beat(self, client: Client) -> None:
        if isinstance(client, Classic):
            self.beat_classic(client)
        else:
            self.beat_modern(client)

    # --- rules

    @property
    def topic_id(self) -> bytes:
        topic = self.cluster.topics.by_name(TOPIC)
        assert topic is not None
        return topic.topic_id

    @initialize(count=st.integers(2, 6), first=st.sampled_from(["classic", "modern", "none"]))
    def begin(self, count: int, first: str) -> None:
        self.count = count
        self.cluster.topics.put(TOPIC, count)
        if first != "none":
            self.arrive(first == "classic", None)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(is_classic=st.booleans(), instance_id=st.sampled_from([None, None, "i"]))
    def arrive(self, is_classic: bool, instance_id: str | None) -> None:
        """A client begins; with an instance id it takes the place of another, which is gone."""
        if instance_id is not None:
            for other in [one for one in self.clients if one.instance_id == instance_id]:
                self.clients.remove(other)
                if isinstance(other, Modern) and other.epoch and not is_classic:
                    self.beat_modern(other, epoch=-2)
        self.ids += 1
        client = Classic(instance_id) if is_classic else Modern(instance_id, f"m{self.ids}")
        self.clients.append(client)
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)))

    @rule()
    def all_heartbeats(self) -> None:
        self.cluster.advance(1_000)
        self.hear()
        for client in list(self.clients):
            self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if isinstance(client, Modern):
            if client.epoch:
                self.beat_modern(client, epoch=-1)
        elif client.member_id:
            self.cluster.leave((client.member_id, client.instance_id))
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disappear(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(delay_ms=st.sampled_from([500, 1_000, 4_000, 10_000, SESSION_MS]))
    def wait(self, delay_ms: int) -> None:
        self.cluster.advance(delay_ms)
        self.hear()

    @rule()
    def restart(self) -> None:
        """Whoever waited for an answer gets none, and begins again."""
        for client in self.clients:
            if isinstance(client, Classic) and (client.joining or client.syncing):
                client.joining = client.syncing = None
                client.generation = -1
        self.cluster.restart()

    # --- what must hold

    def members(self) -> list[Client]:
        """The clients that the coordinator takes for what they take themselves for.

        A group that is downgraded and at once upgraded again leaves its classic members behind: they use what
        they had in a generation whose commits do not count any more. So it is in Apache Kafka.
        """
        machine = self.cluster.service._runtime.shard_for(GROUP).machine
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
            and (isinstance(client, Modern) or client.generation == generations[client.member_id])
        ]

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        used: set[int] = set()
        for client in self.members():
            assert used.isdisjoint(client.using), self.clients
            used |= client.using

    def teardown(self) -> None:
        """In quiet times everything is shared out, once somebody comes.

        Until then a downgrade may leave partitions to nobody, as in Apache Kafka. Where a static member
        came back with the classic protocol, those who waited for its partitions are not called to join; a
        rebalance that was begun is forgotten by a restart, and called off by an upgrade.
        """
        self.settle()
        self.arrive(True, None)
        self.settle()
        used = [partition for client in self.clients for partition in client.using]
        assert sorted(used) == list(range(self.count)), self.clients

    def settle(self) -> None:
        """Time passes, and all clients do what they must."""
        for _ in range(ROUNDS_TO_SETTLE):
            self.cluster.advance(4_000)
            self.hear()
            for client in list(self.clients):
                self.beat(client)
                self.cluster.advance(1)
                self.hear()
            self.nobody_shares_a_partition()


TestMigration = MigrationModel.TestCase
TestMigration.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
