"""Fetch sessions (KIP-227): closing, the order of partitions, and unknown topics."""

from __future__ import annotations

from typing import Any

from interop.batches import walk
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fill, wait_for_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields

Parts = list[tuple[str | bytes, list[int]]]
"""Topics by name or topic id, each with its partitions."""


def session_fetch(
    client: RawClient,
    session: int,
    epoch: int,
    parts: Parts,
    forget: Parts | None = None,
    version: int = 11,
    **fields: Any,
) -> Fields:
    """Fetch the partitions in `parts` from offset 0 without waiting, and remove `forget` from the session."""

    def named(topic: str | bytes) -> Fields:
        return {"TopicId": topic} if isinstance(topic, bytes) else {"Topic": topic}

    return client.call(
        "Fetch",
        version,
        MaxWaitMs=0,
        MinBytes=0,
        SessionId=session,
        SessionEpoch=epoch,
        Topics=[
            {
                **named(topic),
                "Partitions": [
                    {"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20} for index in indexes
                ],
            }
            for topic, indexes in parts
        ],
        ForgottenTopicsData=[{**named(topic), "Partitions": indexes} for topic, indexes in forget or []],
        **fields,
    )


def summarize_partitions(response: Fields) -> list[Any]:
    """Return topic, index, error code and number of batches of each partition, in the response's order."""
    return [
        [topic.get("Topic", ""), partition["PartitionIndex"], partition["ErrorCode"], len(batches)]
        for topic in response["Responses"]
        for partition in topic["Partitions"]
        for batches in [walk(partition["Records"] or b"")]
    ]


@scenario()
def session_without_partitions(broker: Broker) -> Any:
    """Remove the last partition from a session. The broker must respond and close the session."""
    name = "raw-fetch-sessions-emptied"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, name, 3)
        for partition in range(3):
            fill(client, name, 2, partition=partition)
        for version in (11, 13):
            topic: str | bytes = topic_id if version >= 13 else name
            for what, requested, forgotten in (
                ("another", [1], [0, 1]),
                ("itself", [0], [0]),
                ("two", [2, 1], [1, 0, 2]),
                ("unknown partition", [7], [7, 0]),
                ("nothing", [], [0]),
            ):
                session = session_fetch(client, 0, 0, [(topic, [0])], version=version)["SessionId"]
                parts: Parts = [(topic, requested)] if requested else []
                last = session_fetch(client, session, 1, parts, [(topic, forgotten)], version)
                after = session_fetch(client, session, 2, [], version=version)
                seen[f"{what}, v{version}"] = [comparable(last), comparable(after)]
        empty = session_fetch(client, 0, 0, [])["SessionId"]
        seen["empty from the start"] = [comparable(session_fetch(client, empty, 1, [])), empty != 0]
    return seen


@scenario()
def partition_order(broker: Broker) -> Any:
    """Record the order of partitions in the responses of a session, also of unknown partitions."""
    name, later = "raw-fetch-sessions-order", "raw-fetch-sessions-order-later"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, name, 2)
        by_name = session_fetch(client, 0, 0, [(later, [0]), (name, [3, 1, 0])])
        by_id = session_fetch(client, 0, 0, [(bytes(15) + b"\7", [0]), (topic_id, [3, 1, 0])], version=13)
        seen["at first"] = [summarize_partitions(by_name), summarize_partitions(by_id)]
        sessions = {11: by_name["SessionId"], 13: by_id["SessionId"]}
        added: Parts = [(name, [2])]
        seen["added"] = [
            summarize_partitions(session_fetch(client, sessions[11], 1, added)),
            summarize_partitions(session_fetch(client, sessions[13], 1, [(topic_id, [2])], version=13)),
        ]
        create_topic(client, later)
        client.call(
            "CreatePartitions", 3, Topics=[{"Name": name, "Count": 4, "Assignments": None}], TimeoutMs=10_000
        )
        wait_for_topic(client, name, 4)
        fill(client, later, 1)
        for partition in range(4):
            fill(client, name, 1, partition=partition)
        for epoch in range(2, 8):
            for version, session in sessions.items():
                # Only one batch fits into each response, so the partitions take turns.
                response = session_fetch(client, session, epoch, [], version=version, MaxBytes=1)
                seen[f"epoch {epoch}, v{version}"] = summarize_partitions(response)
        for version, session in sessions.items():
            seen[f"all, v{version}"] = summarize_partitions(
                session_fetch(client, session, 8, [], version=version, MaxBytes=1 << 20)
            )
    return seen
