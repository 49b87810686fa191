"""Fetch requests that no current client sends: zstd in old versions, wrong replica ids, diverging epochs."""

from __future__ import annotations

from typing import Any

import zstandard

from interop.batches import Batch
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fetch, fill, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields

FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_REPLICA_STATE = 15


@scenario()
def zstd(broker: Broker) -> Any:
    """Fetch from topics with zstd batches, or with compression.type=zstd, in versions without zstd."""
    seen: dict[str, Any] = {}
    batch = Batch(attributes=4, payload=zstandard.compress(b"\x0c\0\0\0\1\1\0")).encode()
    with RawClient(broker.bootstrap) as client:
        for kind in ("zstd", "producer", "gzip"):
            topic = f"raw-fetch-of-{kind}"
            create_topic(client, topic, configs={"compression.type": kind})
            if kind == "zstd":
                fill(client, topic, 1)  # the broker compresses this batch with zstd
            produce(client, topic, batch, version=8)
            for version in (4, 6, 9, 10):
                found = fetch(client, topic, 0, version=version)["Responses"][0]["Partitions"][0]
                codecs = [part["attributes"] & 7 for part in comparable(found)["Records"] or []] or None
                seen[f"{kind} v{version}"] = [found["ErrorCode"], codecs]
    return seen


@scenario()
def replica_ids(broker: Broker) -> Any:
    """Send the replica ids of the leader and of unknown brokers, with and without leader epochs."""
    topic = "raw-fetch-replicas"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, topic)
        fill(client, topic, 2)
        for version in (4, 9, 12, 13, 15, 16, 18):
            for replica in (0, 1, 7, 2**31 - 1, -2, -3, -4, -(2**31)):
                for epoch in (-2, -1, 0, 1) if version >= 9 else (-1,):
                    fields: Fields = {"ReplicaId": replica}
                    if version >= FIRST_WITH_REPLICA_STATE:
                        fields = {"ReplicaState": {"ReplicaId": replica, "ReplicaEpoch": -1}}
                    response = fetch(
                        client,
                        topic_id if version >= FIRST_WITH_TOPIC_IDS else topic,
                        0,
                        version=version,
                        partition_fields={"CurrentLeaderEpoch": epoch} if version >= 9 else None,
                        **fields,
                    )
                    seen[f"v{version} replica {replica} at {epoch}"] = comparable(response)
    return seen


@scenario()
def diverging_epoch(broker: Broker) -> Any:
    """Fetch with LastFetchedEpoch in a session, then continue the session in versions without this field."""
    topic = "raw-fetch-divergence"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        fill(client, topic, 4)
        for version in (7, 9, 11):
            created = fetch(
                client,
                topic,
                2,
                version=12,
                SessionEpoch=0,
                partition_fields={"LastFetchedEpoch": 0},
            )
            seen[f"made before v{version}"] = comparable(created)

            def go_on(
                version: int, epoch: int, offset: int | None, session: int = created["SessionId"]
            ) -> Any:
                partitions = [{"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}]
                return comparable(
                    client.call(
                        "Fetch",
                        version,
                        MaxWaitMs=0,
                        SessionId=session,
                        SessionEpoch=epoch,
                        Topics=[] if offset is None else [{"Topic": topic, "Partitions": partitions}],
                    )
                )

            seen[f"v{version} as it is"] = go_on(version, 1, None)
            far = [{"Partition": 0, "FetchOffset": 99, "PartitionMaxBytes": 1 << 20, "LastFetchedEpoch": 0}]
            seen[f"v12 beyond, before v{version}"] = comparable(
                client.call(
                    "Fetch",
                    12,
                    MaxWaitMs=0,
                    SessionId=created["SessionId"],
                    SessionEpoch=2,
                    Topics=[{"Topic": topic, "Partitions": far}],
                )
            )
            seen[f"v{version} as it is then"] = go_on(version, 3, None)
            seen[f"v{version} at another offset"] = go_on(version, 4, 1)
        client.call(
            "DeleteRecords",
            2,
            Topics=[{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": 2}]}],
            TimeoutMs=10_000,
        )
        for offset in (0, 1, 2, 9):
            for last in (-1, 0, 1, 5):
                seen[f"offset {offset} behind epoch {last}"] = comparable(
                    fetch(client, topic, offset, partition_fields={"LastFetchedEpoch": last})
                )
    return seen
