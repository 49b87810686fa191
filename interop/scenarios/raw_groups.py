"""The classic group protocol, request by request: members, generations, offsets, and their errors."""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic, wait_for_coordinator, wait_for_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import versions_of

# A consumer's subscription to topic "t", version 0. Apache Kafka 4.3.1 parses the metadata when it completes
# a join with protocol type "consumer". If it cannot parse the metadata of a member, the join never completes.
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
PROTOCOLS = [{"Name": "range", "Metadata": SUBSCRIPTION}, {"Name": "roundrobin", "Metadata": SUBSCRIPTION}]
COMMITTED = "raw-groups-committed"


def prepare_group(client: RawClient, group: str) -> None:
    """Wait for the group's coordinator, and create the topic whose offsets the group commits."""
    wait_for_coordinator(client, group)
    response = client.call(
        "CreateTopics", 5, Topics=[{"Name": COMMITTED, "NumPartitions": 1, "ReplicationFactor": 1}]
    )
    assert response["Topics"][0]["ErrorCode"] in (0, 36), response
    wait_for_topic(client, COMMITTED, 1)


class Member:
    """A group member with a connection of its own."""

    def __init__(self, broker: Broker, group: str, instance: str | None = None) -> None:
        self.client = RawClient(broker.bootstrap)
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.__exit__()

    def send_join(self, version: int = 7, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "SessionTimeoutMs": 10_000,
            "MemberId": self.member_id,
            "ProtocolType": "consumer",
            "Protocols": PROTOCOLS,
        }
        if version >= 1:
            fields["RebalanceTimeoutMs"] = 15_000
        if version >= 5:
            fields["GroupInstanceId"] = self.instance
        self.client.send("JoinGroup", version, **{**fields, **changes})

    def receive_join(self, version: int = 7) -> Any:
        """Receive the JoinGroup response, and keep the member id and the generation for later requests."""
        response = self.client.receive("JoinGroup", version)
        if response["ErrorCode"] in (0, 79):
            self.member_id = response["MemberId"] or self.member_id
            if response["ErrorCode"] == 0:
                self.generation = response["GenerationId"]
        return response

    def join(self, version: int = 7, **changes: Any) -> Any:
        """Join the group. If the coordinator returns MEMBER_ID_REQUIRED, join again with the member id."""
        self.send_join(version, **changes)
        response = self.receive_join(version)
        if response["ErrorCode"] == 79:
            self.send_join(version, **changes)
            response = self.receive_join(version)
        return response

    def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "GenerationId": self.generation,
            "MemberId": self.member_id,
            "GroupInstanceId": self.instance,
            "ProtocolType": "consumer",
            "ProtocolName": "range",
            "Assignments": [
                {"MemberId": member_id, "Assignment": what} for member_id, what in (assignments or {}).items()
            ],
        }
        return self.client.call("SyncGroup", version, **{**fields, **changes})

    def heartbeat(self, version: int = 4, **changes: Any) -> int:
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "GenerationId": self.generation,
            "MemberId": self.member_id,
            "GroupInstanceId": self.instance,
        }
        error: int = self.client.call("Heartbeat", version, **{**fields, **changes})["ErrorCode"]
        return error

    def leave(self, *members: dict[str, Any], version: int = 5) -> Any:
        leaving = list(members) or [{"MemberId": self.member_id, "GroupInstanceId": self.instance}]
        return comparable(self.client.call("LeaveGroup", version, GroupId=self.group, Members=leaving))

    def commit(self, topic: str, offset: int, version: int = 9, partition: int = 0, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "GenerationIdOrMemberEpoch": self.generation,
            "MemberId": self.member_id,
            "GroupInstanceId": self.instance,
            "Topics": [
                {
                    "Name": topic,
                    "Partitions": [
                        {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": "note"}
                    ],
                }
            ],
        }
        return comparable(self.client.call("OffsetCommit", version, **{**fields, **changes}))


@scenario()
def one_member(broker: Broker) -> Any:
    """Let the only member of a group join and leave. Send invalid requests in between."""
    group = "raw-groups-one"
    seen: dict[str, Any] = {}
    with Member(broker, group) as member:
        prepare_group(member.client, group)
        seen["describe before"] = describe(member.client, group)
        seen["heartbeat before"] = member.heartbeat(MemberId="nobody")
        seen["sync before"] = comparable(member.sync(MemberId="nobody"))
        seen["leave before"] = member.leave({"MemberId": "nobody", "GroupInstanceId": None})
        member.send_join()
        first = member.receive_join()
        seen["asked for an id"] = comparable(first)
        seen["describe while pending"] = describe_stored(member.client, group)
        member.send_join()
        seen["joined"] = comparable(member.receive_join())
        seen["describe before sync"] = describe(member.client, group)
        seen["heartbeat before sync"] = member.heartbeat()
        seen["commit before sync"] = member.commit(COMMITTED, 1)
        seen["sync, wrong generation"] = comparable(member.sync(GenerationId=9))
        seen["sync, wrong member"] = comparable(member.sync(MemberId="nobody"))
        seen["sync, wrong protocol"] = comparable(member.sync(ProtocolName="other"))
        seen["sync, wrong type"] = comparable(member.sync(ProtocolType="other"))
        seen["synced"] = comparable(member.sync({member.member_id: b"all"}))
        seen["synced again"] = comparable(member.sync())
        seen["describe stable"] = describe(member.client, group)
        seen["heartbeat"] = member.heartbeat()
        seen["heartbeat, wrong generation"] = member.heartbeat(GenerationId=9)
        seen["heartbeat, wrong member"] = member.heartbeat(MemberId="nobody")
        seen["heartbeat, wrong group"] = member.heartbeat(GroupId="raw-groups-nobody")
        seen["heartbeat, empty group"] = member.heartbeat(GroupId="")
        seen["heartbeat, instance unknown"] = member.heartbeat(GroupInstanceId="nobody")
        seen["commit, wrong generation"] = member.commit(COMMITTED, 1, GenerationIdOrMemberEpoch=9)
        seen["commit, wrong member"] = member.commit(COMMITTED, 1, MemberId="nobody")
        seen["commit from outside"] = member.commit(COMMITTED, 1, MemberId="", GenerationIdOrMemberEpoch=-1)
        seen["delete while stable"] = delete(member.client, group)
        seen["join with other protocols"] = comparable(
            member.join(MemberId="", Protocols=[{"Name": "mine", "Metadata": SUBSCRIPTION}])
        )
        seen["join with other type"] = comparable(member.join(MemberId="", ProtocolType="connect"))
        seen["leave, wrong member"] = member.leave({"MemberId": "nobody", "GroupInstanceId": None})
        seen["leave"] = member.leave()
        seen["leave again"] = member.leave()
        seen["describe empty"] = describe(member.client, group)
        seen["heartbeat after"] = member.heartbeat()
        seen["list"] = list_group(member.client, group)
        seen["delete"] = delete(member.client, group)
        seen["delete again"] = delete(member.client, group)
        seen["describe after"] = describe(member.client, group)
    return seen


def describe(client: RawClient, group: str, version: int = 6) -> Any:
    response: Any = comparable(client.call("DescribeGroups", version, Groups=[group]))["Groups"][0]
    return response


def describe_stored(client: RawClient, group: str) -> Any:
    """Wait at most 5 s until the group exists, and describe it.

    In Apache Kafka, a new group exists after its first record is committed.
    """
    deadline = time.monotonic() + 5
    while (response := describe(client, group))["GroupState"] == "Dead" and time.monotonic() < deadline:
        time.sleep(0.01)
    return response


def list_group(client: RawClient, group: str, version: int = 5, **fields: Any) -> Any:
    response = client.call("ListGroups", version, **fields)
    return [comparable(entry) for entry in response["Groups"] if entry["GroupId"] == group]


def delete(client: RawClient, group: str, version: int = 2) -> Any:
    return comparable(client.call("DeleteGroups", version, GroupsNames=[group]))["Results"]


@scenario()
def join_requests(broker: Broker) -> Any:
    """Send JoinGroup in every version, and with invalid fields."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, "raw-groups-join")
    for version in versions_of("JoinGroup"):
        with Member(broker, f"raw-groups-join-v{version}") as member:
            member.send_join(version)
            seen[f"v{version}"] = comparable(member.receive_join(version))
            member.send_join(version)
            seen[f"v{version} with an id"] = comparable(member.receive_join(version))
    changes: dict[str, dict[str, Any]] = {
        "empty group": {"GroupId": ""},
        "session 5 s": {"SessionTimeoutMs": 5999},
        "session 6 s": {"SessionTimeoutMs": 6000},
        "session 30 min and 1 ms": {"SessionTimeoutMs": 1_800_001},
        "session 0": {"SessionTimeoutMs": 0},
        "session 0 with an id": {"SessionTimeoutMs": 0, "MemberId": "nobody"},
        "empty group with an id": {"GroupId": "", "MemberId": "nobody"},
        "unknown member": {"MemberId": "nobody"},
        "no protocols": {"Protocols": []},
        "no type": {"ProtocolType": ""},
        "protocol twice": {"Protocols": [PROTOCOLS[0], PROTOCOLS[0]]},
        "rebalance -1": {"RebalanceTimeoutMs": -1},
        "odd group name": {"GroupId": "a b/c\n"},
        "empty instance": {"GroupInstanceId": ""},
        "bad instance": {"GroupInstanceId": "a b"},
        "dots instance": {"GroupInstanceId": ".."},
        "long instance": {"GroupInstanceId": "x" * 250},
    }
    for index, (label, change) in enumerate(changes.items()):
        with Member(broker, f"raw-groups-join-bad-{index}") as member:
            member.client.socket.settimeout(8)
            member.send_join(7, **change)
            try:
                seen[label] = comparable(member.receive_join())
            except EOFError:
                seen[label] = "closed"
    return seen


@scenario()
def two_members(broker: Broker) -> Any:
    """Add a second member. After a heartbeat, the first member rejoins and assigns as the group leader."""
    group = "raw-groups-two"
    seen: dict[str, Any] = {}
    with Member(broker, group) as first, Member(broker, group) as second:
        prepare_group(first.client, group)
        first.join()
        first.sync({first.member_id: b"everything"})
        second.send_join()
        second.receive_join()
        second.send_join()
        for _ in range(200):
            beat = first.heartbeat()
            if beat:
                break
            time.sleep(0.02)
        seen["heartbeat of the first"] = beat
        seen["commit during the rebalance"] = first.commit(COMMITTED, 5)
        seen["describe"] = describe(first.client, group)["GroupState"]
        first.send_join(Protocols=PROTOCOLS)
        responses = {"first": first.receive_join(), "second": second.receive_join()}
        seen["leader is the first"] = responses["second"]["Leader"] == first.member_id
        seen["answers"] = {name: comparable(response) for name, response in responses.items()}
        seen["protocol"] = responses["first"]["ProtocolName"]
        seen["members in the leader's response"] = len(responses["first"]["Members"])
        chosen = responses["first"]["ProtocolName"]
        fields: dict[str, Any] = {
            "GroupId": group,
            "GenerationId": second.generation,
            "MemberId": second.member_id,
            "ProtocolType": "consumer",
            "ProtocolName": chosen,
        }
        second.client.send("SyncGroup", 5, **fields)
        lead = first.sync({first.member_id: b"one", second.member_id: b"two"}, ProtocolName=chosen)
        seen["sync of the leader"] = comparable(lead)
        seen["sync of the other"] = comparable(second.client.receive("SyncGroup", 5))
        seen["heartbeats"] = [first.heartbeat(), second.heartbeat()]
        seen["old generation"] = second.heartbeat(GenerationId=1)
        # If a follower rejoins without changes, there is no rebalance. If the leader rejoins, there is one.
        second.send_join(Protocols=PROTOCOLS)
        seen["follower joins unchanged"] = comparable(second.receive_join())
        seen["after that"] = describe(first.client, group)["GroupState"]
        seen["second leaves"] = second.leave()
        seen["first after"] = first.heartbeat()
    return seen


@scenario()
def static_members(broker: Broker) -> Any:
    """Restart a static member (KIP-345). It must get a new member id, and the old id must be fenced."""
    group = "raw-groups-static"
    seen: dict[str, Any] = {}
    with Member(broker, group, "i1") as old, Member(broker, group, "i1") as new:
        prepare_group(old.client, group)
        seen["joined"] = comparable(old.join())
        seen["synced"] = comparable(old.sync({old.member_id: b"mine"}))
        seen["rejoined"] = comparable(new.join(8))
        seen["another id"] = new.member_id != old.member_id
        seen["kept assignment"] = comparable(new.sync())
        seen["old heartbeat"] = old.heartbeat()
        seen["old commit"] = old.commit(COMMITTED, 1)
        seen["old sync"] = comparable(old.sync())
        seen["old join"] = comparable(old.join())
        seen["new heartbeat"] = new.heartbeat()
        seen["describe"] = describe(new.client, group)
        seen["leave by wrong id"] = new.leave({"MemberId": "nobody", "GroupInstanceId": "i1"})
        seen["leave unknown instance"] = new.leave({"MemberId": "", "GroupInstanceId": "i9"})
        seen["leave by instance"] = new.leave({"MemberId": "", "GroupInstanceId": "i1"})
        seen["after"] = describe(new.client, group)["GroupState"]
    return seen


@scenario()
def session_expires(broker: Broker) -> Any:
    """Let the session of a member time out. The shortest allowed session timeout is 6 s."""
    group = "raw-groups-expire"
    with Member(broker, group) as member, RawClient(broker.bootstrap) as other:
        prepare_group(member.client, group)
        member.join(SessionTimeoutMs=6000)
        member.sync({member.member_id: b"x"})
        started = time.monotonic()
        while describe(other, group)["GroupState"] == "Stable":
            time.sleep(0.05)
        spent = time.monotonic() - started
        return {
            "after": "six seconds" if 5.5 < spent < 8 else f"{spent:.1f} s",
            "state": describe(other, group)["GroupState"],
            "heartbeat": member.heartbeat(),
        }


@scenario()
def offsets(broker: Broker) -> Any:
    """Commit and fetch offsets in every version, and with invalid fields. Delete offsets."""
    group, topic = "raw-groups-offsets", "raw-groups-offsets"
    seen: dict[str, Any] = {}
    with Member(broker, group) as outside:
        client = outside.client
        wait_for_coordinator(client, group)
        topic_id = create_topic(client, topic, 2)
        for version in versions_of("OffsetCommit"):
            changes: dict[str, Any] = {"GenerationIdOrMemberEpoch": -1, "MemberId": ""}
            if version < 7:
                changes["GroupInstanceId"] = None
            if version >= 10:
                details = {"PartitionIndex": 0, "CommittedOffset": version, "CommittedMetadata": "note"}
                changes["Topics"] = [{"TopicId": topic_id, "Partitions": [details]}]
            seen[f"commit v{version}"] = outside.commit(topic, version, version, **changes)
        wrong = [{"TopicId": bytes(15) + b"\7", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}]
        seen["commit v10, unknown id"] = outside.commit(topic, 1, 10, MemberId="", Topics=wrong)
        for version in versions_of("OffsetFetch"):
            seen[f"fetch v{version}"] = fetch_offsets(client, version, group, topic, topic_id, [0, 1, 7])
            if version >= 2:
                seen[f"fetch all v{version}"] = fetch_offsets(client, version, group, None, topic_id, [])
        seen["fetch, unknown group"] = fetch_offsets(client, 8, "raw-groups-nobody", topic, topic_id, [0])
        seen["fetch all, unknown group"] = fetch_offsets(client, 8, "raw-groups-nobody", None, topic_id, [])
        seen["fetch, empty group"] = fetch_offsets(client, 8, "", topic, topic_id, [0])
        seen["fetch, unknown topic"] = fetch_offsets(client, 8, group, "raw-groups-nowhere", topic_id, [0])
        seen["fetch v10, unknown id"] = fetch_offsets(client, 10, group, topic, bytes(15) + b"\7", [0])
        seen["fetch v9 as a member"] = comparable(
            client.call(
                "OffsetFetch",
                9,
                Groups=[{"GroupId": group, "MemberId": "nobody", "MemberEpoch": 3, "Topics": None}],
            )
        )
        plain: dict[str, Any] = {"GenerationIdOrMemberEpoch": -1, "MemberId": ""}
        seen["unknown topic"] = outside.commit("raw-groups-nowhere", 1, **plain)
        seen["unknown partition"] = outside.commit(topic, 1, partition=9, **plain)
        seen["negative partition"] = outside.commit(topic, 1, partition=-1, **plain)
        seen["negative offset"] = outside.commit(topic, -5, **plain)
        seen["empty group"] = outside.commit(topic, 1, GroupId="", **plain)
        seen["generation from outside"] = outside.commit(topic, 1, GenerationIdOrMemberEpoch=3, MemberId="")
        seen["member from outside"] = outside.commit(
            topic, 1, GenerationIdOrMemberEpoch=-1, MemberId="nobody"
        )
        for letter, length in (("m", 4096), ("m", 4097), ("é", 4096), ("𝄞", 2048), ("𝄞", 2049)):
            details = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": letter * length}
            changes = {**plain, "Topics": [{"Name": topic, "Partitions": [details]}]}
            seen[f"metadata of {length} {letter}"] = outside.commit(topic, 1, **changes)
        details = {
            "PartitionIndex": 1,
            "CommittedOffset": 3,
            "CommittedLeaderEpoch": 7,
            "CommittedMetadata": None,
        }
        seen["null metadata"] = outside.commit(
            topic, 1, **plain, Topics=[{"Name": topic, "Partitions": [details]}]
        )
        seen["fetched back"] = fetch_offsets(client, 8, group, topic, topic_id, [1])
        seen["describe"] = describe(client, group)
        seen["list"] = list_group(client, group)
        seen["nothing"] = comparable(
            client.call("OffsetCommit", 9, GroupId=group, GenerationIdOrMemberEpoch=-1, Topics=[])
        )
        deleted = [{"Name": topic, "Partitions": [{"PartitionIndex": index} for index in (0, 9)]}]
        response = client.call("OffsetDelete", 0, GroupId=group, Topics=deleted)
        for each in response["Topics"]:
            each["Partitions"].sort(key=lambda one: one["PartitionIndex"])
        seen["delete one"] = comparable(response)
        nowhere = [{"Name": "raw-groups-nowhere", "Partitions": [{"PartitionIndex": 0}]}]
        seen["delete unknown"] = comparable(client.call("OffsetDelete", 0, GroupId=group, Topics=nowhere))
        seen["delete an unknown group"] = comparable(
            client.call("OffsetDelete", 0, GroupId="raw-groups-nobody", Topics=deleted)
        )
        seen["after deletion"] = fetch_offsets(client, 8, group, None, topic_id, [])
    return seen


def fetch_offsets(
    client: RawClient, version: int, group: str, topic: str | None, topic_id: bytes, partitions: list[int]
) -> Any:
    identity: dict[str, Any] = {"TopicId": topic_id} if version >= 10 else {"Name": topic}
    topics = None if topic is None else [{**identity, "PartitionIndexes": partitions}]
    if version >= 8:
        response = client.call("OffsetFetch", version, Groups=[{"GroupId": group, "Topics": topics}])
    else:
        response = client.call("OffsetFetch", version, GroupId=group, Topics=topics)
    return comparable(response)


@scenario()
def coordinators(broker: Broker) -> Any:
    """Send FindCoordinator in every version, for groups, share groups and an unknown key type."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, "raw-groups-find")
        for version in versions_of("FindCoordinator"):
            for kind in (0, 2, 9) if version else (0,):
                if version < 4:
                    fields: dict[str, Any] = {"Key": "raw-groups-find"}
                else:
                    fields = {"CoordinatorKeys": ["raw-groups-find", "raw-groups-other"]}
                if version:
                    fields["KeyType"] = kind
                seen[f"v{version} kind {kind}"] = comparable(
                    client.call("FindCoordinator", version, **fields)
                )
        seen["no keys"] = comparable(client.call("FindCoordinator", 4, KeyType=0, CoordinatorKeys=[]))
        seen["empty key"] = comparable(client.call("FindCoordinator", 4, KeyType=0, CoordinatorKeys=[""]))
    return seen


@scenario()
def every_version(broker: Broker) -> Any:
    """Send all requests for classic groups except JoinGroup in every version, and ListGroups with filters."""
    group = "raw-groups-versions"
    seen: dict[str, Any] = {}
    with Member(broker, group) as member:
        client = member.client
        wait_for_coordinator(client, group)
        member.join()
        member.sync({member.member_id: b"x"})
        for version in versions_of("DescribeGroups"):
            seen[f"describe v{version}"] = describe(client, group, version)
            seen[f"describe v{version} unknown"] = describe(client, "raw-groups-nobody", version)
        seen["describe with operations"] = comparable(
            client.call("DescribeGroups", 5, Groups=[group], IncludeAuthorizedOperations=True)
        )
        seen["describe empty name"] = describe(client, "")
        seen["describe no groups"] = comparable(client.call("DescribeGroups", 5, Groups=[]))
        for version in versions_of("ListGroups"):
            seen[f"list v{version}"] = list_group(client, group, version)
        for states in (["Stable"], ["stable"], ["Empty"], ["Nonsense"], []):
            seen[f"list {states}"] = list_group(client, group, 4, StatesFilter=states)
        for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"], []):
            seen[f"list types {types}"] = list_group(client, group, 5, TypesFilter=types)
        for version in versions_of("Heartbeat"):
            changes = {"GroupInstanceId": None} if version >= 3 else {}
            seen[f"heartbeat v{version}"] = member.heartbeat(version, **changes)
        for version in versions_of("SyncGroup"):
            seen[f"sync v{version}"] = comparable(member.sync(version=version))
        for version in versions_of("DeleteGroups"):
            seen[f"delete v{version}"] = delete(client, group, version)
            seen[f"delete v{version} unknown"] = delete(client, "raw-groups-nobody", version)
        for version in versions_of("LeaveGroup"):
            leaving = {"MemberId": "nobody"}
            fields = {"Members": [leaving]} if version >= 3 else leaving
            seen[f"leave v{version}"] = comparable(
                client.call("LeaveGroup", version, GroupId=group, **fields)
            )
        seen["leave without members"] = comparable(client.call("LeaveGroup", 4, GroupId=group, Members=[]))
        seen["leave of two"] = member.leave(
            {"MemberId": "nobody", "GroupInstanceId": None},
            {"MemberId": member.member_id, "GroupInstanceId": None},
        )
    return seen
