"""Group requests that fail: records that are too large, an empty group id, and a removed assignor."""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_groups import Member
from interop.scenarios.raw_topics import until
from interop.scenarios.raw_transactions import TransactionalId, wait_for_transaction_coordinator
from interop.tools import another

TOPIC = "in-vain"
LOADING = (14, 15, 16)
WAIT_S = 20.0
ONE_STATE_PARTITION = {"offsets.topic.num.partitions": "1"}


def commit(client: RawClient, group: str, metadata: str, version: int = 8, **member: Any) -> int:
    partition = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": metadata}
    response = client.call(
        "OffsetCommit",
        version,
        GroupId=group,
        **{"GenerationIdOrMemberEpoch": -1, "MemberId": "", **member},
        Topics=[{"Name": TOPIC, "Partitions": [partition]}],
    )
    code: int = response["Topics"][0]["Partitions"][0]["ErrorCode"]
    return code


def group_state(client: RawClient, group: str) -> list[Any]:
    listed = client.call("ListGroups", 5)["Groups"]
    classic = client.call("DescribeGroups", 6, Groups=[group])["Groups"][0]
    consumer = client.call("ConsumerGroupDescribe", 1, GroupIds=[group])["Groups"][0]
    return [
        [[one["GroupState"], one["GroupType"]] for one in listed if one["GroupId"] == group],
        [classic["ErrorCode"], classic["GroupState"]],
        consumer["ErrorCode"],
    ]


LONG_TIMEOUTS = {"SessionTimeoutMs": 600_000, "RebalanceTimeoutMs": 600_000}
"""Long timeouts, so that no timer of the coordinator writes a record during a scenario."""

WITHOUT_DELAYS = {"group.initial.rebalance.delay.ms": "0", "group.coordinator.append.linger.ms": "0"}

REJECTED_GROUPS: dict[str, tuple[int, dict[str, Any]]] = {
    "at once": (3, {}),
    "static": (9, {"GroupInstanceId": "i"}),
    "a member id first": (7, {}),
    "no protocols": (7, {"Protocols": []}),
}


@scenario(seconds=120)
def records_too_large(broker: Broker) -> Any:
    """Create classic groups whose first record is too large for the log. Some replace a consumer group."""
    seen: dict[str, Any] = {}
    with (
        another(broker, {**ONE_STATE_PARTITION, **WITHOUT_DELAYS}) as own,
        RawClient(own.bootstrap) as client,
    ):
        wait_for_coordinator(client, "any")
        create_topic(client, TOPIC)
        for name in REJECTED_GROUPS:
            heartbeat(client, f"was, {name}", "m", 0)
            commit(client, f"was, {name}", "kept", 9, MemberId="m", GenerationIdOrMemberEpoch=2)
            heartbeat(client, f"was, {name}", "m", -1)
        set_max_message_bytes(client, "30")
        until(lambda: commit(client, "any", "refused") != 0)
        for name, (version, fields) in REJECTED_GROUPS.items():
            for group in (f"new, {name}", f"was, {name}"):
                with Member(own, group) as member:
                    member.send_join(version, **{**LONG_TIMEOUTS, **fields})
                    response = member.receive_join(version)
                    seen[group] = [
                        comparable(response),
                        group_state_once(client, group),
                        fetched_offsets(client, group),
                    ]
                    if response["MemberId"]:
                        member.send_join(version, **{**LONG_TIMEOUTS, **fields})
                        seen[group] += [
                            member.receive_join(version)["ErrorCode"],
                            group_state_once(client, group),
                        ]
        set_max_message_bytes(client, None)
        until(lambda: commit(client, "any", "small") == 0)
        for group, steps in seen.items():
            with Member(own, group) as member:
                steps += [
                    group_state_once(client, group),
                    member.join(**LONG_TIMEOUTS)["GenerationId"],
                    group_state_once(client, group),
                ]
    return seen


def group_state_once(client: RawClient, group: str) -> list[Any]:
    """Return `group_state`, but without the duplicate that Apache Kafka lists after a failed replacement."""
    listed, *described = group_state(client, group)
    return [listed[:1], *described]


def set_max_message_bytes(client: RawClient, max_message_bytes: str | None) -> None:
    """Set max.message.bytes of __consumer_offsets, or restore its default if the value is None."""
    change = {
        "Name": "max.message.bytes",
        "ConfigOperation": 0 if max_message_bytes else 1,
        "Value": max_message_bytes,
    }
    resource = {"ResourceType": 2, "ResourceName": "__consumer_offsets", "Configs": [change]}
    client.call("IncrementalAlterConfigs", 1, Resources=[resource], ValidateOnly=False)


def fetched_offsets(client: RawClient, group: str) -> list[Any]:
    """Return error codes and committed offset, with and without RequireStable and a member id."""
    topics = [{"Name": TOPIC, "PartitionIndexes": [0]}]
    seen: list[Any] = []
    for stable in (False, True):
        for who in ({}, {"MemberId": "m", "MemberEpoch": 2}):
            groups = [{"GroupId": group, **who, "Topics": topics}]
            response = client.call("OffsetFetch", 9, Groups=groups, RequireStable=stable)["Groups"][0]
            places = [one["Partitions"][0] for one in response["Topics"]]
            seen += [response["ErrorCode"], [[one["CommittedOffset"], one["ErrorCode"]] for one in places]]
    return seen


@scenario(seconds=120)
def empty_group_id(broker: Broker) -> Any:
    """Send TxnOffsetCommit for the group "". The coordinator must not change the transaction."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        create_topic(client, TOPIC)
        for version in range(6):
            one = TransactionalId(client, f"raw-in-vain-{version}")
            one.init()
            for begun in (False, True):
                if begun:
                    one.add((TOPIC, 0))
                asks: dict[str, dict[str, Any]] = {
                    "right": {},
                    "producer": {"ProducerId": one.producer_id + 1000},
                    "epoch": {"ProducerEpoch": one.epoch + 1},
                    "nobody": {"TransactionalId": ""},
                }
                for name, other in asks.items():
                    partition = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}
                    response = client.call(
                        "TxnOffsetCommit",
                        version,
                        **{**one.identity, **other},
                        GroupId="",
                        Topics=[{"Name": TOPIC, "Partitions": [partition]}],
                    )
                    code = response["Topics"][0]["Partitions"][0]["ErrorCode"]
                    seen[f"v{version} {'begun' if begun else 'empty'} {name}"] = [code, one.described()]
            one.end(commit=False)
    return seen


def heartbeat(client: RawClient, group: str, member: str, epoch: int, **fields: Any) -> list[Any]:
    """Send ConsumerGroupHeartbeat until the coordinator has loaded the group. Epoch 0 joins the group.

    Return the error code, whether there is an error message, the member epoch, and the assigned partitions.
    """
    if not epoch:
        first = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}
        fields = {**first, **fields}
    deadline = time.monotonic() + WAIT_S
    while True:
        response = client.call(
            "ConsumerGroupHeartbeat", 1, GroupId=group, MemberId=member, MemberEpoch=epoch, **fields
        )
        if response["ErrorCode"] not in LOADING or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assigned = response["Assignment"]
    partitions = assigned and [topic["Partitions"] for topic in assigned["TopicPartitions"]]
    return [response["ErrorCode"], bool(response["ErrorMessage"]), response["MemberEpoch"], partitions]


def described_state(client: RawClient, group: str) -> list[Any]:
    found = client.call("ConsumerGroupDescribe", 1, GroupIds=[group])["Groups"][0]
    return [found[name] for name in ("GroupState", "GroupEpoch", "AssignmentEpoch", "AssignorName")]


@scenario(seconds=120)
def removed_assignor(broker: Broker) -> Any:
    """Restart the broker without the assignor that the members name.

    The target assignment must not change until most members name another assignor or none.
    """
    seen: dict[str, Any] = {}
    with another(broker, {"group.consumer.assignment.interval.ms": "0"}) as own:
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            create_topic(client, TOPIC, 4)
            for group in ("leaves", "names another", "grows"):
                seen[group] = [heartbeat(client, group, "m", 0, ServerAssignor="uniform")]
            seen["most name no assignor"] = [heartbeat(client, "most name no assignor", "m", 0)]
        own.stop()
        own.properties["group.consumer.assignors"] = "range"
        own.start()
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            for group, steps in seen.items():
                steps += [heartbeat(client, group, "m", 2), described_state(client, group)]
                if group != "grows":
                    steps += [heartbeat(client, group, "second", 0), described_state(client, group)]
            seen["leaves"] += [
                heartbeat(client, "leaves", "m", -1),
                heartbeat(client, "leaves", "second", 0),
                described_state(client, "leaves"),
            ]
            seen["names another"] += [
                heartbeat(client, "names another", "m", 2, ServerAssignor="range"),
                heartbeat(client, "names another", "second", 0),
                described_state(client, "names another"),
            ]
            client.call(
                "CreatePartitions",
                3,
                TimeoutMs=5000,
                Topics=[{"Name": TOPIC, "Count": 6, "Assignments": None}],
            )
            deadline = time.monotonic() + WAIT_S
            while heartbeat(client, "grows", "m", 2)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            seen["grows"] += [
                heartbeat(client, "grows", "m", 2),
                described_state(client, "grows"),
                heartbeat(client, "grows", "m", 2, ServerAssignor="range"),
                described_state(client, "grows"),
            ]
        own.stop()
        own.properties["group.consumer.assignors"] = "range,uniform"
        own.start()
        with RawClient(own.bootstrap) as client:
            first = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}
            who = {"GroupId": "any", "MemberId": "m", "MemberEpoch": 0}
            response = client.call("ConsumerGroupHeartbeat", 1, **who, **first, ServerAssignor="another")
            message, _, supported = response["ErrorMessage"].rstrip(".").partition(" assignors: ")
            seen["group does not exist"] = [response["ErrorCode"], message, sorted(supported.split(", "))]
    return seen
