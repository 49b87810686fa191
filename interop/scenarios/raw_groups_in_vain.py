"""Groups that ask in vain: commits of which nothing is stored, the empty id, an assignor that is gone."""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import Id, ready
from interop.tools import another

TOPIC = "in-vain"
TOO_LARGE = "x" * 5000
LOADING = (14, 15, 16)
WAIT_S = 20.0
ONE_STATE_PARTITION = {"offsets.topic.num.partitions": "1"}


def commit(client: RawClient, group: str, metadata: str, version: int = 8, **member: Any) -> int:
    partition = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": metadata}
    answer = client.call(
        "OffsetCommit",
        version,
        GroupId=group,
        **{"GenerationIdOrMemberEpoch": -1, "MemberId": "", **member},
        Topics=[{"Name": TOPIC, "Partitions": [partition]}],
    )
    code: int = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
    return code


def seen(client: RawClient, group: str) -> list[Any]:
    listed = client.call("ListGroups", 5)["Groups"]
    classic = client.call("DescribeGroups", 6, Groups=[group])["Groups"][0]
    consumer = client.call("ConsumerGroupDescribe", 1, GroupIds=[group])["Groups"][0]
    return [
        [[one["GroupState"], one["GroupType"]] for one in listed if one["GroupId"] == group],
        [classic["ErrorCode"], classic["GroupState"]],
        consumer["ErrorCode"],
    ]


def deleted(client: RawClient, group: str) -> int:
    code: int = client.call("DeleteGroups", 2, GroupsNames=[group])["Results"][0]["ErrorCode"]
    return code


MADE_IN_VAIN: dict[str, dict[str, Any]] = {
    "v2": {"version": 2},
    "v8": {},
    "epoch -5": {"GenerationIdOrMemberEpoch": -5},
    "a member": {"MemberId": "nobody"},
    "generation 3": {"GenerationIdOrMemberEpoch": 3},
}


@scenario(seconds=120)
def nothing_stored(broker: Broker) -> Any:
    """A commit whose metadata is too large makes its group, which is seen once anything else is stored."""
    told: dict[str, Any] = {}
    with another(broker, ONE_STATE_PARTITION) as own:
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            create_topic(client, TOPIC)
            for name, fields in MADE_IN_VAIN.items():
                told[name] = [commit(client, name, TOO_LARGE, **fields), seen(client, name)]
                told[name] += [commit(client, "another", "small"), seen(client, name)]
                told[name] += [deleted(client, name), deleted(client, name)]
                told[f"{name}, not seen"] = [commit(client, name, TOO_LARGE, **fields), deleted(client, name)]
            commit(client, "forgotten", TOO_LARGE)
            ready(client, "in-vain")
            one = Id(client, "in-vain")
            one.init()
            told["before a transaction's offset"] = seen(client, "forgotten")
            partition = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}
            topics = [{"Name": TOPIC, "Partitions": [partition]}]
            client.call("TxnOffsetCommit", 5, **one.who, GroupId="another", Topics=topics)
            told["after a transaction's offset"] = seen(client, "forgotten")
            one.end(commit=False, version=5)
        own.restart()
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            told["after a restart"] = seen(client, "forgotten")
    return told


@scenario(seconds=120)
def the_empty_id(broker: Broker) -> Any:
    """TxnOffsetCommit for the group "": nothing about its transaction is looked at, or changed."""
    told: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ready(client, "any")
        create_topic(client, TOPIC)
        for version in range(6):
            one = Id(client, f"raw-in-vain-{version}")
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
                    answer = client.call(
                        "TxnOffsetCommit",
                        version,
                        **{**one.who, **other},
                        GroupId="",
                        Topics=[{"Name": TOPIC, "Partitions": [partition]}],
                    )
                    code = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
                    told[f"v{version} {'begun' if begun else 'empty'} {name}"] = [code, one.described()]
            one.end(commit=False)
    return told


def heartbeat(client: RawClient, group: str, member: str, epoch: int, **fields: Any) -> list[Any]:
    """The error, the epoch, and which partitions are assigned, if that is said."""
    if not epoch:
        first = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}
        fields = {**first, **fields}
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = client.call(
            "ConsumerGroupHeartbeat", 1, GroupId=group, MemberId=member, MemberEpoch=epoch, **fields
        )
        if answer["ErrorCode"] not in LOADING or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assigned = answer["Assignment"]
    partitions = assigned and [topic["Partitions"] for topic in assigned["TopicPartitions"]]
    return [answer["ErrorCode"], bool(answer["ErrorMessage"]), answer["MemberEpoch"], partitions]


def state(client: RawClient, group: str) -> list[Any]:
    found = client.call("ConsumerGroupDescribe", 1, GroupIds=[group])["Groups"][0]
    return [found[name] for name in ("GroupState", "GroupEpoch", "AssignmentEpoch", "AssignorName")]


@scenario(seconds=120)
def an_assignor_that_is_gone(broker: Broker) -> Any:
    """Its members named it when the broker still had it: no new target until most name another, or none."""
    told: dict[str, Any] = {}
    with another(broker, {"group.consumer.assignment.interval.ms": "0"}) as own:
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            create_topic(client, TOPIC, 4)
            for group in ("leaves", "names another", "grows"):
                told[group] = [heartbeat(client, group, "m", 0, ServerAssignor="uniform")]
            told["most name none"] = [heartbeat(client, "most name none", "m", 0)]
        own.stop()
        own.properties["group.consumer.assignors"] = "range"
        own.start()
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            for group, steps in told.items():
                steps += [heartbeat(client, group, "m", 2), state(client, group)]
                if group != "grows":
                    steps += [heartbeat(client, group, "second", 0), state(client, group)]
            told["leaves"] += [
                heartbeat(client, "leaves", "m", -1),
                heartbeat(client, "leaves", "second", 0),
                state(client, "leaves"),
            ]
            told["names another"] += [
                heartbeat(client, "names another", "m", 2, ServerAssignor="range"),
                heartbeat(client, "names another", "second", 0),
                state(client, "names another"),
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
            told["grows"] += [
                heartbeat(client, "grows", "m", 2),
                state(client, "grows"),
                heartbeat(client, "grows", "m", 2, ServerAssignor="range"),
                state(client, "grows"),
            ]
    return told
