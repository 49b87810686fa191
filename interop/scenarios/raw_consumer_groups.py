"""Consumer groups (KIP-848), heartbeat by heartbeat: epochs, assignments, offsets, and their errors."""

from __future__ import annotations

import re
import time
from typing import Any

from interop.brokers import Broker
from interop.consumer_groups import (
    INTERVAL_S,
    VERSION,
    Member,
    Owned,
    Topics,
    described,
    listed,
    named,
    stored,
    wait_until_heard,
)
from interop.raw import comparable, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario


@scenario()
def one_member(broker: Broker) -> Any:
    """Let the only member of a group join and leave. Send invalid requests in between."""
    group = "raw-848-one"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-one", 3)
        member = Member(topics, group, "m1")
        seen["stays in no group"] = member.send(MemberEpoch=1)
        seen["leaves no group"] = member.leave()
        seen["described before"] = described(topics, group, "")
        seen["joins"] = member.join("raw-848-one", "raw-848-no-such-topic")
        seen["stays"] = member.send()
        seen["owns"] = member.ack()
        seen["described"] = described(topics, group)
        seen["described in version 0"] = described(topics, group, version=0, IncludeAuthorizedOperations=True)
        seen["listed"] = listed(client, group)
        epoch = member.epoch
        seen["epoch ahead"] = member.send(MemberEpoch=epoch + 1)
        seen["epoch behind"] = member.send(MemberEpoch=epoch - 1)
        seen["another"] = Member(topics, group, "m2").send(MemberEpoch=epoch)
        seen["another leaves"] = Member(topics, group, "m2").leave()
        seen["full request"] = member.send(
            RebalanceTimeoutMs=60_000,
            SubscribedTopicNames=["raw-848-one"],
            TopicPartitions=member.owned,
            RackId="rack",
            ServerAssignor="range",
        )
        seen["range"] = described(topics, group)
        member.epoch = 0
        seen["joins again"] = member.join("raw-848-one")
        seen["deleted with members"] = client.call("DeleteGroups", 2, GroupsNames=[group])
        seen["leaves"] = member.leave()
        seen["leaves again"] = member.leave()
        seen["empty"] = described(topics, group)
        seen["listed empty"] = listed(client, group)
        seen["stays after"] = member.send(MemberEpoch=epoch)
        seen["deleted"] = client.call("DeleteGroups", 2, GroupsNames=[group])
        seen["described after"] = described(topics, group)
        seen["stored"] = stored(broker, group)
    return seen


@scenario()
def wrong_requests(broker: Broker) -> Any:
    """Send heartbeats that have an unusual or invalid value in one field."""
    group = "raw-848-wrong"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-wrong", 1)
        full: dict[str, Any] = {
            "GroupId": group,
            "MemberId": "m",
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 1000,
            "SubscribedTopicNames": ["raw-848-wrong"],
            "TopicPartitions": [],
        }
        wrong: dict[str, dict[str, Any]] = {
            "no group": {"GroupId": ""},
            "blank group": {"GroupId": "  "},
            "no member": {"MemberId": ""},
            "no instance": {"InstanceId": ""},
            "no rack": {"RackId": " "},
            "no timeout": {"RebalanceTimeoutMs": -1},
            "no partitions": {"TopicPartitions": None},
            "partitions": {"TopicPartitions": topics.owned({"raw-848-wrong": [0]})},
            "no names": {"SubscribedTopicNames": None},
            "no such assignor": {"ServerAssignor": "sticky"},
            "no assignor": {"ServerAssignor": ""},
            "epoch -2 without an instance": {"MemberEpoch": -2},
            "epoch -3": {"MemberEpoch": -3},
            "epoch -2": {"MemberEpoch": -2, "InstanceId": "i"},
            "epoch 7": {"MemberEpoch": 7},
            "broken expression": {"SubscribedTopicRegex": "["},
            "invalid names": {"SubscribedTopicNames": ["", ".", "a b"]},
        }
        for name, fields in wrong.items():
            response = client.call("ConsumerGroupHeartbeat", VERSION, **{**full, **fields})
            seen[name] = named(topics, response)
            if "SubscribedTopicRegex" not in fields:
                response = client.call("ConsumerGroupHeartbeat", 0, **{**full, **fields})
                if fields.get("MemberId") == "" and not response["ErrorCode"]:
                    response["MemberId"] = f"of {len(response['MemberId'])} characters"
                seen[f"{name}, version 0"] = named(topics, response)
        seen["groups"] = listed(client, "raw-848-wrong")
        seen["stored"] = sorted(
            re.sub(r'"memberId":"[^"]{22}"', '"memberId":22', line) for line in stored(broker, group)
        )
    return seen


@scenario()
def partition_handover(broker: Broker) -> Any:
    """Add a member. It must get partitions only after their owner has revoked them."""
    group = "raw-848-hand"
    seen: list[Any] = []
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-hand", 6)
        # With these member ids, Apache Kafka's assignor also assigns in the order in which members joined.
        first, second, third = (Member(topics, group, name) for name in "abc")
        seen.append(first.join("raw-848-hand"))
        seen.append(first.ack())
        time.sleep(INTERVAL_S)
        seen.append(second.join("raw-848-hand"))
        seen.append(described(topics, group))
        seen.append(first.send())
        seen.append(described(topics, group))
        seen.append(second.send())
        # The coordinator sends the assignment in each response until the member acknowledges the assignment.
        seen.append(first.send(TopicPartitions={"raw-848-hand": [0, 1, 2, 3, 4, 5]}))
        seen.append(first.ack())
        seen.append(second.send())
        seen.append(second.ack())
        seen.append(described(topics, group))
        time.sleep(INTERVAL_S)
        seen.append(third.join("raw-848-hand"))
        # Within the assignment interval, the group epoch rises but the target assignment does not change.
        seen.append(second.leave())
        seen.append(described(topics, group))
        seen.append(first.send())
        seen.append(third.send())
        time.sleep(INTERVAL_S)
        seen.append(first.send())
        seen.append(third.send())
        seen.append(first.ack())
        seen.append(third.send())
        seen.append(described(topics, group))
        epoch = first.epoch
        time.sleep(INTERVAL_S)
        seen.append(second.join("raw-848-hand"))
        seen.append(first.send())
        seen.append(first.ack())
        # The response with the new epoch may be lost, so the coordinator still accepts the previous epoch.
        seen.append(first.send(MemberEpoch=epoch, TopicPartitions=first.owned))
        seen.append(first.send(MemberEpoch=epoch))
        seen.append(first.send(MemberEpoch=epoch - 1, TopicPartitions=first.owned))
        seen.append(stored(broker, group))
    return seen


@scenario()
def slow_revocation(broker: Broker) -> Any:
    """Let a member exceed its rebalance timeout before it revokes partitions. It must be fenced."""
    group = "raw-848-slow"
    seen: list[Any] = []
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-slow", 2)
        slow, quick = Member(topics, group, "slow"), Member(topics, group, "quick")
        seen.append(slow.join("raw-848-slow", RebalanceTimeoutMs=2_000))
        time.sleep(INTERVAL_S)
        seen.append(quick.join("raw-848-slow"))
        seen.append(slow.send())
        seen.append(quick.send())
        deadline = time.monotonic() + 20
        while len(described(topics, group)["Groups"][0]["Members"]) == 2:
            assert time.monotonic() < deadline
            slow.send()
            time.sleep(0.1)
        seen.append(slow.send())
        seen.append(quick.send())
        time.sleep(INTERVAL_S)
        seen.append(quick.send())
        seen.append(described(topics, group))
        seen.append(slow.join("raw-848-slow", RebalanceTimeoutMs=2_000))
    return seen


@scenario()
def static_members(broker: Broker) -> Any:
    """Restart members with instance ids. They must keep their partitions, under new member ids."""
    group = "raw-848-static"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-static", 4)
        one, two = Member(topics, group, "one", "i1"), Member(topics, group, "two", "i2")
        seen["unknown instance"] = Member(topics, "raw-848-none", "one", "i1").send(MemberEpoch=3)
        seen["first"] = one.join("raw-848-static")
        time.sleep(INTERVAL_S)
        seen["second"] = two.join("raw-848-static")
        seen["first revokes"] = [one.send(), one.ack()]
        seen["second is assigned"] = two.send()
        seen["instance in use"] = Member(topics, group, "other", "i1").join("raw-848-static")
        seen["stays as another"] = Member(topics, group, "other", "i1").send(MemberEpoch=one.epoch)
        seen["leaves as another"] = Member(topics, group, "other", "i1").leave(-2)
        seen["no such instance"] = Member(topics, group, "other", "i9").send(MemberEpoch=one.epoch)
        seen["no such instance leaves"] = Member(topics, group, "other", "i9").leave()
        seen["leaves temporarily"] = one.leave(-2)
        seen["away"] = described(topics, group)
        seen["commits while away"] = one.commit("raw-848-static", one.owned["raw-848-static"][0], 5)
        seen["second while away"] = two.send()
        seen["old one"] = one.send(MemberEpoch=3)
        back = Member(topics, group, "back", "i1")
        seen["back"] = back.join("raw-848-static")
        seen["described"] = described(topics, group)
        seen["old one after"] = one.send(MemberEpoch=3)
        seen["leaves for good"] = back.leave()
        seen["gone"] = described(topics, group)
        seen["stored"] = stored(broker, group)
    return seen


@scenario(seconds=120)
def subscriptions(broker: Broker) -> Any:
    """Change subscriptions by topic name and by regular expression while topics are created and deleted."""
    group = "raw-848-topics"
    seen: list[Any] = []
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-topics-a", 2)
        topics.create("raw-848-topics-b", 2)
        member, other = Member(topics, group, "m"), Member(topics, group, "o")
        seen.append(member.join("raw-848-topics-a"))
        time.sleep(INTERVAL_S)
        seen.append(member.send(SubscribedTopicNames=["raw-848-topics-b"]))
        seen.append(member.ack())
        seen.append(member.send())
        seen.append(described(topics, group))
        time.sleep(INTERVAL_S)
        seen.append(member.send(SubscribedTopicNames=["raw-848-topics-b", "raw-848-topics-c"]))
        topics.create("raw-848-topics-c", 2)
        seen.append(settled_assignments(member))
        client.call(
            "CreatePartitions", 2, TimeoutMs=10_000, Topics=[{"Name": "raw-848-topics-c", "Count": 3}]
        )
        seen.append(settled_assignments(member))
        seen.append(member.send(SubscribedTopicNames=[], SubscribedTopicRegex="raw-848-topics-[ab]"))
        seen.append(settled_assignments(member))
        seen.append(described(topics, group))
        seen.append(other.join("raw-848-topics-c", SubscribedTopicRegex="raw-848-.*("))
        seen.append(other.join("raw-848-topics-c", SubscribedTopicRegex="raw-848-topics-[ab]"))
        seen.append(settled_assignments(member, other))
        seen.append(other.send(SubscribedTopicRegex=""))
        seen.append(settled_assignments(member, other))
        # The coordinator evaluates expressions for new topics ten seconds after the last evaluation at the
        # earliest.
        time.sleep(10)
        topics.create("raw-848-topics-bb", 1)
        # Without this wait, the coordinator would evaluate the expression without the new topic.
        wait_until_heard(topics, group)
        seen.append(member.send(SubscribedTopicRegex="raw-848-topics-[ab]+"))
        seen.append(settled_assignments(member, other))
        time.sleep(10)
        topics.create("raw-848-topics-ba", 1)
        seen.append(settled_assignments(member, other))
        client.call("DeleteTopics", 5, TimeoutMs=10_000, TopicNames=["raw-848-topics-b"])
        seen.append(settled_assignments(member, other))
        seen.append(member.leave())
        seen.append(settled_assignments(other))
        seen.append(described(topics, group))
        seen.append(other.leave())
        seen.append(client.call("DeleteGroups", 2, GroupsNames=[group]))
    return seen


def settled_assignments(*members: Member) -> Any:
    """Send heartbeats until no assignment has changed for longer than the assignment interval.

    Return the assignment of the only member, or the sizes of several assignments and their union.
    """
    deadline = time.monotonic() + 20
    quiet_since = time.monotonic()
    before: Any = None
    while time.monotonic() < quiet_since + INTERVAL_S + 0.3:
        assert time.monotonic() < deadline
        for member in members:
            member.ack()
        now = [(member.epoch, dict(member.owned)) for member in members]
        if now != before:
            before, quiet_since = now, time.monotonic()
        time.sleep(0.05)
    if len(members) == 1:
        return members[0].owned
    # With several topics, the random topic ids would determine which topic's partitions are split.
    every: Owned = {}
    for member in members:
        for topic, partitions in member.owned.items():
            every[topic] = sorted([*every.get(topic, []), *partitions])
    return [[sum(map(len, member.owned.values())) for member in members], every]


@scenario()
def offsets(broker: Broker) -> Any:
    """Commit and fetch offsets with different member ids and member epochs."""
    group = "raw-848-offsets"
    topic = "raw-848-offsets"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create(topic, 2)
        topics.create("raw-848-offsets-other", 1)
        member, other = Member(topics, group, "m"), Member(topics, group, "o")
        member.join(topic)
        member.ack()
        epoch = member.epoch
        for version in (8, 9, 10):
            seen[f"v{version}"] = member.commit(topic, 0, 10, version)
        seen["nobody"] = member.commit(topic, 0, 10, MemberId="", GenerationIdOrMemberEpoch=-1)
        seen["no member, version without epochs"] = member.commit(
            topic, 0, 10, 8, MemberId="", GenerationIdOrMemberEpoch=-1
        )
        seen["unknown"] = member.commit(topic, 0, 10, MemberId="x")
        seen["ahead"] = member.commit(topic, 0, 10, GenerationIdOrMemberEpoch=epoch + 1)
        seen["behind"] = member.commit(topic, 0, 10, GenerationIdOrMemberEpoch=epoch - 1)
        seen["no epoch"] = member.commit(topic, 0, 10, GenerationIdOrMemberEpoch=-1)
        seen["not subscribed"] = member.commit("raw-848-offsets-other", 0, 3)
        time.sleep(INTERVAL_S)
        other.join(topic)
        member.send()
        kept = member.owned[topic][0]
        lost = 1 - kept
        seen["about to lose"] = member.commit(topic, lost, 11)
        member.ack()
        seen["lost"] = member.commit(topic, lost, 12)
        seen["lost, by the old epoch"] = member.commit(topic, lost, 13, GenerationIdOrMemberEpoch=epoch)
        seen["kept, by the old epoch"] = member.commit(topic, kept, 14, GenerationIdOrMemberEpoch=epoch)
        seen["kept, before that"] = member.commit(topic, kept, 15, GenerationIdOrMemberEpoch=epoch - 1)
        other.send()
        seen["reassigned, by its first epoch"] = other.commit(topic, lost, 16)
        seen["reassigned, by an earlier epoch"] = other.commit(
            topic, lost, 17, GenerationIdOrMemberEpoch=epoch
        )
        seen["fetch"] = member.fetch()
        seen["fetch ahead"] = member.fetch(MemberEpoch=member.epoch + 1)
        seen["fetch behind"] = member.fetch(MemberEpoch=epoch)
        seen["fetch unknown"] = member.fetch(MemberId="x")
        seen["fetch without a member"] = member.fetch(MemberId=None, MemberEpoch=-1)
        seen["fetch without epoch"] = member.fetch(MemberEpoch=-1)
        requested = [
            {"Name": name, "Partitions": [{"PartitionIndex": 0}]} for name in (topic, "raw-848-offsets-other")
        ]
        seen["offset delete"] = client.call("OffsetDelete", 0, GroupId=group, Topics=requested)
        member.leave()
        other.leave()
        seen["when empty"] = member.commit(topic, 0, 20, MemberId="", GenerationIdOrMemberEpoch=-1)
        seen["when empty, as a member"] = member.commit(topic, 0, 20, GenerationIdOrMemberEpoch=3)
        seen["offset delete when empty"] = client.call("OffsetDelete", 0, GroupId=group, Topics=requested)
        seen["fetch when empty"] = member.fetch(MemberId=None, MemberEpoch=-1)
        seen["deleted"] = client.call("DeleteGroups", 2, GroupsNames=[group])
        seen["fetch deleted"] = member.fetch(MemberId=None, MemberEpoch=-1)
        seen["commit deleted"] = member.commit(topic, 0, 20, GenerationIdOrMemberEpoch=3)
    return seen


@scenario()
def other_protocols(broker: Broker) -> Any:
    """Send classic requests to consumer groups, and consumer group requests to classic groups."""
    group = "raw-848-kinds"
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\x0draw-848-kinds" + b"\xff\xff\xff\xff"
    join: dict[str, Any] = {
        "GroupId": group,
        "SessionTimeoutMs": 10_000,
        "RebalanceTimeoutMs": 10_000,
        "MemberId": "",
        "ProtocolType": "consumer",
        "Protocols": [{"Name": "range", "Metadata": subscription}],
    }
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-kinds", 1)
        member = Member(topics, group, "m")
        member.join("raw-848-kinds")
        seen["described as classic"] = client.call("DescribeGroups", 6, Groups=[group])
        seen["described as classic, before"] = client.call("DescribeGroups", 5, Groups=[group])
        for field, values in (
            ("StatesFilter", ["stable"]),
            ("StatesFilter", ["Empty"]),
            ("StatesFilter", ["Assigning", "Reconciling"]),
            ("TypesFilter", ["consumer"]),
            ("TypesFilter", ["Classic"]),
            ("TypesFilter", ["neither"]),
        ):
            seen[f"{field} {values}"] = listed(client, group, **{field: values})
        identity = {"GroupId": group, "GenerationId": member.epoch, "MemberId": "m"}
        seen["heartbeat"] = client.call("Heartbeat", 4, **identity)
        seen["sync"] = client.call("SyncGroup", 5, **identity, ProtocolType="consumer", ProtocolName="range")
        seen["leave"] = client.call("LeaveGroup", 5, GroupId=group, Members=[{"MemberId": "m"}])
        seen["unknown heartbeat"] = client.call("Heartbeat", 4, **{**identity, "MemberId": "x"})
        member.leave()
        seen["empty: heartbeat"] = client.call("Heartbeat", 4, **identity)
        seen["empty: sync"] = client.call(
            "SyncGroup", 5, **identity, ProtocolType="consumer", ProtocolName="range"
        )
        seen["empty: leave"] = client.call("LeaveGroup", 5, GroupId=group, Members=[{"MemberId": "m"}])
        # A group without members changes to the protocol of the next member that joins.
        refused = client.call("JoinGroup", 7, **join)
        seen["empty: join"] = comparable(refused)
        time.sleep(0.5)  # ListGroups returns committed state only
        seen["now classic"] = listed(client, group)
        seen["stays in a classic group"] = member.send(MemberEpoch=2)
        seen["leaves a classic group"] = member.leave()
        seen["described as consumer"] = described(topics, group)
        seen["joins an empty classic group"] = member.join("raw-848-kinds")
        seen["now consumer"] = listed(client, group)
        member.leave()
        seen["stored"] = stored(broker, group)
    return seen


@scenario()
def after_coordinator_restart(broker: Broker) -> Any:
    """Restart the broker, and so the coordinator, during a partition handover."""
    group = "raw-848-restart"
    seen: list[Any] = []
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics = Topics(client)
        topics.create("raw-848-restart", 4)
        first, second = Member(topics, group, "first"), Member(topics, group, "second", "i2")
        first.join("raw-848-restart", ServerAssignor="range", RackId="r")
        time.sleep(INTERVAL_S)
        second.join("raw-848-restart")
        first.send()
        seen.append(described(topics, group))
    broker.restart()
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, group)
        topics.client = first.client = second.client = client
        seen.append(described(topics, group))
        seen.append(second.send())
        seen.append(first.ack())
        seen.append(second.send())
        seen.append(first.send(MemberEpoch=first.epoch + 1))
        seen.append(described(topics, group))
        seen.append(first.leave())
        seen.append(second.leave(-2))
        seen.append(described(topics, group))
    return seen


@scenario()
def server_assignors(broker: Broker) -> Any:
    """Run a group of two members with each assignor. Record the assignor and the target assignment sizes.

    Each topic has one partition. So the range assignor assigns all partitions to the first member, and the
    uniform assignor assigns half of them to each member.
    """
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, "raw-848-named")
        topics = Topics(client)
        names = [f"raw-848-named-{letter}" for letter in "abcd"]
        for name in names:
            topics.create(name, 1)
        for assignor in ("uniform", "range"):
            group = f"raw-848-named-{assignor}"
            # Without this wait, the first target assignment would lack the last topic.
            wait_until_heard(topics, group)
            members = [Member(topics, group, f"m{number}") for number in range(2)]

            def shown(group: str = group) -> Any:
                response = client.call("ConsumerGroupDescribe", VERSION, GroupIds=[group])["Groups"][0]
                return [
                    response["AssignorName"],
                    response["AssignmentEpoch"],
                    [
                        [
                            member["MemberId"],
                            sorted(member["SubscribedTopicNames"]),
                            len(member["TargetAssignment"]["TopicPartitions"]),
                        ]
                        for member in sorted(response["Members"], key=lambda one: one["MemberId"])
                    ],
                ]

            for member in members:
                member.join(*names, ServerAssignor=assignor)
                time.sleep(INTERVAL_S)
                seen[f"{assignor}, {member.member_id} joined"] = shown()
            for member in members:
                member.send(SubscribedTopicNames=names[:3])
                time.sleep(INTERVAL_S)
                seen[f"{assignor}, {member.member_id} wants less"] = shown()
                member.send(SubscribedTopicNames=names)
                time.sleep(INTERVAL_S)
                seen[f"{assignor}, {member.member_id} wants all"] = shown()
    return seen
