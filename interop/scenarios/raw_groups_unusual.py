"""Unusual groups: pending members, other protocol types, and requests of which some items fail."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_groups import (
    COMMITTED,
    Member,
    delete,
    describe,
    describe_stored,
    list_group,
    prepare_group,
)


@scenario()
def pending_members(broker: Broker) -> Any:
    """Send requests as a member that has received a member id but has not joined with it."""
    group = "raw-groups-pending"
    seen: dict[str, Any] = {}
    with Member(broker, group) as member:
        prepare_group(member.client, group)
        member.send_join()
        member.receive_join()
        describe_stored(member.client, group)
        seen["list"] = list_group(member.client, group)
        seen["heartbeat"] = member.heartbeat()
        seen["sync"] = comparable(member.sync())
        seen["commit"] = member.commit(COMMITTED, 1, GenerationIdOrMemberEpoch=0)
        seen["commit without a generation"] = member.commit(COMMITTED, 1)
        seen["leave"] = member.leave()
        seen["leave again"] = member.leave()
        member.send_join()
        seen["join after all"] = comparable(member.receive_join())
        member.send_join(MemberId="")
        member.receive_join()
        seen["delete"] = delete(member.client, group)
        seen["join a deleted group"] = comparable(member.join())
    return seen


@scenario()
def other_protocol_types(broker: Broker) -> Any:
    """Run groups with the protocol types consumer and connect. Delete offsets with and without members."""
    seen: dict[str, Any] = {}
    for kind in ("consumer", "connect"):
        group = f"raw-groups-kind-{kind}"
        with Member(broker, group) as member:
            prepare_group(member.client, group)
            seen[f"{kind} joined"] = comparable(member.join(ProtocolType=kind))
            seen[f"{kind} delete offsets early"] = delete_offsets(member.client, group, (COMMITTED, [0]))
            given = {member.member_id: b"all", "stranger": b"nothing"}
            seen[f"{kind} synced"] = comparable(member.sync(given, ProtocolType=kind))
            seen[f"{kind} described"] = describe(member.client, group)
            seen[f"{kind} commit"] = member.commit(COMMITTED, 5)
            seen[f"{kind} delete offsets"] = delete_offsets(
                member.client, group, (COMMITTED, [0]), ("t", [0])
            )
            seen[f"{kind} leave"] = member.leave(
                {"MemberId": member.member_id, "GroupInstanceId": "wrong"},
                {"MemberId": "", "GroupInstanceId": None},
                *[{"MemberId": member.member_id, "GroupInstanceId": None}] * 2,
            )
            seen[f"{kind} delete offsets late"] = delete_offsets(member.client, group, (COMMITTED, [0, 0]))
            seen[f"{kind} joined as another"] = comparable(member.join(MemberId="", ProtocolType="other"))
    return seen


def delete_offsets(client: RawClient, group: str, *topics: tuple[str, list[int]]) -> Any:
    requested = [
        {"Name": name, "Partitions": [{"PartitionIndex": index} for index in indexes]}
        for name, indexes in topics
    ]
    response = client.call("OffsetDelete", 0, GroupId=group, Topics=requested)
    errors = [
        (topic["Name"], one["PartitionIndex"], one["ErrorCode"])
        for topic in response["Topics"]
        for one in topic["Partitions"]
    ]
    return response["ErrorCode"], sorted(errors)


@scenario()
def many_items(broker: Broker) -> Any:
    """Send requests with many topics, partitions and groups, some of them invalid."""
    group, one, two, three = "raw-groups-orders", "raw-orders-1", "raw-orders-2", "raw-orders-3"
    seen: dict[str, Any] = {}
    with Member(broker, group) as outside:
        client = outside.client
        wait_for_coordinator(client, group)
        ids = {name: create_topic(client, name, 3) for name in (one, two, three)}
        names = {topic_id.hex(): name for name, topic_id in ids.items()}
        ids |= {"raw-orders-none": bytes(15) + b"\7", "raw-orders-nil": bytes(16)}

        def commit(version: int, *requested: tuple[str, list[int]]) -> Any:
            topics = [
                {
                    **({"TopicId": ids[name]} if version >= 10 else {"Name": name}),
                    "Partitions": [
                        {
                            "PartitionIndex": index,
                            "CommittedOffset": 5,
                            "CommittedMetadata": "m" * (5000 if index == 1 else 1),
                        }
                        for index in indexes
                    ],
                }
                for name, indexes in requested
            ]
            response = client.call(
                "OffsetCommit", version, GroupId=group, GenerationIdOrMemberEpoch=-1, Topics=topics
            )
            return sorted(
                (
                    names.get(topic["TopicId"].hex(), "?") if version >= 10 else topic["Name"],
                    each["PartitionIndex"],
                    each["ErrorCode"],
                )
                for topic in response["Topics"]
                for each in topic["Partitions"]
            )

        none, nil = "raw-orders-none", "raw-orders-nil"
        for version in (2, 9, 10):
            seen[f"commit v{version}, nothing"] = commit(version, (one, []), (none, []))
            seen[f"commit v{version}, all there"] = commit(version, (one, [0, 1]), (two, []), (three, [2, 1]))
            seen[f"commit v{version}, some missing"] = commit(
                version, (one, [0, 9, 1, 8]), (none, [0]), (two, [2]), (three, []), (nil, [2])
            )
            seen[f"commit v{version}, late"] = commit(
                version, (one, [0]), (two, [0]), (none, [1]), (two, [7])
            )
        seen["describe a group without offsets"] = describe(client, "raw-groups-orders-none")
        deletions: list[list[tuple[str, list[int]]]] = [
            [(one, [])],
            [(one, [0, 9, 2])],
            [(one, [0]), (none, [1]), (two, [9, 2])],
        ]
        for requested in deletions:
            seen[f"delete offsets {requested}"] = delete_offsets(client, group, *requested)
        topics = [{"TopicId": ids[name], "PartitionIndexes": [2, 0]} for name in (none, three, nil, one)]
        fetched = client.call("OffsetFetch", 10, Groups=[{"GroupId": group, "Topics": topics}])
        seen["fetch v10"] = sorted(
            names.get(topic["TopicId"].hex(), "?") for topic in fetched["Groups"][0]["Topics"]
        )
        groups = [f"raw-groups-orders-{index}" for index in range(24)]
        for name in groups[::2]:
            outside.commit(one, 1, GroupId=name, GenerationIdOrMemberEpoch=-1, MemberId="")
        for requested_groups in (groups[:5], [*groups, groups[3]]):
            described = client.call("DescribeGroups", 6, Groups=requested_groups)["Groups"]
            seen[f"describe {len(requested_groups)}"] = sorted(
                (each["GroupId"], each["ErrorCode"]) for each in described
            )
            deleted = client.call("DeleteGroups", 2, GroupsNames=requested_groups)["Results"]
            seen[f"delete {len(requested_groups)}"] = sorted(
                (each["GroupId"], each["ErrorCode"]) for each in deleted
            )
    return seen
