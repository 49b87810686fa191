"""Requests of one connection, sent together: each sees what those before it have done."""

from __future__ import annotations

import struct
from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields, encode_request

TOPIC, GROUP = "raw-pipelined", "raw-pipelined-group"
ROUNDS = 4
"""The first of them finds a broker that has not done such a thing yet."""

Request = tuple[str, int, Fields]


@scenario()
def what_came_before(broker: Broker) -> Any:
    """Writes, and what looks at them from behind."""
    with RawClient(broker.bootstrap) as client:
        create_topic(client, TOPIC, 2)
        wait_for_coordinator(client, GROUP)
    seen: dict[str, Any] = {}
    for number in range(ROUNDS):
        name = f"{GROUP}-{number}"
        groups: Request = "ListGroups", 4, {"StatesFilter": []}
        answers = together(
            broker,
            produced(0),
            listed(0, -1),
            produced(1),
            produced(0),
            fetched(1),
            listed(0, -1),
            produced(1),
        )
        seen[f"{number}: the log"] = [
            appended(answers[0]),
            offset(answers[1]),
            appended(answers[2]),
            appended(answers[3]),
            answers[4]["Responses"][0]["Partitions"][0]["HighWatermark"],
            offset(answers[5]),
            appended(answers[6]),
        ]
        answers = together(broker, deleted(number), listed(0, -2), committed(GROUP, number), offsets(GROUP))
        seen[f"{number}: start and commit"] = [offset(answers[1]), commits(answers[3])]
        answers = together(
            broker,
            committed(name, 1),
            groups,
            ("DeleteGroups", 2, {"GroupsNames": [name]}),
            groups,
            committed(name, 2),
            offsets(name),
        )
        seen[f"{number}: a group"] = [
            [name in [group["GroupId"] for group in answers[at]["Groups"]] for at in (1, 3)],
            commits(answers[5]),
        ]
    return seen


def together(broker: Broker, *requests: Request) -> list[Any]:
    """Send all of them in one piece, and read their answers."""
    frames = [encode_request(api, version, fields) for api, version, fields in requests]
    with RawClient(broker.bootstrap) as client:
        client.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        return [client.answer(api, version) for api, version, _ in requests]


def produced(partition: int) -> Request:
    data = [{"Index": partition, "Records": Batch().encode()}]
    return (
        "Produce",
        9,
        {"Acks": -1, "TimeoutMs": 5_000, "TopicData": [{"Name": TOPIC, "PartitionData": data}]},
    )


def appended(answer: Fields) -> int:
    found: int = answer["Responses"][0]["PartitionResponses"][0]["BaseOffset"]
    return found


def listed(partition: int, timestamp: int) -> Request:
    asked = {"PartitionIndex": partition, "Timestamp": timestamp, "CurrentLeaderEpoch": -1}
    return "ListOffsets", 4, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [asked]}]}


def offset(answer: Fields) -> int:
    found: int = answer["Topics"][0]["Partitions"][0]["Offset"]
    return found


def fetched(partition: int) -> Request:
    asked = {"Partition": partition, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    topics = [{"Topic": TOPIC, "Partitions": [asked]}]
    return "Fetch", 12, {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "Topics": topics}


def deleted(before: int) -> Request:
    partitions = [{"PartitionIndex": 0, "Offset": before}]
    return "DeleteRecords", 2, {"TimeoutMs": 5_000, "Topics": [{"Name": TOPIC, "Partitions": partitions}]}


def committed(group: str, at: int) -> Request:
    partitions = [{"PartitionIndex": 0, "CommittedOffset": at, "CommittedMetadata": ""}]
    who = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": ""}
    return "OffsetCommit", 8, {**who, "Topics": [{"Name": TOPIC, "Partitions": partitions}]}


def offsets(group: str) -> Request:
    return "OffsetFetch", 7, {"GroupId": group, "Topics": None}


def commits(answer: Fields) -> list[int]:
    return [partition["CommittedOffset"] for topic in answer["Topics"] for partition in topic["Partitions"]]
