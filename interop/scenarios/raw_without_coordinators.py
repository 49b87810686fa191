"""Coordinator APIs before the internal topics exist. Some errors do not depend on the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields, versions_of

GROUPS = ("g", "")
TOPIC = "without-coordinators"
HEARTBEAT: Fields = {
    "MemberId": "AAAAAAAAAAAAAAAAAAAAAA",
    "MemberEpoch": 0,
    "RebalanceTimeoutMs": 1000,
    "SubscribedTopicNames": [TOPIC],
    "TopicPartitions": [],
}


def requests(topic_id: bytes) -> Iterator[tuple[str, str, Fields]]:
    """Yield requests, each an API, a label and the fields of all versions."""
    protocols = [{"Name": "range", "Metadata": b""}]
    offsets = [{"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}]
    for group in GROUPS:
        for member in ("", "m"):
            for timeout_ms in (-1, 0, 5_999, 6_000, 1_800_000, 1_800_001):
                yield (
                    "JoinGroup",
                    f"{group!r} as {member!r} with {timeout_ms}",
                    {
                        "GroupId": group,
                        "MemberId": member,
                        "SessionTimeoutMs": timeout_ms,
                        "RebalanceTimeoutMs": 1000,
                        "ProtocolType": "consumer",
                        "Protocols": protocols,
                    },
                )
        yield "SyncGroup", repr(group), {"GroupId": group, "MemberId": "m", "GenerationId": 1}
        yield "Heartbeat", repr(group), {"GroupId": group, "MemberId": "m", "GenerationId": 1}
        yield (
            "LeaveGroup",
            repr(group),
            {"GroupId": group, "MemberId": "m", "Members": [{"MemberId": "m"}, {"MemberId": "n"}]},
        )
        for generation in (-1, 7):
            yield (
                "OffsetCommit",
                f"{group!r} at {generation}",
                {
                    "GroupId": group,
                    "GenerationIdOrMemberEpoch": generation,
                    "MemberId": "",
                    "RetentionTimeMs": -1,
                    "Topics": [{"Name": TOPIC, "TopicId": topic_id, "Partitions": offsets}],
                },
            )
        yield (
            "OffsetDelete",
            repr(group),
            {"GroupId": group, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]},
        )
        yield (
            "TxnOffsetCommit",
            repr(group),
            {
                "TransactionalId": "t",
                "GroupId": group,
                "ProducerId": 1,
                "ProducerEpoch": 0,
                "Topics": [{"Name": TOPIC, "Partitions": offsets}],
            },
        )
        for change in ({}, {"MemberEpoch": -3}, {"MemberId": ""}, {"ServerAssignor": "none"}):
            yield "ConsumerGroupHeartbeat", f"{group!r} {change}", {**HEARTBEAT, "GroupId": group, **change}
    for groups in (["g", "h", "g", ""], ["", "i", "h", "g"], [f"g{number}" for number in range(40)], []):
        yield "DescribeGroups", str(groups), {"Groups": groups, "IncludeAuthorizedOperations": True}
        yield "DeleteGroups", str(groups), {"GroupsNames": groups}
        yield "ConsumerGroupDescribe", str(groups), {"GroupIds": groups}
    for states in ([], ["Stable"], ["none"]):
        yield "ListGroups", str(states), {"StatesFilter": states}
        yield "ListTransactions", str(states), {"StateFilters": states}
    for name in ("t", ""):
        for timeout_ms in (-1, 0, 1, 900_000, 900_001):
            for producer in ((-1, -1), (5, 0), (5, -1), (-1, 0)):
                yield (
                    "InitProducerId",
                    f"{name!r} as {producer} with {timeout_ms}",
                    {
                        "TransactionalId": name,
                        "TransactionTimeoutMs": timeout_ms,
                        "ProducerId": producer[0],
                        "ProducerEpoch": producer[1],
                    },
                )
        identity: Fields = {"ProducerId": 1, "ProducerEpoch": 0}
        yield "EndTxn", repr(name), {"TransactionalId": name, "Committed": True, **identity}
        yield "AddOffsetsToTxn", repr(name), {"TransactionalId": name, "GroupId": "g", **identity}
        yield "DescribeTransactions", repr(name), {"TransactionalIds": [name, "u", name]}


def add_partitions_requests(version: int) -> Iterator[tuple[str, Fields]]:
    """Yield AddPartitionsToTxn requests, as clients or brokers send them in this version."""
    topics = [{"Name": TOPIC, "Partitions": [0]}]
    for name in ("t", ""):
        if version < 4:
            yield (
                repr(name),
                {
                    "V3AndBelowTransactionalId": name,
                    "V3AndBelowProducerId": 1,
                    "V3AndBelowProducerEpoch": 0,
                    "V3AndBelowTopics": topics,
                },
            )
            continue
        for verify_only in (False, True):
            one = {
                "TransactionalId": name,
                "ProducerId": 1,
                "ProducerEpoch": 0,
                "VerifyOnly": verify_only,
                "Topics": topics,
            }
            yield f"{name!r} {verify_only}", {"Transactions": [one]}


def offset_fetch_requests(version: int, topic_id: bytes) -> Iterator[tuple[str, Fields]]:
    """Yield OffsetFetch requests for one group or, in versions that support it, for several groups."""
    for group in GROUPS:
        topics: list[Fields] = [{"Name": TOPIC, "PartitionIndexes": [0]}]
        for stable in (False, True):
            if version < 8:
                yield f"{group!r} {stable}", {"GroupId": group, "Topics": topics, "RequireStable": stable}
            else:
                topics[0]["TopicId"] = topic_id
                groups = [{"GroupId": one, "Topics": topics} for one in (group, "h", group)]
                yield f"{group!r} {stable}", {"Groups": groups, "RequireStable": stable}


@scenario(seconds=120)
def every_version(broker: Broker) -> Any:
    """Send each API in each version to a broker without coordinators."""
    seen: dict[str, Any] = {}
    own = type(broker)()
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            topic_id = create_topic(client, TOPIC)
            for api, what, fields in requests(topic_id):
                for version in versions_of(api):
                    if api == "InitProducerId" and version > 5:
                        continue  # kwire does not support two-phase commits
                    response = client.call(api, version, **fields)
                    for groups in (response.get("Groups"), response.get("Results")):
                        if groups and "GroupId" in groups[0]:
                            groups.sort(key=lambda group: str(group["GroupId"]))
                    seen[f"{api} v{version} {what}"] = comparable(response)
            for version in versions_of("AddPartitionsToTxn"):
                for what, fields in add_partitions_requests(version):
                    seen[f"AddPartitionsToTxn v{version} {what}"] = comparable(
                        client.call("AddPartitionsToTxn", version, **fields)
                    )
            for version in versions_of("OffsetFetch"):
                for what, fields in offset_fetch_requests(version, topic_id):
                    seen[f"OffsetFetch v{version} {what}"] = comparable(
                        client.call("OffsetFetch", version, **fields)
                    )
            names = [topic["Name"] for topic in client.call("Metadata", 9, Topics=None)["Topics"]]
            seen["topics"] = sorted(names)
    finally:
        own.discard()
    return seen
