"""The state of a broker as clients see it: topics, batches, records, offsets, epochs, groups and configs."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from interop.batches import walk
from interop.brokers import Broker
from interop.raw import fetch
from interop.raw_client import RawClient
from interop.wire import Fields

EARLIEST, LATEST, NEWEST = -2, -1, -3
TOPIC, BROKER = 2, 4
SET_DYNAMICALLY = {1, 2, 3}
"""The sources of dynamic configs in DescribeConfigs: topic, broker, and cluster default."""
READ_SECONDS = 60.0
STARTUP_SECONDS = 30.0
COMPACTED = "swap-compacted"
"""A topic that the broker may compact at any time, also between two observations."""


def topics_of(client: RawClient) -> dict[str, Fields]:
    """Wait until every partition has a leader, and return all topics."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while True:
        answer = client.call("Metadata", 12, Topics=None, AllowAutoTopicCreation=False)
        topics = {topic["Name"]: topic for topic in answer["Topics"]}
        waiting = [
            name
            for name, topic in topics.items()
            if topic["ErrorCode"] or any(partition["ErrorCode"] for partition in topic["Partitions"])
        ]
        if not waiting:
            return topics
        assert time.monotonic() < deadline, f"without leaders: {waiting}"
        time.sleep(0.1)


def observe(broker: Broker) -> dict[str, Any]:
    """Return the state of a broker in a form that can be compared with another observation."""
    with RawClient(broker.bootstrap) as client:
        topics = topics_of(client)
        seen: dict[str, Any] = {"topics": {}, "partitions": {}}
        for name, topic in sorted(topics.items()):
            seen["topics"][name] = {
                "id": topic["TopicId"].hex(),
                "internal": topic["IsInternal"],
                "partitions": len(topic["Partitions"]),
            }
            for index in range(len(topic["Partitions"])):
                seen["partitions"][f"{name}-{index}"] = partition(client, name, index)
        seen["configs"] = configs(client, list(topics))
        seen["groups"] = groups(client)
        seen["log dirs"] = log_dirs(client)
    seen["records"] = records(
        broker, {name: len(topic["Partitions"]) for name, topic in topics.items() if name[:2] != "__"}
    )
    for place, read in seen["records"].items():
        if place.startswith(COMPACTED):
            seen["records"][place] = newest_by_key(read)
    return seen


def newest_by_key(read: list[Any]) -> list[Any]:
    """Return the newest record of each key, except tombstones. Compaction preserves these records."""
    newest = {record[1]: record for record in read}
    return sorted(record for record in newest.values() if record[2] is not None)


def partition(client: RawClient, topic: str, index: int) -> Fields:
    """Return the offsets of a partition and, unless it is compacted, its epochs and a hash of its batches."""
    offsets = {}
    for label, timestamp in (("start", EARLIEST), ("end", LATEST), ("newest", NEWEST)):
        offsets[label] = list_offset(client, topic, index, timestamp)
    offset, data, watermark = offsets["start"], b"", -1
    while offset < offsets["end"]:
        answer = fetch(client, topic, offset, partition=index)["Responses"][0]["Partitions"][0]
        assert answer["ErrorCode"] == 0, (topic, index, answer)
        watermark = answer["HighWatermark"]
        batches = walk(answer["Records"] or b"")
        assert batches, (topic, index, offset, offsets)
        assert all(batch["crc_is_right"] for batch in batches), (topic, index, offset)
        data += answer["Records"][: sum(batch["length"] + 12 for batch in batches)]
        offset = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1
    seen: Fields = {**offsets, **stable(client, topic, index, offsets["start"])}
    if topic == COMPACTED:
        del seen["newest"]
        return seen
    batches = walk(data)
    written = sorted({batch["leader_epoch"] for batch in batches})
    return {
        **seen,
        "high watermark": watermark if batches else offsets["end"],
        "batches": len(batches),
        "bytes": hashlib.sha256(data).hexdigest(),
        "epochs": {str(epoch): epoch_end(client, topic, index, epoch) for epoch in written},
    }


def stable(client: RawClient, topic: str, index: int, start: int) -> Fields:
    """Return the last stable offset and the aborted transactions in a read_committed Fetch response."""
    answer = fetch(client, topic, start, partition=index, IsolationLevel=1)["Responses"][0]["Partitions"][0]
    aborted = answer["AbortedTransactions"] or []
    return {
        "last stable": answer["LastStableOffset"],
        "aborted": sorted((one["ProducerId"], one["FirstOffset"]) for one in aborted),
    }


def list_offset(client: RawClient, topic: str, index: int, timestamp: int) -> int:
    """Return the offset for a timestamp.

    Retry for a while, because a leader may become ready only after Metadata returns it.
    """
    deadline = time.monotonic() + STARTUP_SECONDS
    while True:
        answer = client.call(
            "ListOffsets",
            7,
            ReplicaId=-1,
            Topics=[{"Name": topic, "Partitions": [{"PartitionIndex": index, "Timestamp": timestamp}]}],
        )["Topics"][0]["Partitions"][0]
        if answer["ErrorCode"] == 0:
            offset: int = answer["Offset"]
            return offset
        assert time.monotonic() < deadline, (topic, index, answer)
        time.sleep(0.1)


def epoch_end(client: RawClient, topic: str, index: int, epoch: int) -> list[int]:
    """Return the error code, epoch and end offset in the OffsetForLeaderEpoch response."""
    answer = client.call(
        "OffsetForLeaderEpoch",
        4,
        ReplicaId=-1,
        Topics=[
            {
                "Topic": topic,
                "Partitions": [{"Partition": index, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}],
            }
        ],
    )["Topics"][0]["Partitions"][0]
    return [answer["ErrorCode"], answer["LeaderEpoch"], answer["EndOffset"]]


def configs(client: RawClient, topics: list[str]) -> dict[str, Any]:
    """Return the dynamic configs of topics, of the broker, and of the cluster."""
    resources = [{"ResourceType": TOPIC, "ResourceName": name} for name in topics]
    resources += [{"ResourceType": BROKER, "ResourceName": name} for name in ("1", "")]
    answer = client.call(
        "DescribeConfigs", 4, Resources=[{**one, "ConfigurationKeys": None} for one in resources]
    )
    return {
        f"{result['ResourceType']}:{result['ResourceName']}": {
            entry["Name"]: entry["Value"]
            for entry in result["Configs"]
            if entry["ConfigSource"] in SET_DYNAMICALLY
        }
        for result in answer["Results"]
    }


def groups(client: RawClient) -> dict[str, Any]:
    listed = client.call("ListGroups", 4, StatesFilter=[])["Groups"]
    found: dict[str, Any] = {}
    for group in sorted(entry["GroupId"] for entry in listed):
        described = client.call("DescribeGroups", 5, Groups=[group])["Groups"][0]
        offsets = client.call("OffsetFetch", 7, GroupId=group, Topics=None, RequireStable=False)
        found[group] = {
            "error": described["ErrorCode"],
            "state": described["GroupState"],
            "protocol": [described["ProtocolType"], described["ProtocolData"]],
            "members": described["Members"],
            "as a consumer group": consumer_group(client, group),
            "offsets": {
                f"{topic['Name']}-{entry['PartitionIndex']}": [
                    entry["CommittedOffset"],
                    entry["CommittedLeaderEpoch"],
                    entry["Metadata"],
                    entry["ErrorCode"],
                ]
                for topic in offsets["Topics"]
                for entry in topic["Partitions"]
            },
        }
    return found


def consumer_group(client: RawClient, group: str) -> dict[str, Any]:
    """Return the description of a consumer group (KIP-848), with its epochs and assignments."""
    described: dict[str, Any] = client.call("ConsumerGroupDescribe", 1, GroupIds=[group])["Groups"][0]
    described["Members"].sort(key=lambda member: member["MemberId"])
    for member in described["Members"]:
        for field in ("Assignment", "TargetAssignment"):
            for topic in member[field]["TopicPartitions"]:
                topic["Partitions"].sort()
    return described


def log_dirs(client: RawClient) -> dict[str, list[str]]:
    """Return the partitions in each log directory."""
    answer = client.call("DescribeLogDirs", 4, Topics=None)
    return {
        result["LogDir"].rpartition("/")[2]: sorted(
            f"{topic['Name']}-{entry['PartitionIndex']}"
            for topic in result["Topics"]
            for entry in topic["Partitions"]
        )
        for result in answer["Results"]
    }


def records(broker: Broker, topics: dict[str, int]) -> dict[str, list[Any]]:
    """Return every record that an unmodified consumer receives, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        places = [TopicPartition(name, index) for name, count in topics.items() for index in range(count)]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, timeout=10)[0]
        found: dict[str, list[Any]] = {f"{place.topic}-{place.partition}": [] for place in places}
        consumer.assign(places)
        open_ends, deadline = set(found), time.monotonic() + READ_SECONDS
        while open_ends:
            assert time.monotonic() < deadline, f"not read to the end: {open_ends}"
            for message in consumer.consume(500, timeout=0.2):
                where = f"{message.topic()}-{message.partition()}"
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", (where, error)
                    open_ends.discard(where)
                    continue
                value = message.value()
                found[where].append(
                    [
                        message.offset(),
                        message.key(),
                        None if value is None else hashlib.sha256(value).hexdigest(),
                        message.headers(),
                        message.timestamp(),
                    ]
                )
        return found
    finally:
        consumer.close()
