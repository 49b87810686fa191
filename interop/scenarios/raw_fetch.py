"""Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords, request by request."""

from __future__ import annotations

import time
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fetch, fill, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import versions_of


def first_partition(response: Any) -> Any:
    """Return the first partition of a Fetch response, or the complete response if it has no topics."""
    responses = response.get("Responses") or []
    return responses[0]["Partitions"][0] if responses else response


@scenario()
def fetch_offsets(broker: Broker) -> Any:
    """Fetch inside the log, at its end, beyond its end and before its start, with byte limits."""
    topic = "raw-fetch-offsets"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 2)
        fill(client, topic, 5)
        produce(client, topic, Batch([Record(bytes([index])) for index in range(10)]).encode())
        for offset in (0, 3, 4, 5, 9, 14, 15, 16, 100, -1, -2, 2**62):
            seen[f"offset {offset}"] = first_partition(comparable(fetch(client, topic, offset)))
        seen["partition 2"] = first_partition(comparable(fetch(client, topic, 0, partition=2)))
        seen["partition -1"] = first_partition(comparable(fetch(client, topic, 0, partition=-1)))
        seen["empty partition"] = first_partition(comparable(fetch(client, topic, 0, partition=1)))
        seen["unknown topic"] = first_partition(comparable(fetch(client, "raw-fetch-nowhere", 0)))
        for limit in (0, 1, 68, 70, 140, 200):
            seen[f"partition limit {limit}"] = first_partition(
                comparable(fetch(client, topic, 1, partition_fields={"PartitionMaxBytes": limit}))
            )
            seen[f"request limit {limit}"] = first_partition(
                comparable(fetch(client, topic, 1, MaxBytes=limit))
            )
        for isolation in (0, 1):
            seen[f"isolation {isolation}"] = first_partition(
                comparable(fetch(client, topic, 14, IsolationLevel=isolation))
            )
    return seen


@scenario()
def leader_epochs(broker: Broker) -> Any:
    """Send current, missing and invalid leader epochs in Fetch, OffsetForLeaderEpoch and ListOffsets."""
    topic = "raw-fetch-epochs"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        fill(client, topic, 3)
        for current in (-1, 0, 1, 99, -2):
            seen[f"fetch at {current}"] = first_partition(
                comparable(fetch(client, topic, 0, partition_fields={"CurrentLeaderEpoch": current}))
            )
        for last in (-1, 0, 1, 99):
            seen[f"last fetched {last}"] = first_partition(
                comparable(fetch(client, topic, 2, partition_fields={"LastFetchedEpoch": last}))
            )
        for version in versions_of("OffsetForLeaderEpoch"):
            for current in (-1, 0, 7):
                for wanted in (-1, 0, 1, 5):
                    details = {"Partition": 0, "CurrentLeaderEpoch": current, "LeaderEpoch": wanted}
                    response = client.call(
                        "OffsetForLeaderEpoch", version, Topics=[{"Topic": topic, "Partitions": [details]}]
                    )
                    seen[f"end of {wanted} at {current}, v{version}"] = comparable(response)
        seen["end, unknown topic"] = comparable(
            client.call(
                "OffsetForLeaderEpoch",
                4,
                Topics=[{"Topic": "raw-fetch-nowhere", "Partitions": [{"Partition": 0, "LeaderEpoch": 0}]}],
            )
        )
        for epoch in (0, 7):
            seen[f"list at {epoch}"] = list_offsets(client, topic, -1, epoch=epoch)
    return seen


def list_offsets(
    client: RawClient, topic: str, timestamp: int, *, version: int = 7, partition: int = 0, epoch: int = -1
) -> Any:
    details: dict[str, Any] = {"PartitionIndex": partition, "Timestamp": timestamp}
    if version >= 4:
        details["CurrentLeaderEpoch"] = epoch
    return comparable(
        client.call("ListOffsets", version, ReplicaId=-1, Topics=[{"Name": topic, "Partitions": [details]}])
    )


@scenario()
def list_offsets_by_timestamp(broker: Broker) -> Any:
    """List offsets for special timestamps in every version, and for real timestamps in one version."""
    topic = "raw-fetch-list"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 2)
        for stamps in ([10, 20, 30], [25], [40, 35], [5]):
            records = [Record(timestamp_delta=stamp - stamps[0]) for stamp in stamps]
            produce(client, topic, Batch(records, base_timestamp=stamps[0]).encode())
        for version in versions_of("ListOffsets"):
            for timestamp in (-1, -2, -3, -4, -5, -6, -7):
                seen[f"v{version} {timestamp}"] = list_offsets(client, topic, timestamp, version=version)
        for timestamp in (0, 5, 6, 10, 11, 20, 25, 26, 30, 31, 35, 36, 40, 41, 2**60):
            seen[f"timestamp {timestamp}"] = list_offsets(client, topic, timestamp)
        for timestamp in (-1, -2, -3, 0):
            seen[f"empty partition {timestamp}"] = list_offsets(client, topic, timestamp, partition=1)
        seen["unknown partition"] = list_offsets(client, topic, -1, partition=9)
        seen["unknown topic"] = list_offsets(client, "raw-fetch-nowhere", -1)
        for isolation in (0, 1):
            seen[f"isolation {isolation}"] = comparable(
                client.call(
                    "ListOffsets",
                    6,
                    ReplicaId=-1,
                    IsolationLevel=isolation,
                    Topics=[{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}],
                )
            )
        twice = [{"PartitionIndex": 0, "Timestamp": -1}, {"PartitionIndex": 0, "Timestamp": -2}]
        seen["a partition twice"] = comparable(
            client.call("ListOffsets", 7, ReplicaId=-1, Topics=[{"Name": topic, "Partitions": twice}])
        )
    return seen


@scenario()
def list_offsets_of_many(broker: Broker) -> Any:
    """List offsets of many partitions and topics."""
    topic = "raw-fetch-order"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 50)

        def request(*topics: tuple[str, list[int]]) -> Any:
            wanted = [
                {
                    "Name": name,
                    "Partitions": [{"PartitionIndex": index, "Timestamp": -1} for index in indexes],
                }
                for name, indexes in topics
            ]
            response = client.call("ListOffsets", 7, ReplicaId=-1, Topics=wanted)
            response["Topics"].sort(key=lambda found: found["Name"])
            for found in response["Topics"]:
                found["Partitions"].sort(key=lambda partition: partition["PartitionIndex"])
            return comparable(response)

        for count in (1, 10, 11, 12, 13, 24, 50, 100):
            seen[f"{count} partitions"] = request((topic, list(range(count))))
        seen["backwards"] = request((topic, list(range(9, -1, -1))))
        seen["topics"] = request(
            *((f"{topic}{suffix}", [1, 0, 2]) for suffix in ("", "-b", "-Aa", "-BB", "-a"))
        )
        seen["some twice"] = request(
            (topic, [*range(11), 3]), ("", [0]), (topic, [4, 20]), (f"{topic}-b", [])
        )
        seen["many topics"] = request(*((f"{topic}-{index}", [0]) for index in range(60)))
    return seen


@scenario()
def every_version(broker: Broker) -> Any:
    """Fetch successfully, from an unknown topic, and out of range, in each version."""
    topic = "raw-fetch-versions"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, topic)
        fill(client, topic, 2)
        for version in versions_of("Fetch"):
            target: str | bytes = topic_id if version >= 13 else topic
            nowhere: str | bytes = bytes(15) + b"\7" if version >= 13 else "raw-fetch-nowhere"
            seen[f"v{version} good"] = comparable(fetch(client, target, 1, version=version))
            seen[f"v{version} nowhere"] = comparable(fetch(client, nowhere, 0, version=version))
            seen[f"v{version} out of range"] = comparable(fetch(client, target, 9, version=version))
    return seen


@scenario()
def long_polls(broker: Broker) -> Any:
    """Fetch at the end of the log. The broker must wait for new records, for MinBytes or for the timeout."""
    topic = "raw-fetch-poll"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        create_topic(client, topic)

        def poll(offset: int, wait_ms: int, min_bytes: int, appended: int) -> Any:
            details = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            started = time.monotonic()
            client.send(
                "Fetch",
                11,
                MaxWaitMs=wait_ms,
                MinBytes=min_bytes,
                Topics=[{"Topic": topic, "Partitions": [details]}],
            )
            if appended:
                time.sleep(0.2)
                fill(other, topic, appended)
            response = comparable(client.receive("Fetch", 11))
            spent = time.monotonic() - started
            return {
                "batches": len(first_partition(response)["Records"]),
                "waited": "all its time" if spent >= wait_ms / 1000 else "less",
                "error": first_partition(response)["ErrorCode"],
            }

        seen["no record"] = poll(0, 600, 1, 0)
        seen["one record"] = poll(0, 20_000, 1, 1)
        seen["fewer bytes than the minimum"] = poll(1, 1500, 1000, 1)
        seen["the minimum of bytes"] = poll(1, 20_000, 100, 1)
        seen["no minimum"] = poll(3, 20_000, 0, 0)
        seen["past the end"] = poll(99, 20_000, 1, 0)
    return seen


@scenario()
def sessions(broker: Broker) -> Any:
    """Create, use, update and close fetch sessions (KIP-227), with wrong ids and epochs."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for topic in ("raw-fetch-session-a", "raw-fetch-session-b"):
            create_topic(client, topic, 2)
            fill(client, topic, 2)

        def call(
            session: int, epoch: int, parts: dict[str, list[tuple[int, int]]], forget: Any = (), v: int = 11
        ) -> Any:
            return client.call(
                "Fetch",
                v,
                MaxWaitMs=0,
                MinBytes=0,
                SessionId=session,
                SessionEpoch=epoch,
                Topics=[
                    {
                        "Topic": topic,
                        "Partitions": [
                            {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
                            for partition, offset in partitions
                        ],
                    }
                    for topic, partitions in parts.items()
                ],
                ForgottenTopicsData=[{"Topic": topic, "Partitions": list(which)} for topic, which in forget],
            )

        a, b = "raw-fetch-session-a", "raw-fetch-session-b"
        created = call(0, 0, {a: [(0, 0), (1, 0)], b: [(0, 0)]})
        session = created["SessionId"]
        seen["made"] = comparable(created)
        seen["nothing new"] = comparable(call(session, 1, {a: [(0, 2)], b: [(0, 2)]}))
        seen["still nothing"] = comparable(call(session, 2, {}))
        fill(client, a, 1)
        seen["one new"] = comparable(call(session, 3, {}))
        seen["same again"] = comparable(call(session, 4, {}))
        seen["forget one"] = comparable(call(session, 5, {}, [(a, [0])]))
        seen["a partition added"] = comparable(call(session, 6, {b: [(1, 0)]}))
        seen["offset out of range"] = comparable(call(session, 7, {b: [(1, 50)]}))
        seen["wrong epoch"] = comparable(call(session, 3, {}))
        seen["unknown id"] = comparable(call(12345, 1, {}))
        seen["unknown id, epoch 0"] = comparable(call(12345, 0, {a: [(0, 0)]}))
        seen["unknown topic in a new session"] = comparable(
            call(0, 0, {"raw-fetch-nowhere": [(0, 0)], a: [(0, 0)]})
        )
        seen["sessionless"] = comparable(call(0, -1, {a: [(0, 2)]}))
        seen["closed"] = comparable(call(session, -1, {}))
        seen["after closing"] = comparable(call(session, 8, {}))
        seen["id 0 with epoch 5"] = comparable(call(0, 5, {a: [(0, 0)]}))
        seen["empty new session"] = comparable(call(0, 0, {}))
    return seen


@scenario()
def delete_records(broker: Broker) -> Any:
    """Move the log start offset with DeleteRecords. Then fetch and list offsets below the new offset."""
    topic = "raw-fetch-delete"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        fill(client, topic, 10)

        def delete(offset: int, *, name: str = topic, partition: int = 0, version: int = 2) -> Any:
            wanted = [{"PartitionIndex": partition, "Offset": offset}]
            return comparable(
                client.call(
                    "DeleteRecords", version, TimeoutMs=10_000, Topics=[{"Name": name, "Partitions": wanted}]
                )
            )

        for version in versions_of("DeleteRecords"):
            seen[f"to {version + 1}, v{version}"] = delete(version + 1, version=version)
        seen["to 2 again"] = delete(2)
        seen["to 11 of 10"] = delete(11)
        seen["to -2"] = delete(-2)
        seen["unknown partition"] = delete(0, partition=7)
        seen["unknown topic"] = delete(0, name="raw-fetch-nowhere")
        seen["internal topic"] = delete(0, name="__cluster_metadata")
        seen["fetch below"] = first_partition(comparable(fetch(client, topic, 1)))
        seen["fetch at the start"] = first_partition(comparable(fetch(client, topic, 3)))
        seen["earliest"] = list_offsets(client, topic, -2)
        seen["by timestamp below"] = list_offsets(client, topic, 0)
        seen["to the end"] = delete(-1)
        seen["fetch at the end"] = first_partition(comparable(fetch(client, topic, 10)))
        seen["all ends"] = [list_offsets(client, topic, timestamp) for timestamp in (-1, -2, -3)]
        compact = "raw-fetch-delete-compact"
        create_topic(client, compact, 1, {"cleanup.policy": "compact"})
        seen["compacted topic"] = delete(0, name=compact)
    return seen
