"""The conditions that end the wait of a fetch: available bytes, segments, and the last stable offset.

Each observation contains the error, the number of batches, and whether the response came before the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from interop.batches import Batch, Record, walk
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import (
    TRANSACTIONAL,
    TransactionalId,
    wait_for_transaction_coordinator,
)

SEGMENT_BYTES = 1 << 20
"""The minimum of segment.bytes that Apache Kafka accepts."""
LARGE_BYTES = 300_000
"""A value size in bytes. The fourth such value starts a new segment."""
WAIT_MS = 1_200
SOON_S = 0.6
NEVER_BYTES = 16 << 20
SHARED_WAIT_MS = 600
"""The wait of fetches that share a connection."""


def write(
    client: RawClient,
    topic: str,
    value_bytes: int,
    transaction: TransactionalId | None = None,
    **producer: int,
) -> list[int]:
    """Write one record, in `transaction` if it is given. Return the error code and the offset.

    `producer` contains fields of the batch, such as producer_id.
    """
    batch = Batch([Record(bytes(value_bytes))], base_timestamp=1_700_000_000_000)
    fields: dict[str, Any] = {}
    if transaction is not None:
        batch.attributes = TRANSACTIONAL
        batch.producer_id, batch.producer_epoch, batch.base_sequence = (
            transaction.producer_id,
            transaction.epoch,
            transaction.sequence,
        )
        transaction.sequence += 1
        fields = {"TransactionalId": transaction.name, "version": 11}
    for name, value in producer.items():
        setattr(batch, name, value)
    response = produce(client, topic, batch.encode(), **fields)
    found = response["Responses"][0]["PartitionResponses"][0]
    return [found["ErrorCode"], found["BaseOffset"]]


@contextmanager
def topic_of_small_segments(broker: Broker, topic: str) -> Iterator[RawClient]:
    """Create a topic with small segments and yield a client."""
    with RawClient(broker.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        create_topic(client, topic, configs={"segment.bytes": str(SEGMENT_BYTES)})
        yield client


def timed_fetch(
    client: RawClient, topic: str, offset: int, min_bytes: int, isolation: int, **fields: Any
) -> Any:
    """Fetch from this offset. Return the error code, the number of batches, and "soon" or "late"."""
    began = time.monotonic()
    response = fetch(
        client,
        topic,
        offset,
        MaxWaitMs=WAIT_MS,
        MinBytes=min_bytes,
        IsolationLevel=isolation,
        MaxBytes=NEVER_BYTES,
        partition_fields={"PartitionMaxBytes": fields.get("partition_max_bytes", NEVER_BYTES)},
    )
    soon = time.monotonic() - began < SOON_S
    found = response["Responses"][0]["Partitions"][0]
    batches = len(list(walk(found["Records"] or b"")))
    return [found["ErrorCode"], batches, "soon" if soon else "late"]


@scenario(seconds=120)
def min_bytes_across_segments(broker: Broker) -> Any:
    """Fetch from each offset of three segments and beyond, with MinBytes 1 and with a MinBytes never reached.

    Two offsets are also fetched with a small PartitionMaxBytes.
    """
    topic = "raw-waits-segments"
    seen: dict[str, Any] = {}
    with topic_of_small_segments(broker, topic) as client:
        for _ in range(8):
            write(client, topic, LARGE_BYTES)
        for min_bytes in (1, NEVER_BYTES):
            for offset in range(10):
                seen[f"{min_bytes} from {offset}"] = timed_fetch(client, topic, offset, min_bytes, 0)
        for limit in (1, LARGE_BYTES, 2 * LARGE_BYTES):
            seen[f"at most {limit}"] = [
                timed_fetch(client, topic, offset, 400_000, 0, partition_max_bytes=limit) for offset in (2, 6)
            ]
    return seen


@scenario(seconds=150)
def beyond_last_stable_offset(broker: Broker) -> Any:
    """Fetch with read_committed from each offset before, in and after an open transaction."""
    seen: dict[str, Any] = {}
    for name, before, within in (("one-segment", 1, 2), ("two-segments", 1, 5), ("from-the-next", 4, 2)):
        topic = f"raw-waits-{name}"
        with topic_of_small_segments(broker, topic) as client:
            one = TransactionalId(client, topic)
            one.init()
            one.add((topic, 0))
            for _ in range(before):
                write(client, topic, LARGE_BYTES)
            for _ in range(within):
                write(client, topic, LARGE_BYTES, one)
            write(client, topic, 10)
            end = before + within + 1
            seen[name] = {
                f"{min_bytes} from {offset}": timed_fetch(client, topic, offset, min_bytes, 1)
                for min_bytes in (1, NEVER_BYTES)
                for offset in range(end + 2)
            }
            one.end(commit=False)
    return seen


@scenario()
def two_partitions(broker: Broker) -> Any:
    """Fetch at and beyond the last stable offset of a partition, together with a partition with records."""
    topic = "raw-waits-two"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        create_topic(client, topic, 2)
        one = TransactionalId(client, topic)
        one.init()
        one.add((topic, 0))
        for _ in range(2):
            write(client, topic, 10_000, one)
        assert produce(client, topic, Batch([Record(bytes(10_000))]).encode(), partition=1)
        for offset in (0, 1, 2):
            for min_bytes in (1, 5_000, 15_000):
                began = time.monotonic()
                partitions = [
                    {"Partition": index, "FetchOffset": start, "PartitionMaxBytes": NEVER_BYTES}
                    for index, start in ((0, offset), (1, 0))
                ]
                client.call(
                    "Fetch",
                    12,
                    MaxWaitMs=WAIT_MS,
                    MinBytes=min_bytes,
                    MaxBytes=NEVER_BYTES,
                    IsolationLevel=1,
                    Topics=[{"Topic": topic, "Partitions": partitions}],
                )
                seen[f"{min_bytes} from {offset}"] = time.monotonic() - began < SOON_S
        one.end(commit=True)
    return seen


@scenario()
def batches_above_remaining_limit(broker: Broker) -> Any:
    """Fetch batches that are larger than the remaining byte limit. No batch may be truncated (KIP-74)."""
    topic = "raw-waits-too-large"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 3)
        for index, size_bytes in ((0, 10), (1, LARGE_BYTES), (2, 10)):
            records = Batch([Record(bytes(size_bytes))]).encode()
            assert produce(client, topic, records, partition=index)
        order = ((0, 1, 2), (1, 0, 2), (2, 1, 0))
        limits = ((1000, NEVER_BYTES), (NEVER_BYTES, 1000), (NEVER_BYTES, 100_000), (0, NEVER_BYTES), (1, 1))
        for version in (4, 12):
            for indexes in order:
                for partition_bytes, all_bytes in limits:
                    partitions = [
                        {"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": partition_bytes}
                        for index in indexes
                    ]
                    response = client.call(
                        "Fetch",
                        version,
                        MaxWaitMs=0,
                        MinBytes=1,
                        MaxBytes=all_bytes,
                        IsolationLevel=1,
                        Topics=[{"Topic": topic, "Partitions": partitions}],
                    )
                    seen[f"v{version} {indexes}: {partition_bytes}, {all_bytes}"] = [
                        [
                            found["PartitionIndex"],
                            found["ErrorCode"],
                            len(found["Records"] or b""),
                            found["AbortedTransactions"],
                        ]
                        for found in response["Responses"][0]["Partitions"]
                    ]
    return seen


def _change_during_fetch(
    client: RawClient, topic: str, offset: int, min_bytes: int, change: Callable[[], Any]
) -> Any:
    """Call `change` during a fetch. Return whether the fetch timed out, and the response's partitions."""
    partitions = [
        {"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": NEVER_BYTES} for index in (0, 1)
    ]
    began = time.monotonic()
    client.send(
        "Fetch",
        12,
        MaxWaitMs=WAIT_MS,
        MinBytes=min_bytes,
        MaxBytes=NEVER_BYTES,
        IsolationLevel=1,
        Topics=[{"Topic": topic, "Partitions": partitions}],
    )
    time.sleep(0.3)
    change()
    response = client.receive("Fetch", 12)
    late = time.monotonic() - began > WAIT_MS / 1000 - 0.05
    return [
        "late" if late else "soon",
        [
            [found["PartitionIndex"], found["ErrorCode"], found["AbortedTransactions"] is None]
            for found in response["Responses"][0]["Partitions"]
        ],
    ]


@scenario(seconds=90)
def changes_during_fetch(broker: Broker) -> Any:
    """Roll a segment, delete records or create a partition while a fetch waits."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as other:
        for before in (2, 3, 4):
            topic = f"raw-waits-meanwhile-{before}"
            with topic_of_small_segments(broker, topic) as client:
                for _ in range(before):
                    write(client, topic, LARGE_BYTES)

                def append(topic: str = topic) -> Any:
                    return write(other, topic, LARGE_BYTES)

                def delete(topic: str = topic, end: int = before + 1) -> Any:
                    requested = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": end}]}]
                    return other.call("DeleteRecords", 2, Topics=requested, TimeoutMs=10_000)

                def grow(topic: str = topic) -> Any:
                    requested = [{"Name": topic, "Count": 2, "Assignments": None}]
                    return other.call(
                        "CreatePartitions", 3, Topics=requested, TimeoutMs=10_000, ValidateOnly=False
                    )

                seen[f"{before} appended"] = _change_during_fetch(
                    client, topic, before, 2 * LARGE_BYTES, append
                )
                seen[f"{before} deleted"] = _change_during_fetch(
                    client, topic, before, 2 * LARGE_BYTES, delete
                )
                seen[f"{before} grown"] = _change_during_fetch(client, topic, before + 1, LARGE_BYTES, grow)
    return seen


@scenario()
def rejected_batch_rolls_segment(broker: Broker) -> Any:
    """Send rejected and duplicate batches that do not fit into the active segment."""
    seen: dict[str, Any] = {}
    first: dict[str, Any] = {"producer_id": 700, "producer_epoch": 1}
    for name, last in {
        "appended": {**first, "base_sequence": 3},
        "duplicate": {**first, "base_sequence": 2},
        "gap": {**first, "base_sequence": 9},
        "epoch": {**first, "producer_epoch": 0, "base_sequence": 0},
        "too large": {**first, "base_sequence": 3, "value_bytes": SEGMENT_BYTES},
    }.items():
        topic = f"raw-waits-rolled-{name.replace(' ', '-')}"
        with topic_of_small_segments(broker, topic) as client:
            steps: list[Any] = [
                write(client, topic, LARGE_BYTES, **first, base_sequence=sequence) for sequence in range(3)
            ]
            size_bytes = last.pop("value_bytes", LARGE_BYTES)
            steps.append(write(client, topic, size_bytes, **last))
            steps.append(write(client, topic, 10))
            end = 5 if name == "appended" else 4
            steps += [timed_fetch(client, topic, offset, 1, 0) for offset in range(end)]
            seen[name] = steps
    return seen


@scenario()
def fetches_on_one_connection(broker: Broker) -> Any:
    """Send several fetches at once on one connection, from partitions with and without records.

    Observe for each fetch how many waits have passed, and how many batches it returns. In "meanwhile", a
    record is appended to partition 2 during the first wait.
    """
    topic = "raw-waits-shared"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as other:
        create_topic(other, topic, 4)
        assert produce(other, topic, Batch([Record(bytes(10))]).encode(), partition=1)
        for name, indexes in {
            "quiet": [0, 0],
            "quiet first": [0, 1, 1, 0],
            "quiet last": [1, 1, 0, 0],
            "meanwhile": [0, 2, 3],
        }.items():
            with RawClient(broker.bootstrap) as client:
                began = time.monotonic()
                for index in indexes:
                    partitions = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": NEVER_BYTES}]
                    client.send(
                        "Fetch",
                        12,
                        MaxWaitMs=SHARED_WAIT_MS,
                        MinBytes=1,
                        MaxBytes=NEVER_BYTES,
                        Topics=[{"Topic": topic, "Partitions": partitions}],
                    )
                if name == "meanwhile":
                    time.sleep(SHARED_WAIT_MS / 3000)
                    assert produce(other, topic, Batch([Record(bytes(10))]).encode(), partition=2)
                seen[name] = []
                for _ in indexes:
                    response = client.receive("Fetch", 12)
                    waits = (time.monotonic() - began) * 1000 / SHARED_WAIT_MS
                    found = response["Responses"][0]["Partitions"][0]
                    seen[name].append([int(waits + 0.1), len(list(walk(found["Records"] or b"")))])
    return seen
