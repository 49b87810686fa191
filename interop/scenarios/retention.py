"""Retention: after the same requests and configuration changes, both brokers must have the same segments.

The scenario starts its own broker, which checks retention twice per second.
"""

from __future__ import annotations

import time
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import create_topic, produce
from interop.raw_client import RawClient
from interop.scenario import scenario

OVERRIDES = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}
DAY_MS = 24 * 3600 * 1000
VALUE_BYTES = 300_000
"""A value size in bytes. Three such values fill a segment of 1 MiB."""
SEGMENT = {"segment.bytes": str(1 << 20)}
SETTLE_S = 30.0
QUIET_S = 4.0


def write(client: RawClient, topic: str, timestamps: list[int]) -> None:
    for timestamp in timestamps:
        batch = Batch([Record(bytes(VALUE_BYTES), key=b"%d" % timestamp)], base_timestamp=timestamp)
        response = produce(client, topic, batch.encode())
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response


def offset(client: RawClient, topic: str, timestamp: int) -> int:
    requested = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": timestamp}]}]
    response = client.call("ListOffsets", 5, ReplicaId=-1, IsolationLevel=0, Topics=requested)
    found: int = response["Topics"][0]["Partitions"][0]["Offset"]
    return found


def log_state(broker: Broker, client: RawClient, topic: str) -> dict[str, Any]:
    directory = broker.log_dir / f"{topic}-0"
    return {
        "earliest": offset(client, topic, -2),
        "latest": offset(client, topic, -1),
        "segments": sorted(path.name for path in directory.glob("*.log")),
        "being deleted": len(list(directory.glob("*.deleted"))),
    }


def settled_logs(broker: Broker, client: RawClient, topics: list[str]) -> dict[str, Any]:
    """Wait until no log has changed for `QUIET_S` and no file is pending deletion. Return the log states."""
    deadline = time.monotonic() + SETTLE_S
    before: dict[str, Any] = {}
    since = time.monotonic()
    while time.monotonic() < deadline:
        now = {topic: log_state(broker, client, topic) for topic in topics}
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET_S and not any(seen["being deleted"] for seen in now.values()):
            break
        time.sleep(0.25)
    return before


def alter(client: RawClient, kind: int, name: str, **configs: str | None) -> None:
    changes = [
        {"Name": key.replace("_", "."), "ConfigOperation": 1 if value is None else 0, "Value": value}
        for key, value in configs.items()
    ]
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": changes}
    response = client.call("IncrementalAlterConfigs", 1, Resources=[resource], ValidateOnly=False)
    assert response["Responses"][0]["ErrorCode"] == 0, response


@scenario(seconds=150)
def segments(broker: Broker) -> Any:
    """Let retention delete segments by size, age or log start offset. Timestamps are old, new and future."""
    own = type(broker)(OVERRIDES)
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            return observe(own, client)
    finally:
        own.discard()


def observe(broker: Broker, client: RawClient) -> Any:
    now = int(time.time() * 1000)
    old, new, future = now - 30 * DAY_MS, now - 1000, now + 300 * DAY_MS
    topics: dict[str, tuple[dict[str, str], list[int]]] = {
        "by-size": ({"retention.bytes": "1500000"}, [new] * 12),
        "by-age": ({"retention.ms": str(DAY_MS)}, [old] * 7 + [new] * 5),
        "by-default-age": ({}, [old] * 4 + [new] * 4),
        "all-old": ({"retention.ms": str(DAY_MS)}, [old] * 7),
        "future-first": (
            {"retention.ms": str(DAY_MS), "message.timestamp.after.max.ms": str(400 * DAY_MS)},
            [future] * 3 + [old] * 6,
        ),
        "append-time": ({"retention.ms": str(DAY_MS), "message.timestamp.type": "LogAppendTime"}, [old] * 7),
        "for-ever": ({"retention.ms": "-1"}, [old] * 7),
        "compacted": ({"cleanup.policy": "compact", "retention.bytes": "1", "retention.ms": "1"}, [old] * 7),
        "by-time-rolled": (
            {"segment.ms": "60000", "retention.ms": "-1"},
            [new + i * 61_000 for i in range(5)],
        ),
        "changed": ({"retention.ms": "-1"}, [old] * 9),
        "by-broker-default": ({"retention.ms": "-1"}, [new] * 9),
        "records-deleted": ({"retention.ms": "-1"}, [new] * 9),
    }
    for name, (configs, timestamps) in topics.items():
        create_topic(client, name, configs={**SEGMENT, **configs})
        write(client, name, timestamps)
    deletion = [{"Name": "records-deleted", "Partitions": [{"PartitionIndex": 0, "Offset": 7}]}]
    client.call("DeleteRecords", 2, Topics=deletion, TimeoutMs=10_000)
    seen: dict[str, Any] = {"first": settled_logs(broker, client, list(topics))}
    alter(client, 2, "changed", retention_bytes="700000")
    alter(client, 4, "", log_retention_bytes="700000")
    later = ["changed", "by-broker-default", "for-ever"]
    seen["after the changes"] = settled_logs(broker, client, later)
    alter(client, 2, "changed", retention_bytes=None)
    alter(client, 4, "", log_retention_bytes=None)
    for name in later:
        write(client, name, [new] * 6)
    seen["after taking them back"] = settled_logs(broker, client, later)
    return seen
