"""In which order members of consumer groups are told their partitions, and groups their members. KIP-848.

Apache Kafka keeps both in hash maps, whose order numbers and ids decide; nothing is sorted here.
"""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.consumer_groups import VERSION, Topics
from interop.raw import wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_group_configs import SET, alter, own
from interop.scenarios.raw_migration import subscription
from interop.scenarios.raw_topics import until


class Group:
    """A group that makes a new target at once, and members of it that own what they are given."""

    def __init__(self, broker: Broker, client: RawClient, group: str) -> None:
        self.broker = broker
        self.client = client
        self.id = group
        self.topics = Topics(client)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[str, list[int]]] = {}
        wait_for_coordinator(client, group)
        [(code, _)] = alter(client, group, ("consumer.assignment.interval.ms", SET, "0"))
        assert code == 0
        until(lambda: bool(own(client, group)))

    def named(self, topics: list[dict[str, Any]]) -> dict[str, list[int]]:
        """By name, since topic ids are an accident of the run."""
        names = {topic_id: name for name, topic_id in self.topics.ids.items()}
        return {names[topic["TopicId"]]: topic["Partitions"] for topic in topics}

    def beat(self, member_id: str, **changes: Any) -> Any:
        """A heartbeat that tells what the member owns."""
        fields: dict[str, Any] = {
            "GroupId": self.id,
            "MemberId": member_id,
            "MemberEpoch": self.epochs.get(member_id, 0),
            "RebalanceTimeoutMs": -1,
            "TopicPartitions": self.topics.owned(self.owned.get(member_id, {})),
        }
        answer = self.client.call("ConsumerGroupHeartbeat", VERSION, **{**fields, **changes})
        assert answer["ErrorCode"] == 0, answer
        self.epochs[member_id] = answer["MemberEpoch"]
        if answer["Assignment"] is None:
            return answer["MemberEpoch"]
        self.owned[member_id] = self.named(answer["Assignment"]["TopicPartitions"])
        return answer["MemberEpoch"], self.owned[member_id]

    def join(self, member_id: str, *topics: str, assignor: str) -> Any:
        return self.beat(
            member_id,
            RebalanceTimeoutMs=300_000,
            SubscribedTopicNames=list(topics),
            ServerAssignor=assignor,
        )

    def leave(self, member_id: str) -> None:
        self.beat(member_id, MemberEpoch=-1)
        del self.epochs[member_id], self.owned[member_id]

    def rounds(self, count: int = 3) -> Any:
        return [[self.beat(member_id) for member_id in self.epochs] for _ in range(count)]

    def described(self) -> Any:
        (found,) = self.client.call("ConsumerGroupDescribe", VERSION, GroupIds=[self.id])["Groups"]
        return [
            [
                member["MemberId"],
                member["SubscribedTopicNames"],
                self.named(member["Assignment"]["TopicPartitions"]),
                self.named(member["TargetAssignment"]["TopicPartitions"]),
            ]
            for member in found["Members"]
        ]

    def grow(self, topic: str, count: int) -> None:
        asked = [{"Name": topic, "Count": count, "Assignments": None}]
        answer = self.client.call("CreatePartitions", 3, TimeoutMs=10_000, Topics=asked)
        assert answer["Results"][0]["ErrorCode"] == 0, answer


def life(group: Group, topic: str, count: int, assignor: str) -> Any:
    """Members come, one goes, the topic grows, and one wants something else."""
    other = f"{topic}-other"
    group.topics.create(topic, count)
    group.topics.create(other, 13)
    seen: dict[str, Any] = {}
    for member_id in "abc":
        seen[f"{member_id} joins"] = group.join(member_id, topic, assignor=assignor)
        seen[f"{member_id} is there"] = group.rounds(), group.described()
    group.leave("c")
    seen["c is gone"] = group.rounds(), group.described()
    group.grow(topic, count + 3)
    # Until the coordinator has seen it.
    epoch = group.epochs["a"]
    until(lambda: bool(group.beat("a")) and group.epochs["a"] > epoch)
    seen["grown"] = group.rounds(), group.described()
    seen["b wants another"] = group.beat("b", SubscribedTopicNames=[other], TopicPartitions=None)
    seen["b has to give up"] = group.described()
    seen["b has another"] = group.rounds(), group.described()
    seen["b wants both"] = group.beat("b", SubscribedTopicNames=[topic, other]), group.rounds()
    return seen


@scenario(seconds=120)
def partitions_of_members(broker: Broker) -> Any:
    """Partitions in heartbeats and descriptions, before and after a restart."""
    seen: dict[str, Any] = {}
    groups = []
    for assignor in ("uniform", "range"):
        for count in (5, 20, 40):
            name = f"raw-848-order-{assignor}-{count}"
            with RawClient(broker.bootstrap) as client:
                groups.append(Group(broker, client, name))
                seen[name] = life(groups[-1], name, count, assignor)
    broker.restart()
    with RawClient(broker.bootstrap) as client:
        for group in groups:
            wait_for_coordinator(client, group.id)
            group.client = client
            seen[f"{group.id}, restarted"] = group.described(), group.rounds(1)
    return seen


@scenario()
def members_of_groups(broker: Broker) -> Any:
    """Members in descriptions: groups grow, and shrink, which Kafka's map of them does not."""
    seen: list[Any] = []
    topic = "raw-848-order-members"
    with RawClient(broker.bootstrap) as client:
        group = Group(broker, client, topic)
        group.topics.create(topic, 3)
        ids = [f"member-{number}" for number in range(14)]
        for member_id in ids:
            group.join(member_id, topic, assignor="range")
            seen.append([member[0] for member in group.described()])
        for member_id in ids[3:]:
            group.leave(member_id)
            seen.append([member[0] for member in group.described()])
    broker.restart()
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, topic)
        group.client = client
        seen.append(group.described())
    return seen


@scenario()
def classic_members(broker: Broker) -> Any:
    """Partitions of a member that speaks the classic protocol, in a consumer group and after it."""
    seen: dict[str, Any] = {}
    topic = "raw-848-order-classic"
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as classic:
        group = Group(broker, client, topic)
        group.topics.create(topic, 20)
        seen["a joins"] = group.join("a", topic, assignor="range")
        asked: dict[str, Any] = {
            "GroupId": topic,
            "MemberId": "z",
            "SessionTimeoutMs": 60_000,
            "RebalanceTimeoutMs": 60_000,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": "range", "Metadata": subscription(topic)}],
        }
        joined = classic.call("JoinGroup", 7, **asked)
        seen["a gives up"] = group.rounds(2)
        classic.call("Heartbeat", 4, GroupId=topic, MemberId="z", GenerationId=joined["GenerationId"])
        joined = classic.call("JoinGroup", 7, **asked)
        synced = classic.call(
            "SyncGroup",
            5,
            GroupId=topic,
            MemberId="z",
            GenerationId=joined["GenerationId"],
            ProtocolType="consumer",
            ProtocolName="range",
            Assignments=[],
        )
        seen["z has"] = synced
        seen["described"] = group.described()
        group.beat("a", MemberEpoch=-1)
        (found,) = client.call("DescribeGroups", 5, Groups=[topic])["Groups"]
        seen["as a classic group"] = [
            found["GroupState"],
            [one["MemberAssignment"] for one in found["Members"]],
        ]
    return seen
