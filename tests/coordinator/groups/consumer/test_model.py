"""A model test of consumer groups: no partition has two users under any order of events.

Clients behave as KIP-848 requires. They use partitions until they have revoked them, learn nothing from a
lost response, and abandon all partitions when they are fenced. A disconnected client keeps using its
partitions, but is no member after its session timeout, and its commits are refused.
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
from tests.coordinator.coordinator_harness import Config, CoordinatorHarness, Reply

GROUP = "g"
TOPICS = ("t", "u", "v")
REBALANCE_TIMEOUT_MS = 10_000
SESSION_MS = 45_000
ROUNDS_TO_SETTLE = 20

TopicIdPartition = tuple[bytes, int]

subscriptions = st.sampled_from(["t", "t", "tu", "tu", "u", "tuv", "v", ""]).map(frozenset)
seldom = st.integers(0, 3).map(lambda drawn: drawn == 3)
expressions = st.sampled_from(["", "", "", "[tu]", "v|w"])


@dataclass
class Client:
    """The state of a consumer."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    expression: str
    epoch: int = 0
    assigned: set[TopicIdPartition] = field(default_factory=set)
    using: set[TopicIdPartition] = field(default_factory=set)
    lost_a_response: bool = False

    @property
    def in_group(self) -> bool:
        return self.epoch > 0


class ConsumerGroupsModel(RuleBasedStateMachine):
    """Random events of the clients of one group, its coordinator and time."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = CoordinatorHarness(Config())
        self.clients: list[Client] = []
        self.ids = 0

    # --- helpers

    @property
    def group(self) -> ConsumerGroup | None:
        return self.harness.service.shard_for(GROUP).machine.consumer.groups.get(GROUP)

    def members(self) -> list[Client]:
        """Return the clients that the coordinator has as members."""
        group = self.group
        return [
            client
            for client in self.clients
            if client.in_group and group is not None and client.member_id in group.members
        ]

    def send(self, client: Client, *, arrives: bool = True, **fields: Any) -> ErrorCode:
        """Send a heartbeat; its response is lost unless `arrives`."""
        reply = Reply()
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            **{"member_epoch": client.epoch, **fields},
        )
        self.harness.service.consumer_heartbeat(request, ClientIdentity("c", "/h"), 1, reply)
        self.harness.host.run_pending()
        response: ConsumerGroupHeartbeatResponse = reply.value
        if not arrives:
            client.lost_a_response = True
            return ErrorCode.NONE
        client.lost_a_response = False
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
            # New partitions are used at once; revoked ones later, in `finish_revocation`.
            client.using |= client.assigned
        if self.group is not None and client.member_id in self.group.members and client.in_group:
            known = self.group.members[client.member_id].assigned
            assert client.assigned == {(topic_id, at) for topic_id, of in known.items() for at in of}
        return code

    def abandon(self, client: Client) -> None:
        client.epoch = 0
        client.assigned.clear()
        client.using.clear()

    def send_heartbeat(self, client: Client, *, arrives: bool = True) -> ErrorCode:
        """Send the next heartbeat: a full one after a lost response, otherwise only changes."""
        owned = owned_by(client) if client.using == client.assigned or client.lost_a_response else None
        fields: dict[str, Any] = {"topic_partitions": owned}
        if client.lost_a_response:
            fields |= full_heartbeat(client)
        return self.send(client, arrives=arrives, **fields)

    # --- rules

    @initialize(count=st.integers(2, 5), clients=st.integers(0, 3))
    def create_topics_and_members(self, count: int, clients: int) -> None:
        self.harness.topics.put("t", count)
        self.harness.topics.put("u", 2)
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
        self.send(client, arrives=arrives, **full_heartbeat(client))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), arrives=st.sampled_from([True, True, True, False]))
    def heartbeat(self, data: st.DataObject, arrives: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.in_group:
            self.send_heartbeat(client, arrives=arrives)
        else:
            self.send(client, arrives=arrives, **full_heartbeat(client))

    @precondition(lambda self: self.clients)
    @rule(arrives=st.sampled_from([True, True, False]))
    def all_heartbeats(self, arrives: bool) -> None:
        """Let each member send a heartbeat after the assignment interval."""
        self.harness.advance(1_000)
        for client in self.clients:
            if client.in_group:
                self.send_heartbeat(client, arrives=arrives)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def finish_revocation(self, data: st.DataObject) -> None:
        """Finish the revocation of partitions on a client."""
        client = data.draw(st.sampled_from(self.clients))
        client.using &= client.assigned

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=subscriptions, expression=expressions)
    def subscribe(self, data: st.DataObject, topics: frozenset[str], expression: str) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.topics, client.expression = topics, expression
        if client.in_group and client.lost_a_response:
            self.send_heartbeat(client)
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
        self.harness.service.commit_offsets(
            OffsetCommit(GROUP, client.epoch, client.member_id, None, [commit], None, 9), reply
        )
        self.harness.host.run_pending()
        if reply.value == ErrorCode.NONE:
            assert is_member
        else:
            # Only a client that missed a response or has not finished revoking is refused.
            assert reply.value in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.STALE_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )
            assert not is_member or client.lost_a_response or client.using - client.assigned

    @rule(delay_ms=st.sampled_from([500, 1_000, 1_000, 4_000, REBALANCE_TIMEOUT_MS, SESSION_MS]))
    def wait(self, delay_ms: int) -> None:
        self.harness.advance(delay_ms)

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 3))
    def grow_topic(self, name: str, partitions: int) -> None:
        known = self.harness.topics.by_name(name)
        self.harness.topics.put(name, partitions + (known.partition_count if known else 0))
        self.harness.service.topics_changed([name], created=known is None)

    @rule(name=st.sampled_from(TOPICS), does=seldom)
    def delete_topic(self, name: str, does: bool) -> None:
        if does and self.harness.topics.by_name(name) is not None:
            self.harness.topics.remove(name)
            self.harness.service.topics_changed([name], created=False)

    @rule()
    def restart(self) -> None:
        before = stored_state(self.group)
        self.harness.restart()
        assert stored_state(self.group) == before

    # --- invariants

    @invariant()
    def each_partition_has_one_user(self) -> None:
        used: set[TopicIdPartition] = set()
        for client in self.members():
            assert used.isdisjoint(client.using), client
            used |= client.using

    @invariant()
    def used_partitions_are_assigned(self) -> None:
        group = self.group
        for client in self.members():
            assert group is not None
            member = group.members[client.member_id]
            for topic_id, partition in client.using:
                assert member.assignment_epoch(topic_id, partition) is not None, (client, member)

    @invariant()
    def coordinator_state_is_consistent(self) -> None:
        group = self.group
        if group is None:
            return
        owners: dict[TopicIdPartition, int] = {}
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
        """Without further events, all partitions are assigned once the sessions of lost clients time out."""
        self.settle()
        group = self.group
        if group is not None and not all(map(group.subscribed_topics, group.members.values())):
            # As in Kafka, a member without a subscription does not bump the group epoch when it joins, and an
            # open epoch is assigned as if the group were homogeneous. A change of a subscribed topic bumps
            # the epoch.
            for name in TOPICS:
                self.grow_topic(name, 1)
            self.settle()
        self.all_partitions_are_used()

    def settle(self) -> None:
        """Advance time while all clients send heartbeats and finish revocations."""
        for _ in range(ROUNDS_TO_SETTLE):
            for client in self.clients:
                client.using &= client.assigned
                if client.in_group:
                    self.send_heartbeat(client)
                else:
                    self.send(client, **full_heartbeat(client))
            self.harness.advance(4_000)
            self.each_partition_has_one_user()

    def all_partitions_are_used(self) -> None:
        """Check that every subscribed partition is used by its owner."""
        group = self.group
        members = self.members()
        if group is None or not members:
            return
        assert group.state.value == "Stable"
        subscribed: set[TopicIdPartition] = set()
        for member in group.members.values():
            for name in group.subscribed_topics(member):
                topic = self.harness.topics.by_name(name)
                if topic is not None:
                    subscribed |= {(topic.topic_id, partition) for partition in range(topic.partition_count)}
        assert {partition for client in members for partition in client.using} == subscribed
        for client in members:
            assert client.using == client.assigned


def full_heartbeat(client: Client) -> dict[str, Any]:
    """Return all fields of a full heartbeat."""
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
    """Return the fields of a group that a restart must restore."""
    if group is None:
        return None
    excluded = ("_logger", "refresh_at_ms", "refresh_epoch")
    return {name: getattr(group, name) for name in ConsumerGroup.__slots__ if name not in excluded}


TestConsumerGroups = ConsumerGroupsModel.TestCase
TestConsumerGroups.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
