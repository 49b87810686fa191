"""Groups that ask in vain: commits of which nothing is stored, the empty id, an assignor that is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_groups import Member
from interop.scenarios.raw_topics import until
from interop.scenarios.raw_transactions import Id, ready, settle
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


LONG = {"SessionTimeoutMs": 600_000, "RebalanceTimeoutMs": 600_000}
"""No timer is to write anything while a scenario looks."""

SHORT_SESSION_MS = 5000
SOON_S = 1.0

AT_ONCE = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # Kafka tells a new member's id before its batch with the group is written, and has a group seen with it
    # that comes in between.
    "group.coordinator.append.linger.ms": "0",
}

Write = Callable[[Member], Any]
"""What a member of another group of the same partition does next."""


def nothing(_member: Member) -> None: ...


def join_once(version: int = 7, **changes: Any) -> Write:
    """JoinGroup, of which a first answer may be the new member's id."""

    def join(member: Member) -> Any:
        member.send_join(version, **LONG, **changes)
        return member.joined(version)["ErrorCode"]

    return join


def joined(member: Member) -> None:
    member.join(**LONG)


def stable(member: Member, **changes: Any) -> None:
    member.join(**{**LONG, **changes})
    member.sync({member.member_id: b"all"})


def committed(member: Member) -> None:
    member.commit(TOPIC, 1, MemberId="", GenerationIdOrMemberEpoch=-1)


def delete_offset(member: Member, topic: str = TOPIC) -> Any:
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0}]}]
    answer = member.client.call("OffsetDelete", 0, GroupId=member.group, Topics=topics)
    return [answer["ErrorCode"], [one["Partitions"][0]["ErrorCode"] for one in answer["Topics"]]]


def a_transaction(member: Member) -> None:
    """Of which there is nothing but that it may commit offsets for the group."""
    one = Id(member.client, member.group)
    one.init()
    member.client.call("AddOffsetsToTxn", 3, **one.who, GroupId=member.group)


def end(*, commit: bool) -> Write:
    def write(member: Member) -> Any:
        one = Id(member.client, member.group)
        found = member.client.call("DescribeTransactions", 0, TransactionalIds=[one.name])
        state = found["TransactionStates"][0]
        one.producer_id, one.epoch = state["ProducerId"], state["ProducerEpoch"]
        return one.end(commit=commit)

    return write


def new_heartbeat(member: Member) -> Any:
    return heartbeat(member.client, member.group, "m", 0)[0]


NOTHING_WRITTEN: dict[str, tuple[Write, Write]] = {
    "JoinGroup with a member id": (join_once(), join_once()),
    "JoinGroup of a second member": (stable, join_once(MemberId="")),
    "JoinGroup as nobody": (nothing, join_once(MemberId="nobody")),
    "SyncGroup again": (stable, lambda member: member.sync()["ErrorCode"]),
    "Heartbeat": (stable, lambda member: member.heartbeat()),
    "LeaveGroup before JoinGroup": (join_once(), lambda member: member.leave()),
    "LeaveGroup of nobody": (stable, lambda member: member.leave({"MemberId": "nobody"})),
    "OffsetDelete of nothing": (committed, lambda member: delete_offset(member, "nowhere")),
    "DeleteGroups of a group with members": (stable, lambda member: deleted(member.client, member.group)),
}
NEXT: dict[str, tuple[Write, Write]] = {
    "JoinGroup": (nothing, join_once(3)),
    "JoinGroup without a member id": (nothing, join_once()),
    "JoinGroup without protocols": (nothing, join_once(Protocols=[])),
    "JoinGroup of a static member": (nothing, join_once(GroupInstanceId="static")),
    "SyncGroup": (joined, lambda member: member.sync({member.member_id: b"all"})["ErrorCode"]),
    "LeaveGroup": (stable, lambda member: member.leave()),
    "LeaveGroup before SyncGroup": (joined, lambda member: member.leave()),
    "a session's end": (lambda member: stable(member, SessionTimeoutMs=SHORT_SESSION_MS), nothing),
    "OffsetCommit of a member": (stable, lambda member: member.commit(TOPIC, 1)),
    "OffsetDelete": (committed, delete_offset),
    "DeleteGroups": (committed, lambda member: deleted(member.client, member.group)),
    "ConsumerGroupHeartbeat": (nothing, new_heartbeat),
    "a commit marker": (a_transaction, end(commit=True)),
    "an abort marker": (a_transaction, end(commit=False)),
}


@scenario(seconds=120)
def the_next_write(broker: Broker) -> Any:
    """What has a group seen of whose commit nothing is stored: any record or marker in its partition."""
    told: dict[str, Any] = {}
    with another(broker, {**ONE_STATE_PARTITION, **AT_ONCE}) as own, RawClient(own.bootstrap) as client:
        wait_for_coordinator(client, "any")
        ready(client, "any")
        create_topic(client, TOPIC)
        # First those, before the session of a consumer group's member may end, which writes.
        for name, (prepare, write) in {**NOTHING_WRITTEN, **NEXT}.items():
            unseen = f"before {name}"
            with Member(own, f"next {name}") as member:
                prepare(member)
                told[name] = [commit(client, unseen, TOO_LARGE), seen(client, unseen), write(member)]
                deadline = time.monotonic() + (WAIT_S if name in NEXT else SOON_S)
                while not seen(client, unseen)[0] and time.monotonic() < deadline:
                    time.sleep(0.05)
                told[name] += [seen(client, unseen)]
    return told


WIDE, WIDE_PARTITIONS = "in-vain-wide", 300

THEN = ("join", "commit", "heartbeat", "delete", "offsets", "leave", "too much", "transaction")
"""What comes after a classic member was refused."""

REFUSED_JOINS: dict[str, dict[str, Any]] = {
    "a member": {"MemberId": "nobody"},
    "a static member": {"MemberId": "nobody", "GroupInstanceId": "i"},
}


@scenario(seconds=120)
def joins_of_an_empty_consumer_group(broker: Broker) -> Any:
    """A classic member that may not join has the group gone; it is back when the broker starts again."""
    told: dict[str, Any] = {}
    with another(broker, {**ONE_STATE_PARTITION, **AT_ONCE}) as own:
        with RawClient(own.bootstrap) as client:
            wait_for_coordinator(client, "any")
            create_topic(client, TOPIC)
            create_topic(client, WIDE, WIDE_PARTITIONS)
            ready(client, "in-vain")
            for name, fields in REFUSED_JOINS.items():
                for then in THEN:
                    group = f"{name}, {then}"
                    one = Id(client, group)
                    one.init()
                    steps = told[group] = [
                        heartbeat(client, group, "m", 0),
                        commit(client, group, "kept", 9, MemberId="m", GenerationIdOrMemberEpoch=2),
                        heartbeat(client, group, "m", -1),
                        in_transaction(one, group) if then == "transaction" else None,
                        seen(client, group),
                        refused_join(own, group, **fields),
                        seen(client, group),
                        fetched(client, group),
                    ]
                    if then == "join":
                        steps += [refused_join(own, group, **fields)]
                    elif then == "commit":
                        steps += [commit(client, group, "more", 9)]
                    elif then == "heartbeat":
                        steps += [heartbeat(client, group, "m2", 0), heartbeat(client, group, "m2", -1)]
                    elif then == "delete":
                        steps += [deleted(client, group)]
                    elif then == "leave":
                        steps += [heartbeat(client, group, "m", -1)]
                    elif then == "too much":
                        steps += [commit_too_much(client, "another"), deleted(client, group)]
                    elif then == "transaction":
                        steps += [one.end(commit=True, version=5)]
                        settle(one)
                    steps += [seen(client, group), fetched(client, group)]
                    steps += [commit(client, "another", "small"), seen(client, group)]
                    steps += [fetched(client, group)]
                    if then == "offsets":
                        steps += [commit(client, group, TOO_LARGE), fetched(client, group)]
        for how in ("restarted", "restarted again"):
            own.restart()
            with RawClient(own.bootstrap) as client:
                wait_for_coordinator(client, "any")
                told[how] = {
                    group: [seen(client, group), fetched(client, group)] for group in told if "," in group
                }
    return told


REFUSED_GROUPS: dict[str, tuple[int, dict[str, Any]]] = {
    "at once": (3, {}),
    "static": (9, {"GroupInstanceId": "i"}),
    "a member id first": (7, {}),
    "no protocols": (7, {"Protocols": []}),
}


@scenario(seconds=120)
def groups_that_the_log_refuses(broker: Broker) -> Any:
    """A classic group whose first record is too large for its log is none, and replaces none."""
    told: dict[str, Any] = {}
    with another(broker, {**ONE_STATE_PARTITION, **AT_ONCE}) as own, RawClient(own.bootstrap) as client:
        wait_for_coordinator(client, "any")
        create_topic(client, TOPIC)
        for name in REFUSED_GROUPS:
            heartbeat(client, f"was, {name}", "m", 0)
            commit(client, f"was, {name}", "kept", 9, MemberId="m", GenerationIdOrMemberEpoch=2)
            heartbeat(client, f"was, {name}", "m", -1)
        limit(client, "30")
        until(lambda: commit(client, "any", "refused") != 0)
        for name, (version, fields) in REFUSED_GROUPS.items():
            for group in (f"new, {name}", f"was, {name}"):
                with Member(own, group) as member:
                    member.send_join(version, **{**LONG, **fields})
                    answer = member.joined(version)
                    told[group] = [comparable(answer), seen_once(client, group), fetched(client, group)]
                    if answer["MemberId"]:
                        member.send_join(version, **{**LONG, **fields})
                        told[group] += [member.joined(version)["ErrorCode"], seen_once(client, group)]
        limit(client, None)
        until(lambda: commit(client, "any", "small") == 0)
        for group, steps in told.items():
            with Member(own, group) as member:
                steps += [
                    seen_once(client, group),
                    member.join(**LONG)["GenerationId"],
                    seen_once(client, group),
                ]
    return told


def seen_once(client: RawClient, group: str) -> list[Any]:
    """As `seen`; ListGroups of Kafka's has a group twice that a refused one was to replace."""
    listed, *described = seen(client, group)
    return [listed[:1], *described]


def limit(client: RawClient, max_message_bytes: str | None) -> None:
    """How large a batch of the offsets topic may be; None: as large as ever."""
    change = {
        "Name": "max.message.bytes",
        "ConfigOperation": 0 if max_message_bytes else 1,
        "Value": max_message_bytes,
    }
    resource = {"ResourceType": 2, "ResourceName": "__consumer_offsets", "Configs": [change]}
    client.call("IncrementalAlterConfigs", 1, Resources=[resource], ValidateOnly=False)


def refused_join(broker: Broker, group: str, **fields: Any) -> int:
    with Member(broker, group) as member:
        member.send_join(7, **{**LONG, **fields})
        code: int = member.joined(7)["ErrorCode"]
        return code


def in_transaction(one: Id, group: str) -> Any:
    """An offset of which nobody hears before the transaction ends."""
    partition = {"PartitionIndex": 0, "CommittedOffset": 7, "CommittedMetadata": ""}
    topics = [{"Name": TOPIC, "Partitions": [partition]}]
    answer = one.client.call("TxnOffsetCommit", 5, **one.who, GroupId=group, Topics=topics)
    return answer["Topics"][0]["Partitions"][0]["ErrorCode"]


def commit_too_much(client: RawClient, group: str) -> list[int]:
    """More than a batch may have, in one commit."""
    partitions = [
        {"PartitionIndex": index, "CommittedOffset": 1, "CommittedMetadata": "x" * 4000}
        for index in range(WIDE_PARTITIONS)
    ]
    who = {"GenerationIdOrMemberEpoch": -1, "MemberId": ""}
    topics = [{"Name": WIDE, "Partitions": partitions}]
    answer = client.call("OffsetCommit", 8, GroupId=group, **who, Topics=topics)
    return sorted({partition["ErrorCode"] for partition in answer["Topics"][0]["Partitions"]})


def fetched(client: RawClient, group: str) -> list[Any]:
    """The group's offset as it is stored, and as those see it who want a stable one."""
    topics = [{"Name": TOPIC, "PartitionIndexes": [0]}]
    told: list[Any] = []
    for stable in (False, True):
        for who in ({}, {"MemberId": "m", "MemberEpoch": 2}):
            groups = [{"GroupId": group, **who, "Topics": topics}]
            answer = client.call("OffsetFetch", 9, Groups=groups, RequireStable=stable)["Groups"][0]
            places = [one["Partitions"][0] for one in answer["Topics"]]
            told += [answer["ErrorCode"], [[one["CommittedOffset"], one["ErrorCode"]] for one in places]]
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
        own.stop()
        own.properties["group.consumer.assignors"] = "range,uniform"
        own.start()
        with RawClient(own.bootstrap) as client:
            first = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}
            who = {"GroupId": "any", "MemberId": "m", "MemberEpoch": 0}
            answer = client.call("ConsumerGroupHeartbeat", 1, **who, **first, ServerAssignor="another")
            told["never heard of"] = [answer["ErrorCode"], answer["ErrorMessage"]]
    return told
