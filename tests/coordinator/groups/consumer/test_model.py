"""Consumer groups under every order of events: whatever happens, no partition has two users.

Clients here are as KIP-848 wants them. They use what they were given until they have given it up, hear of
nothing while an answer is lost, and abandon everything when they are fenced. One that is cut off goes on
using what it has, but once its session is over it is no member, and nothing that it commits counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kwire.coordinator.groups.consumer.group import NO_EPOCH, ConsumerGroup
from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from kwire.wire.primitives import Uuid
from tests.coordinator.scripting import Cluster, Config, Reply

GROUP = "g"
TOPICS = ("t", "u", "v")
REBALANCE_TIMEOUT_MS = 10_000
SESSION_MS = 45_000
ROUNDS_TO_SETTLE = 20

Place = tuple[bytes, int]

subscriptions = st.sampled_from(["t", "t", "tu", "tu", "u", "tuv", "v", ""]).map(frozenset)
seldom = st.integers(0, 3).map(lambda drawn: drawn == 3)
expressions = st.sampled_from(["", "", "", "[tu]", "v|w"])


@dataclass
class Client:
    """A consumer and what it believes."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    expression: str
    epoch: int = 0
    assigned: set[Place] = field(default_factory=set)
    using: set[Place] = field(default_factory=set)
    lost_an_answer: bool = False

    @property
    def in_group(self) -> bool:
        return self.epoch > 0


class ConsumerGroupsModel(RuleBasedStateMachine):
    """Clients of one group, its coordinator, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(Config())
        self.clients: list[Client] = []
        self.ids = 0

    # --- the parts

    @property
    def group(self) -> ConsumerGroup | None:
        return self.cluster.service._runtime.shard_for(GROUP).machine.consumer.groups.get(GROUP)

    def members(self) -> list[Client]:
        """The clients that the coordinator knows as members."""
        group = self.group
        return [
            client
            for client in self.clients
            if client.in_group and group is not None and client.member_id in group.members
        ]

    def send(self, client: Client, *, arrives: bool = True, **fields: Any) -> ErrorCode:
        """A heartbeat; its answer may be lost."""
        reply = Reply()
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            **{"member_epoch": client.epoch, **fields},
        )
        self.cluster.service.consumer_heartbeat(request, ClientIdentity("c", "/h"), 1, reply)
        self.cluster.host.run_pending()
        response: ConsumerGroupHeartbeatResponse = reply.value
        if not arrives:
            client.lost_an_answer = True
            return ErrorCode.NONE
        client.lost_an_answer = False
        code = ErrorCode(response.error_code)
        if code:
            self.abandon(client)
            return code
        client.epoch = response.member_epoch
        if response.assignment is not None:
            client.assigned = {
                (bytes(topic.topic_id), partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            }
            # What is new can be used at once; what is gone is given up in its own time.
            client.using |= client.assigned
        if self.group is not None and client.member_id in self.group.members and client.in_group:
            known = self.group.members[client.member_id].assigned
            assert client.assigned == {(topic_id, at) for topic_id, of in known.items() for at in of}
        return code

    def abandon(self, client: Client) -> None:
        client.epoch = 0
        client.assigned.clear()
        client.using.clear()

    def beat(self, client: Client, *, arrives: bool = True) -> ErrorCode:
        """What a client sends next: everything after a lost answer, else what there is to say."""
        owned = owned_by(client) if client.using == client.assigned or client.lost_an_answer else None
        fields: dict[str, Any] = {"topic_partitions": owned}
        if client.lost_an_answer:
            fields |= subscription(client)
        return self.send(client, arrives=arrives, **fields)

    # --- rules

    @initialize(count=st.integers(2, 5), clients=st.integers(0, 3))
    def begin(self, count: int, clients: int) -> None:
        self.cluster.topics.put("t", count)
        self.cluster.topics.put("u", 2)
        for _ in range(clients):
            self.join(None, frozenset("t"), "", arrives=True)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(
        instance_id=st.sampled_from([None, None, "i1", "i2"]),
        topics=subscriptions,
        expression=expressions,
        arrives=st.booleans(),
    )
    def join(self, instance_id: str | None, topics: frozenset[str], expression: str, arrives: bool) -> None:
        self.ids += 1
        client = Client(f"m{self.ids}", instance_id, topics, expression)
        self.clients.append(client)
        self.send(client, arrives=arrives, **subscription(client))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), arrives=st.sampled_from([True, True, True, False]))
    def heartbeat(self, data: st.DataObject, arrives: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.in_group:
            self.beat(client, arrives=arrives)
        else:
            self.send(client, arrives=arrives, **subscription(client))

    @precondition(lambda self: self.clients)
    @rule(arrives=st.sampled_from([True, True, False]))
    def all_heartbeats(self, arrives: bool) -> None:
        """Each client is heard of once, after the assignment interval."""
        self.cluster.advance(1_000)
        for client in self.clients:
            if client.in_group:
                self.beat(client, arrives=arrives)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """A client has finished with what it was told to give up."""
        client = data.draw(st.sampled_from(self.clients))
        client.using &= client.assigned

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=subscriptions, expression=expressions)
    def subscribe(self, data: st.DataObject, topics: frozenset[str], expression: str) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.topics, client.expression = topics, expression
        if client.in_group and client.lost_an_answer:
            self.beat(client)
        elif client.in_group:
            self.send(client, subscribed_topic_names=sorted(topics), subscribed_topic_regex=expression)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_a_while=st.booleans(), does=seldom)
    def leave(self, data: st.DataObject, for_a_while: bool, does: bool) -> None:
        if not does:
            return
        client = data.draw(st.sampled_from(self.clients))
        if client.in_group:
            away = for_a_while and client.instance_id is not None
            self.send(client, member_epoch=-2 if away else -1)
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), does=seldom)
    def disappear(self, data: st.DataObject, does: bool) -> None:
        if does:
            self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.using for client in self.clients))
    @rule(data=st.data(), offset=st.integers(0, 100))
    def commit(self, data: st.DataObject, offset: int) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.using]))
        topic_id, partition = data.draw(st.sampled_from(sorted(client.using)))
        name = topic_id.rstrip(b"\0").decode().partition("#")[0]
        reply = Reply()
        commit = PartitionCommit(name, partition, offset, -1, "", Uuid(topic_id))
        is_member = client in self.members()
        self.cluster.service.commit_offsets(
            OffsetCommit(GROUP, client.epoch, client.member_id, None, [commit], None, 9), reply
        )
        self.cluster.host.run_pending()
        if reply.value == ErrorCode.NONE:
            assert is_member
        else:
            # Only who missed something is refused.
            assert reply.value in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.STALE_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )
            assert not is_member or client.lost_an_answer or client.using - client.assigned

    @rule(delay_ms=st.sampled_from([500, 1_000, 1_000, 4_000, REBALANCE_TIMEOUT_MS, SESSION_MS]))
    def wait(self, delay_ms: int) -> None:
        self.cluster.advance(delay_ms)

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 3))
    def grow_topic(self, name: str, partitions: int) -> None:
        known = self.cluster.topics.by_name(name)
        self.cluster.topics.put(name, partitions + (known.partition_count if known else 0))
        self.cluster.service.topics_changed([name], created=known is None)

    @rule(name=st.sampled_from(TOPICS), does=seldom)
    def delete_topic(self, name: str, does: bool) -> None:
        if does and self.cluster.topics.by_name(name) is not None:
            self.cluster.topics.remove(name)
            self.cluster.service.topics_changed([name], created=False)

    @rule()
    def restart(self) -> None:
        before = stored_state(self.group)
        self.cluster.restart()
        assert stored_state(self.group) == before

    # --- what must hold

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        used: set[Place] = set()
        for client in self.members():
            assert used.isdisjoint(client.using), client
            used |= client.using

    @invariant()
    def what_is_used_is_known(self) -> None:
        group = self.group
        for client in self.members():
            assert group is not None
            member = group.members[client.member_id]
            for topic_id, partition in client.using:
                assert member.assignment_epoch(topic_id, partition) is not None, (client, member)

    @invariant()
    def the_coordinator_s_books_are_right(self) -> None:
        group = self.group
        if group is None:
            return
        owners: dict[Place, int] = {}
        for member in group.members.values():
            for assigned in (member.assigned, member.pending_revocation):
                for topic_id, epochs in assigned.items():
                    for partition, since in epochs.items():
                        assert (topic_id, partition) not in owners
                        owners[topic_id, partition] = member.epoch
                        assert since <= max(member.epoch, 0)
        kept = {
            (topic_id, at): epoch
            for topic_id, of in group.partition_epochs.items()
            for at, epoch in of.items()
        }
        assert kept == owners
        assert group.owner_epoch(b"\1" * 16, 0) == NO_EPOCH
        assert group.epoch >= group.assignment_epoch
        names = [name for member in group.members.values() for name in member.subscribed]
        matched = [name for resolved in group.resolved.values() for name in resolved.topics]
        assert group.counts == {name: (names.count(name), matched.count(name)) for name in {*names, *matched}}
        assert set(group.resolved) <= set(group.regex_counts)

    def teardown(self) -> None:
        """In quiet times everything is shared out, once the sessions of those who are gone are over."""
        self.settle()
        group = self.group
        if group is not None and not all(map(group.subscribed_topics, group.members.values())):
            # Who wants nothing raises no epoch by joining, and where one is open, the group is shared out as
            # if all wanted the same (as in Kafka). The next epoch sets it right, which a topic begins that
            # somebody wants.
            for name in TOPICS:
                self.grow_topic(name, 1)
            self.settle()
        self.everything_is_shared_out()

    def settle(self) -> None:
        """Time goes by, and everybody does what is to be done."""
        for _ in range(ROUNDS_TO_SETTLE):
            for client in self.clients:
                client.using &= client.assigned
                if client.in_group:
                    self.beat(client)
                else:
                    self.send(client, **subscription(client))
            self.cluster.advance(4_000)
            self.nobody_shares_a_partition()

    def everything_is_shared_out(self) -> None:
        """Every partition that somebody wants is used, each by who has it."""
        group = self.group
        members = self.members()
        if group is None or not members:
            return
        assert group.state.value == "Stable"
        wanted: set[Place] = set()
        for member in group.members.values():
            for name in group.subscribed_topics(member):
                topic = self.cluster.topics.by_name(name)
                if topic is not None:
                    wanted |= {(topic.topic_id, partition) for partition in range(topic.partition_count)}
        assert {partition for client in members for partition in client.using} == wanted
        for client in members:
            assert client.using == client.assigned


def subscription(client: Client) -> dict[str, Any]:
    """What a client says when it says everything."""
    return {
        "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        "subscribed_topic_names": sorted(client.topics),
        "subscribed_topic_regex": client.expression,
        "topic_partitions": owned_by(client),
    }


def owned_by(client: Client) -> list[RequestTopicPartitions]:
    owned: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(client.using):
        owned.setdefault(topic_id, []).append(partition)
    return [
        RequestTopicPartitions(topic_id=Uuid(topic_id), partitions=partitions)
        for topic_id, partitions in owned.items()
    ]


def stored_state(group: ConsumerGroup | None) -> Any:
    """Everything of a group that a restart must bring back."""
    if group is None:
        return None
    left_out = ("_logger", "refresh_at_ms", "refresh_epoch")
    return {name: getattr(group, name) for name in ConsumerGroup.__slots__ if name not in left_out}


TestConsumerGroups = ConsumerGroupsModel.TestCase
TestConsumerGroups.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
