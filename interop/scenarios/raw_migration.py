"""Online migration of groups between the protocols, request by request (KIP-848, "Migration")."""

from __future__ import annotations

import itertools
import json
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interop import consumer_groups as modern
from interop.brokers import Broker
from interop.consumer_groups import Owned, Topics, described, listed, stored
from interop.raw import comparable, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios import raw_groups as classic
from interop.scenarios.raw_topics import until

REBALANCE_IN_PROGRESS = 27


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def partitions(owned: Owned) -> bytes:
    data = struct.pack(">i", len(owned))
    for topic, numbers in owned.items():
        data += text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data


def subscription(*topics: str, owned: Owned | None = None, version: int = 1) -> bytes:
    """Return the subscription that a classic consumer sends in JoinGroup."""
    data = struct.pack(">hi", version, len(topics)) + b"".join(map(text, topics)) + b"\xff\xff\xff\xff"
    return data + partitions(owned or {}) if version >= 1 else data


def assignment(owned: Owned, user_data: bytes | None = None) -> bytes:
    """Return the assignment that the leader of a classic group sends in SyncGroup."""
    size = -1 if user_data is None else len(user_data)
    return b"\0\1" + partitions(owned) + struct.pack(">i", size) + (user_data or b"")


def read_assignment(data: bytes) -> Any:
    """Decode the version, partitions and user data of an assignment. Return invalid bytes as they are."""
    try:
        return _read_assignment(data) if data else None
    except struct.error:
        return data


def _read_assignment(data: bytes) -> Any:
    position = 6
    found: Owned = {}
    for _ in range(struct.unpack_from(">i", data, 2)[0]):
        (size,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + size].decode()
        (count,) = struct.unpack_from(">i", data, position + 2 + size)
        position += 6 + size
        found[topic] = sorted(struct.unpack_from(f">{count}i", data, position))
        position += 4 * count
    return [struct.unpack_from(">h", data)[0], found, data[position:]]


class ClassicMember(classic.Member):
    """A member of the classic protocol with a subscription."""

    def __init__(
        self, broker: Broker, group: str, *topics: str, instance: str | None = None, version: int = 1
    ) -> None:
        super().__init__(broker, group, instance)
        self.topics = topics
        self.owned: Owned = {}
        self.version = version

    def protocols(self) -> list[dict[str, Any]]:
        metadata = subscription(*self.topics, owned=self.owned, version=self.version)
        return [{"Name": name, "Metadata": metadata} for name in ("range", "cooperative-sticky")]

    def join(self, version: int = 7, **changes: Any) -> Any:
        response = super().join(version, **{"Protocols": self.protocols(), **changes})
        return comparable(
            {**response, "Leader": bool(response["Leader"]), "Members": len(response["Members"])}
        )

    def send_subscribed_join(self, version: int = 7) -> None:
        """Send JoinGroup without waiting for the response, which comes after the rebalance."""
        self.send_join(version, Protocols=self.protocols())

    def sync_assignment(self, given: dict[str, bytes] | None = None, **changes: Any) -> Any:
        """Send SyncGroup, keep the assigned partitions in `owned`, and return the decoded response."""
        response = self.sync(given, **changes)
        found = read_assignment(response.pop("Assignment"))
        if isinstance(found, list) and not response["ErrorCode"]:
            self.owned = found[1]
        return comparable({**response, "Assignment": found})

    def wait_for_rebalance(self) -> None:
        """Send heartbeats until the coordinator reports a rebalance."""
        until(lambda: self.heartbeat() == REBALANCE_IN_PROGRESS)

    def rejoin(self) -> Any:
        """Send a heartbeat. After REBALANCE_IN_PROGRESS, join and sync again, as a client does."""
        error = self.heartbeat()
        if error != REBALANCE_IN_PROGRESS:
            return error
        return error, self.join(), self.sync_assignment()


class MixedGroup:
    """A group with members of both protocols. Observations contain names instead of random ids."""

    def __init__(self, broker: Broker, group: str, client: RawClient) -> None:
        self.broker = broker
        self.group = group
        self.client = client
        self.topics = Topics(client)
        self.members: list[ClassicMember] = []
        wait_for_coordinator(client, group)

    def classic(self, *topics: str, instance: str | None = None, version: int = 1) -> ClassicMember:
        member = ClassicMember(self.broker, self.group, *topics, instance=instance, version=version)
        self.members.append(member)
        return member

    def consumer(self, member_id: str, instance: str | None = None) -> modern.Member:
        return modern.Member(self.topics, self.group, member_id, instance)

    def described(self) -> Any:
        """Describe the group with ConsumerGroupDescribe and DescribeGroups, and list it with ListGroups."""
        modern_view = comparable(described(self.topics, self.group))
        for group in modern_view["Groups"]:
            group["Members"].sort(key=lambda member: (member["MemberType"], member["InstanceId"] or ""))
        requested = self.client.call("DescribeGroups", 5, Groups=[self.group])["Groups"]
        for group in requested:
            group["Members"] = sorted(
                (
                    member["GroupInstanceId"] or "",
                    member["MemberId"],
                    read_assignment(member["MemberAssignment"]),
                )
                for member in group["Members"]
            )
        return modern_view, comparable(requested), listed(self.client, self.group)

    def form_classic_group(self, member: ClassicMember, owned: Owned) -> Any:
        """Create a classic group in which this member is the leader and gets this assignment."""
        return member.join(), member.sync_assignment({member.member_id: assignment(owned)})

    def stored_records(self) -> list[str]:
        """Return the group's records in __consumer_offsets.

        Successive records of one type are sorted: Apache Kafka writes them in the order of a hash map.
        """
        lines = self.normalize(stored(self.broker, self.group))
        found: list[str] = []
        for _, run in itertools.groupby(lines, key=lambda line: line[:18]):
            found += sorted(run)
        # The order of the members in the record of a classic group is also that of a hash map.
        return [re.sub(r'"members":\[(.*)\]', _sorted_members, line) for line in found]

    def normalize(self, seen: Any, *ids: str) -> Any:
        """Replace the ids of the classic members, and the other `ids`, by names."""
        written = json.dumps(seen, default=lambda value: value.decode("latin-1"))
        named = [(member.member_id, f"<member {at}>") for at, member in enumerate(self.members)]
        named += [(member_id, f"<id {at}>") for at, member_id in enumerate(ids)]
        for member_id, name in named:
            if member_id:
                written = written.replace(json.dumps(member_id)[1:-1], name)
        return json.loads(written)


def _sorted_members(match: re.Match[str]) -> str:
    return '"members":' + " ".join(sorted(re.findall(r"\{.*?\}", match[1])))


@contextmanager
def mixed_group(broker: Broker, group: str) -> Iterator[MixedGroup]:
    with RawClient(broker.bootstrap) as client:
        group_of_both = MixedGroup(broker, group, client)
        yield group_of_both
        for member in group_of_both.members:
            member.__exit__()


@scenario()
def upgraded_and_downgraded(broker: Broker) -> Any:
    """Add a member of the consumer protocol to a classic group, and let that member leave.

    In between, half of the partitions move to the new member.
    """
    seen: dict[str, Any] = {}
    topic = "raw-migration-back"
    with mixed_group(broker, "raw-migration-back") as group:
        group.topics.create(topic, 4)
        old = group.classic(topic)
        seen["classic"] = group.form_classic_group(old, {topic: [0, 1, 2, 3]})
        seen["commit"] = old.commit(topic, 5)
        new = group.consumer("new")
        seen["upgraded"] = new.join(topic)
        seen["described"] = group.described()
        seen["commit, both kinds"] = old.commit(topic, 6), new.commit(topic, 0, 7)
        seen["syncs before it joins"] = old.sync_assignment()
        seen["heartbeat"] = old.heartbeat()
        seen["joins"] = old.join()
        seen["fewer partitions"] = old.sync_assignment()
        seen["described during the revocation"] = group.described()
        seen["new waits"] = new.ack()
        seen["rejoins"] = old.rejoin()
        seen["calm"] = old.heartbeat()
        seen["new owns half"] = new.send(), new.ack()
        seen["described balanced"] = group.described()
        seen["commit with the old generation"] = old.commit(topic, 7, GenerationIdOrMemberEpoch=1)
        seen["commit by classic version"] = old.commit(topic, 8, version=8)
        seen["new leaves"] = new.leave()
        seen["described classic"] = group.described()
        seen["heartbeat classic"] = old.heartbeat()
        seen["joins classic"] = old.join()
        seen["leads"] = old.sync_assignment({old.member_id: assignment({topic: [0, 1, 2, 3]})})
        seen["stable"] = old.heartbeat(), group.described()
        seen["old leaves"] = old.leave()
        seen["new joins again"] = new.join(topic)
        seen["stored"] = group.stored_records()
        return group.normalize(seen)


@scenario()
def classic_member_joins(broker: Broker) -> Any:
    """Let a classic member join a consumer group step by step, and leave."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-join"
    with mixed_group(broker, "raw-migration-join") as group:
        group.topics.create(topic, 4)
        new = group.consumer("new")
        seen["alone"] = new.join(topic)
        old = group.classic(topic)
        old.send_subscribed_join()
        seen["asked for an id"] = old.receive_join()
        seen["before the interval is over"] = old.join()
        seen["nothing yet"] = old.sync_assignment(), group.described()
        time.sleep(modern.INTERVAL_S)
        seen["a target"] = new.send(), new.ack()
        seen["old may have some"] = old.rejoin()
        seen["again"] = old.rejoin()
        seen["described"] = group.described()
        again = group.classic(topic, version=0)
        seen["version 3 needs no id"] = again.join(version=3)
        seen["described with three"] = len(group.described()[0]["Groups"][0]["Members"])
        seen["third leaves"] = again.leave(version=2)
        seen["old leaves with another member id"] = old.leave({"MemberId": "new", "GroupInstanceId": "i"})
        seen["old and an unknown member leave"] = old.leave(
            {"MemberId": old.member_id, "GroupInstanceId": None},
            {"MemberId": "nobody", "GroupInstanceId": None},
        )
        seen["after"] = new.send(), group.described()
        return group.normalize(seen)


@scenario()
def wrong_requests(broker: Broker) -> Any:
    """Send invalid classic requests to a consumer group."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-wrong"
    with mixed_group(broker, "raw-migration-wrong") as group:
        group.topics.create(topic, 2)
        new = group.consumer("new")
        new.join(topic)
        old = group.classic(topic)
        protocols = old.protocols()
        seen["another type"] = old.join(ProtocolType="connect")
        seen["no protocols"] = old.join(Protocols=[])
        seen["short session"] = old.join(SessionTimeoutMs=1)
        seen["version 9"] = old.join(
            Protocols=[{"Name": "range", "Metadata": b"\0\x09" + subscription(topic)[2:] + b"\xff" * 6}]
        )
        time.sleep(modern.INTERVAL_S)
        seen["a member id of its own"] = old.join(MemberId="old")
        seen["synced"] = old.sync_assignment()
        other = group.classic(topic)
        seen["other protocol"] = other.join(Protocols=[{"Name": "x", "Metadata": subscription(topic)}])
        seen["one in common"] = other.join(
            Protocols=[{"Name": "x", "Metadata": subscription(topic)}, protocols[1]]
        )
        epoch = old.generation
        seen["sync, wrong generation"] = old.sync_assignment(GenerationId=epoch + 1)
        seen["sync, unknown member"] = old.sync_assignment(MemberId="nobody")
        seen["sync, new"] = old.sync_assignment(MemberId="new", GenerationId=new.epoch)
        seen["sync, wrong type"] = old.sync_assignment(ProtocolType="connect")
        seen["sync, wrong protocol"] = old.sync_assignment(ProtocolName="cooperative-sticky")
        seen["sync, no names"] = old.sync_assignment(ProtocolType=None, ProtocolName=None)
        seen["sync, unknown instance"] = old.sync_assignment(GroupInstanceId="i")
        seen["heartbeat, wrong generation"] = old.heartbeat(GenerationId=epoch - 1)
        seen["heartbeat, unknown member"] = old.heartbeat(MemberId="nobody")
        seen["heartbeat, new"] = old.heartbeat(MemberId="new", GenerationId=new.epoch)
        seen["heartbeat, unknown instance"] = old.heartbeat(GroupInstanceId="i")
        seen["joins as an unknown instance"] = old.join(GroupInstanceId="i")
        seen["leaves as an unknown instance"] = old.leave({"MemberId": "", "GroupInstanceId": "i"})
        seen["commit as new"] = old.commit(topic, 1, MemberId="new", GenerationIdOrMemberEpoch=epoch + 7)
        seen["commit, wrong generation"] = old.commit(topic, 1, GenerationIdOrMemberEpoch=epoch + 7)
        seen["deleted"] = comparable(group.client.call("DeleteGroups", 2, GroupsNames=[group.group]))
        return group.normalize(seen, other.member_id)


@scenario()
def not_upgradable(broker: Broker) -> Any:
    """Join classic groups with the consumer protocol, among them groups that cannot be upgraded."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-cannot"
    cases: dict[str, tuple[dict[str, Any], bytes]] = {
        "custom assignor": ({}, assignment({topic: [0]}, user_data=b"mine")),
        "empty user data": ({}, assignment({topic: [0]}, user_data=b"")),
        "no assignment": ({}, b""),
        "assignment cut short in a number": ({}, assignment({topic: [0]})[:5]),
        "assignment of a deleted topic": ({}, assignment({"raw-migration-gone": [0], topic: [0]})),
        "another type": ({"ProtocolType": "connect"}, assignment({topic: [0]})),
        "rack": (
            {"Protocols": [{"Name": "range", "Metadata": subscription(topic, version=1) + b"\0\0\0\1\0\1r"}]},
            assignment({topic: [0]}),
        ),
    }
    for index, (label, (changes, given)) in enumerate(cases.items()):
        with mixed_group(broker, f"raw-migration-cannot-{index}") as group:
            if not index:
                group.topics.create(topic, 1)
                ids = group.topics.ids
            group.topics.ids = ids
            old = group.classic(topic, instance="i")
            joined = old.join(**changes)
            took = old.sync_assignment(
                {old.member_id: given}, ProtocolType=changes.get("ProtocolType", "consumer")
            )
            new = group.consumer("new")
            seen[label] = group.normalize(
                [joined, took, new.join(topic, ServerAssignor="range"), old.heartbeat(), group.described()]
            )
    return seen


@scenario()
def upgraded_during_rebalance(broker: Broker) -> Any:
    """Upgrade a classic group during a rebalance."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-waits"
    with mixed_group(broker, "raw-migration-waits") as group:
        group.topics.create(topic, 2)
        first, second = group.classic(topic), group.classic(topic)
        group.form_classic_group(first, {topic: [0, 1]})
        second.send_subscribed_join()
        second.receive_join()
        second.send_subscribed_join()
        first.wait_for_rebalance()
        new = group.consumer("new")
        seen["upgraded"] = new.join(topic, ServerAssignor="range")
        seen["response to second"] = comparable(second.receive_join())
        seen["described"] = len(group.described()[0]["Groups"][0]["Members"])
        seen["first joins"] = first.join()
        seen["second joins"] = second.join()["ErrorCode"]
        return group.normalize(seen)


@scenario()
def member_without_common_protocol(broker: Broker) -> Any:
    """Try to upgrade a classic group while a member joins that does not support the group's protocol."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-lacks"
    with mixed_group(broker, "raw-migration-lacks") as group:
        group.topics.create(topic, 2)
        first, second = group.classic(topic), group.classic(topic)
        group.form_classic_group(first, {topic: [0, 1]})
        sticky = second.protocols()[1:]
        second.send_join(7, Protocols=sticky)
        second.receive_join()
        second.send_join(7, Protocols=sticky)
        first.wait_for_rebalance()
        seen["refused"] = group.consumer("new").join(topic, ServerAssignor="range")
        seen["response to second"] = comparable(second.receive_join())
        (requested,) = group.client.call("DescribeGroups", 5, Groups=[group.group])["Groups"]
        seen["state"] = requested["GroupState"]
        return group.normalize(seen)


@scenario()
def static_members(broker: Broker) -> Any:
    """Restart static members one by one with the consumer protocol, then with the classic protocol again."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-static"
    with mixed_group(broker, "raw-migration-static") as group:
        group.topics.create(topic, 4)
        one, two = group.classic(topic, instance="i1"), group.classic(topic, instance="i2")
        group.form_classic_group(one, {topic: [0, 1, 2, 3]})
        two.send_subscribed_join()
        one.wait_for_rebalance()
        one.send_subscribed_join()
        one.receive_join()
        two.receive_join()
        two.client.send(
            "SyncGroup", 5, GroupId=group.group, GenerationId=two.generation, MemberId=two.member_id,
            GroupInstanceId="i2", ProtocolType="consumer", ProtocolName="range", Assignments=[],
        )  # fmt: skip
        shares = {one.member_id: assignment({topic: [0, 1]}), two.member_id: assignment({topic: [2, 3]})}
        seen["one syncs"] = one.sync_assignment(shares)
        two.client.receive("SyncGroup", 5)
        two.owned = {topic: [2, 3]}
        former = [one.member_id, two.member_id]
        new_one = group.consumer("new-1", "i1")
        seen["one is back, new"] = new_one.join(topic)
        seen["the old one"] = one.heartbeat(), one.sync_assignment(), one.commit(topic, 1)
        seen["described"] = group.described()
        seen["two"] = two.rejoin(), two.heartbeat()
        new_two = group.consumer("new-2", "i2")
        seen["two is back, new"] = new_two.join(topic)
        seen["two again, instance in use"] = group.consumer("new-3", "i2").join(topic)
        seen["described, all new"] = group.described()
        two.member_id, two.generation = "", -1
        seen["two is back, old"] = two.join(), two.sync_assignment()
        seen["new two is fenced"] = new_two.send()
        seen["described, mixed"] = group.described()
        one.member_id, one.generation = "", -1
        seen["one is back, old: downgraded"] = one.join(), one.sync_assignment()
        seen["described, classic"] = group.described()
        seen["heartbeats"] = one.heartbeat(), two.heartbeat()
        seen["stored"] = group.stored_records()
        return group.normalize(seen, *former)


@scenario()
def static_member_with_new_subscription(broker: Broker) -> Any:
    """Restart the last consumer protocol member as a classic member with another subscription."""
    seen: dict[str, Any] = {}
    topic, more = "raw-migration-a", "raw-migration-b"
    with mixed_group(broker, "raw-migration-else") as group:
        group.topics.create(topic, 2)
        group.topics.create(more, 1)
        new = group.consumer("new", "i")
        seen["alone"] = new.join(topic, SubscribedTopicRegex="raw-migration-a.*")
        time.sleep(0.5)  # the coordinator evaluates the expression after it has responded
        old = group.classic(topic, instance="j")
        seen["joined by"] = old.join(), old.sync_assignment()
        back = group.classic(topic, more, instance="i")
        seen["back"] = back.join(), back.sync_assignment()
        seen["rebalances"] = old.heartbeat(), back.heartbeat(), group.described()
        seen["stored"] = group.stored_records()
        return group.normalize(seen)


@scenario(seconds=120)
def before_the_first_generation(broker: Broker) -> Any:
    """Join with the consumer protocol during the initial rebalance delay of a classic group."""
    seen: dict[str, Any] = {}
    topic = "raw-migration-first"
    own = type(broker)({"group.initial.rebalance.delay.ms": "2000"})
    own.start()
    try:
        with mixed_group(own, topic) as group:
            group.topics.create(topic, 1)
            old = group.classic(topic)
            old.send_subscribed_join()
            old.receive_join()
            old.send_subscribed_join()
            time.sleep(0.5)
            new = group.consumer("new")
            seen["new"] = new.join(topic)
            seen["old"] = comparable(old.receive_join())
            seen["new again"] = new.join(topic)
            seen["described"] = group.described()
            seen["old joins again"] = old.join()
            seen["leads"] = old.sync_assignment({old.member_id: assignment({topic: [0]})})
            seen["new at last"] = new.join(topic)["ErrorCode"], old.heartbeat()
            return group.normalize(seen)
    finally:
        own.stop()


@scenario(seconds=240)
def migration_policies(broker: Broker) -> Any:
    """Upgrade and downgrade with each `group.consumer.migration.policy` except bidirectional."""
    seen: dict[str, Any] = {}
    for policy in ("disabled", "UPGRADE", "downgrade"):
        own = type(broker)({"group.consumer.migration.policy": policy})
        own.start()
        try:
            seen[policy] = observe_policy(own)
        finally:
            own.stop()
    return seen


def observe_policy(broker: Broker) -> Any:
    seen: dict[str, Any] = {}
    topic = "raw-migration-policy"
    with mixed_group(broker, "classic") as group:
        group.topics.create(topic, 1)
        ids = group.topics.ids
        old = group.classic(topic)
        group.form_classic_group(old, {topic: [0]})
        new = group.consumer("new")
        seen["new joins classic"] = new.join(topic), old.heartbeat()
        seen["new leaves"] = new.leave(), old.heartbeat(), group.described()
        seen["classic"] = group.normalize(dict(seen))
    with mixed_group(broker, "modern") as group:
        group.topics.ids = ids
        new = group.consumer("new")
        new.join(topic)
        old = group.classic(topic)
        responses = [old.join()]
        if not responses[0]["ErrorCode"]:
            responses.append(old.sync_assignment())
        seen["modern"] = group.normalize([responses, new.leave(), old.heartbeat(), group.described()])
    return {"classic": seen["classic"], "modern": seen["modern"]}
