"""Helpers of the raw scenarios, which create topics, produce and fetch with RawClient."""

from __future__ import annotations

import time
from typing import Any

from interop.batches import Batch, walk
from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.wire import Fields, api_keys, encode_request

WAIT_S = 30.0
TOPIC_ALREADY_EXISTS = 36

# Values that differ from broker to broker. Scenarios compare only whether the values are present.
VOLATILE = {
    "TopicId",
    "Port",
    "ClusterId",
    "MemberId",
    "Leader",
    "ProducerId",
    "SessionId",
    "LogDir",
    "PartitionSize",
    "TotalBytes",
    "UsableBytes",
    "FinalizedFeaturesEpoch",
}
WORDS = {"ErrorMessage", "BatchIndexErrorMessage"}


def comparable(value: Any, name: str = "", *, words: bool = True) -> Any:
    """Return a decoded response without values that differ from run to run. Records become batch headers.

    Without `words`, the texts of error messages are replaced, so that only their presence is compared.
    """
    if isinstance(value, dict):
        return {
            key: comparable(item, key, words=words)
            for key, item in value.items()
            if not unset_leader(key, item)
        }
    if isinstance(value, list):
        items = [comparable(item, words=words) for item in value]
        return sorted(items) if name == "Mechanisms" else items
    if name == "Records":
        return None if value is None else walk(value)
    if (name in VOLATILE or (name in WORDS and not words)) and value not in (None, "", 0, -1, bytes(16)):
        return f"<{name}>"
    return value


def unset_leader(key: str, value: Any) -> bool:
    """Return whether CurrentLeader has its default value, which Apache Kafka omits if there is no error."""
    return key == "CurrentLeader" and isinstance(value, dict) and set(value.values()) <= {-1}


def create_topic(
    client: RawClient, name: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> bytes:
    """Create a topic, wait until its partitions have leaders, and return its id."""
    answer = client.call(
        "CreateTopics",
        7,
        timeoutMs=10_000,
        Topics=[
            {
                "Name": name,
                "NumPartitions": partitions,
                "ReplicationFactor": 1,
                "Configs": [{"Name": key, "Value": value} for key, value in (configs or {}).items()],
            }
        ],
    )
    topic = answer["Topics"][0]
    # Apache Kafka's broker repeats CreateTopics if its connection to the controller breaks. The first
    # request may have created the topic already.
    assert topic["ErrorCode"] in (0, TOPIC_ALREADY_EXISTS), answer
    wait_for_topic(client, name, partitions)
    if topic["ErrorCode"]:
        wanted = [{"TopicId": bytes(16), "Name": name}]
        topic = client.call("Metadata", 12, Topics=wanted, AllowAutoTopicCreation=False)["Topics"][0]
    topic_id: bytes = topic["TopicId"]
    return topic_id


def wait_for_topic(client: RawClient, name: str, partitions: int) -> None:
    """Wait until every partition has a leader in Metadata, and until each leader has its log."""
    deadline = time.monotonic() + WAIT_S
    every = [{"PartitionIndex": partition, "Timestamp": -2} for partition in range(partitions)]
    while time.monotonic() < deadline:
        topic = client.call("Metadata", 9, Topics=[{"Name": name}], AllowAutoTopicCreation=False)["Topics"][0]
        leaders = [partition for partition in topic["Partitions"] if partition["ErrorCode"] == 0]
        if topic["ErrorCode"] == 0 and len(leaders) == partitions:
            found = client.call("ListOffsets", 1, ReplicaId=-1, Topics=[{"Name": name, "Partitions": every}])
            if not any(partition["ErrorCode"] for partition in found["Topics"][0]["Partitions"]):
                return
        time.sleep(0.05)
    raise TimeoutError(f"{name} has no leaders after {WAIT_S} s")


def produce(
    client: RawClient,
    topic: str | bytes,
    records: bytes | None,
    *,
    partition: int = 0,
    version: int = 9,
    acks: int = -1,
    **fields: Any,
) -> Fields:
    """Produce to one partition. `topic` is a name, or an id in bytes. `fields` are further request fields."""
    who = {"TopicId": topic} if isinstance(topic, bytes) else {"Name": topic}
    return client.call(
        "Produce",
        version,
        Acks=acks,
        TimeoutMs=10_000,
        TopicData=[{**who, "PartitionData": [{"Index": partition, "Records": records}]}],
        **fields,
    )


def fetch(
    client: RawClient,
    topic: str | bytes,
    offset: int,
    *,
    partition: int = 0,
    version: int = 12,
    partition_fields: Fields | None = None,
    **fields: Any,
) -> Fields:
    """Fetch one partition without a fetch session and, unless `fields` change it, with MaxWaitMs 0."""
    who = {"TopicId": topic} if isinstance(topic, bytes) else {"Topic": topic}
    request: Fields = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, **fields}
    details = {
        "Partition": partition,
        "FetchOffset": offset,
        "PartitionMaxBytes": 1 << 20,
        **(partition_fields or {}),
    }
    return client.call("Fetch", version, Topics=[{**who, "Partitions": [details]}], **request)


def fill(client: RawClient, topic: str, batches: int, *, partition: int = 0) -> None:
    """Append this number of batches, each with one record."""
    for index in range(batches):
        answer = produce(
            client, topic, Batch(base_timestamp=1_700_000_000_000 + index).encode(), partition=partition
        )
        assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer


def wait_for_coordinator(client: RawClient, group: str) -> None:
    """Wait until the group's coordinator responds to OffsetFetch. Creates __consumer_offsets if needed."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = client.call("FindCoordinator", 3, Key=group, KeyType=0)["ErrorCode"]
        if found == 0:
            answer = client.call("OffsetFetch", 6, GroupId=group, Topics=None)
            if answer["ErrorCode"] == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no coordinator for {group} after {WAIT_S} s")


def on_new_connection(broker: Broker, api: str, version: int, **fields: Any) -> Any:
    """Send one request on a new connection and return its outcome in comparable form."""
    with RawClient(broker.bootstrap) as client:
        return comparable(client.outcome(encode_request(api, version, fields), api, version))


def by_api(answer: Fields) -> dict[str, str]:
    """Return the version ranges of an ApiVersions response, by API name."""
    names = {key: name for name, key in api_keys().items()}
    return {
        names[entry["ApiKey"]]: f"{entry['MinVersion']}-{entry['MaxVersion']}" for entry in answer["ApiKeys"]
    }
