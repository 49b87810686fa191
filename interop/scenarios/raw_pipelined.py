"""Pipelined requests on one connection. Each request must see the effects of the earlier requests."""

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
"""The number of repetitions. In the first one, the broker uses code paths that it has not used before."""

Request = tuple[str, int, Fields]


@scenario()
def reads_after_writes(broker: Broker) -> Any:
    """Pipeline writes, and reads of the written data."""
    with RawClient(broker.bootstrap) as client:
        create_topic(client, TOPIC, 2)
        wait_for_coordinator(client, GROUP)
    seen: dict[str, Any] = {}
    for number in range(ROUNDS):
        name = f"{GROUP}-{number}"
        groups: Request = "ListGroups", 4, {"StatesFilter": []}
        responses = send_together(
            broker,
            produce_request(0),
            list_offsets_request(0, -1),
            produce_request(1),
            produce_request(0),
            fetch_request(1),
            list_offsets_request(0, -1),
            produce_request(1),
        )
        seen[f"{number}: the log"] = [
            base_offset(responses[0]),
            listed_offset(responses[1]),
            base_offset(responses[2]),
            base_offset(responses[3]),
            responses[4]["Responses"][0]["Partitions"][0]["HighWatermark"],
            listed_offset(responses[5]),
            base_offset(responses[6]),
        ]
        responses = send_together(
            broker,
            delete_records_request(number),
            list_offsets_request(0, -2),
            commit_request(GROUP, number),
            offset_fetch_request(GROUP),
        )
        seen[f"{number}: start and commit"] = [listed_offset(responses[1]), committed_offsets(responses[3])]
        responses = send_together(
            broker,
            commit_request(name, 1),
            groups,
            ("DeleteGroups", 2, {"GroupsNames": [name]}),
            groups,
            commit_request(name, 2),
            offset_fetch_request(name),
        )
        seen[f"{number}: a group"] = [
            [name in [group["GroupId"] for group in responses[at]["Groups"]] for at in (1, 3)],
            committed_offsets(responses[5]),
        ]
    return seen


def send_together(broker: Broker, *requests: Request) -> list[Any]:
    """Send all requests at once on a new connection, and return their responses."""
    frames = [encode_request(api, version, fields) for api, version, fields in requests]
    with RawClient(broker.bootstrap) as client:
        client.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        return [client.answer(api, version) for api, version, _ in requests]


def produce_request(partition: int) -> Request:
    data = [{"Index": partition, "Records": Batch().encode()}]
    return (
        "Produce",
        9,
        {"Acks": -1, "TimeoutMs": 5_000, "TopicData": [{"Name": TOPIC, "PartitionData": data}]},
    )


def base_offset(response: Fields) -> int:
    found: int = response["Responses"][0]["PartitionResponses"][0]["BaseOffset"]
    return found


def list_offsets_request(partition: int, timestamp: int) -> Request:
    requested = {"PartitionIndex": partition, "Timestamp": timestamp, "CurrentLeaderEpoch": -1}
    return "ListOffsets", 4, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [requested]}]}


def listed_offset(response: Fields) -> int:
    found: int = response["Topics"][0]["Partitions"][0]["Offset"]
    return found


def fetch_request(partition: int) -> Request:
    requested = {"Partition": partition, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    topics = [{"Topic": TOPIC, "Partitions": [requested]}]
    return "Fetch", 12, {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "Topics": topics}


def delete_records_request(before: int) -> Request:
    partitions = [{"PartitionIndex": 0, "Offset": before}]
    return "DeleteRecords", 2, {"TimeoutMs": 5_000, "Topics": [{"Name": TOPIC, "Partitions": partitions}]}


def commit_request(group: str, offset: int) -> Request:
    partitions = [{"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": ""}]
    identity = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": ""}
    return "OffsetCommit", 8, {**identity, "Topics": [{"Name": TOPIC, "Partitions": partitions}]}


def offset_fetch_request(group: str) -> Request:
    return "OffsetFetch", 7, {"GroupId": group, "Topics": None}


def committed_offsets(response: Fields) -> list[int]:
    return [partition["CommittedOffset"] for topic in response["Topics"] for partition in topic["Partitions"]]
