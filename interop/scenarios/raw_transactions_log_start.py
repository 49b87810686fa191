"""DeleteRecords and retention that move the log start offset into a transaction, with restarts.

The scenarios record the last stable offset, the open transactions of producers, and offsets by timestamp.
They also record the batches and aborted transactions in a read_committed fetch from every offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from interop.batches import BASE_TIMESTAMP, Batch, Record, walk
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce, wait_for_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.compaction import CHECKPOINT, CLEANER_SETTINGS
from interop.scenarios.raw_log_dirs import log_dir_broker
from interop.scenarios.raw_topics import until
from interop.scenarios.raw_transactions import (
    TRANSACTIONAL,
    WAIT_S,
    TransactionalId,
    settle,
    wait_for_transaction_coordinator,
)
from interop.scenarios.retention import OVERRIDES, alter
from interop.tools import another

QUICK = {
    **OVERRIDES,
    "log.segment.delete.delay.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}
BIG_BYTES = 300_000
"""A value size in bytes. Three such values fill a segment of 1 MiB."""
READ_COMMITTED = 1
FETCHES = 1 << 23
AFTER_ALL = 100_000
ROUNDS_S = 2.0
"""The time in seconds for about ten rounds of the cleaner."""


class WatchedPartition:
    """Partition 0 of a topic, its producers, and requests that show its state."""

    def __init__(self, client: RawClient, topic: str, **configs: str) -> None:
        self.client = client
        self.topic = topic
        self.ids: list[TransactionalId] = []
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        create_topic(client, topic, configs={"segment.bytes": str(1 << 20), **configs})

    def begin_transaction(self) -> TransactionalId:
        """Begin a transaction on the partition without writing a record."""
        one = TransactionalId(self.client, f"{self.topic}-{len(self.ids)}")
        one.init()
        one.add((self.topic, 0))
        self.ids.append(one)
        return one

    def write(
        self,
        producer: TransactionalId | None,
        *,
        value_bytes: int = 1,
        timestamp: int = BASE_TIMESTAMP,
        key: bytes | None = None,
        count: int = 1,
    ) -> int:
        """Write a batch, in the transaction of `producer` if it is given, and return the batch's offset."""
        batch = Batch([Record(bytes(value_bytes), key=key)] * count, base_timestamp=timestamp)
        fields: dict[str, Any] = {}
        if producer is not None:
            batch.attributes = TRANSACTIONAL
            batch.producer_id, batch.producer_epoch = producer.producer_id, producer.epoch
            batch.base_sequence = producer.sequence
            producer.sequence += count
            fields = {"TransactionalId": producer.name, "version": 11}
        response = produce(self.client, self.topic, batch.encode(), **fields)
        found = response["Responses"][0]["PartitionResponses"][0]
        assert found["ErrorCode"] == 0, response
        offset: int = found["BaseOffset"]
        return offset

    def idempotent(self, producer_id: int, sequence: int) -> list[int]:
        """Write one record as an idempotent producer. Return the error code and the offset."""
        batch = Batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        response = produce(self.client, self.topic, batch.encode())
        found = response["Responses"][0]["PartitionResponses"][0]
        return [found["ErrorCode"], found["BaseOffset"]]

    def end(self, one: TransactionalId, *, commit: bool) -> None:
        """End the transaction and wait until its marker is in the log."""
        before = self.offset(-1)
        assert one.end(commit=commit)[0] == 0
        settle(one)
        self.wait(lambda: self.offset(-1) > before)

    def wait(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_done():
            assert time.monotonic() < deadline, f"nothing happened to {self.topic}"
            time.sleep(0.05)

    def delete_before(self, offset: int) -> list[int]:
        """Send DeleteRecords. Return the error code and the log start offset."""
        requested = [{"Name": self.topic, "Partitions": [{"PartitionIndex": 0, "Offset": offset}]}]
        response = self.client.call("DeleteRecords", 2, Topics=requested, TimeoutMs=10_000)
        found = response["Topics"][0]["Partitions"][0]
        return [found["ErrorCode"], found["LowWatermark"]]

    def listed_offset(self, timestamp: int, isolation: int = 0) -> dict[str, int]:
        requested = [{"Name": self.topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": timestamp}]}]
        response = self.client.call(
            "ListOffsets", 8, ReplicaId=-1, IsolationLevel=isolation, Topics=requested
        )
        partition: dict[str, int] = response["Topics"][0]["Partitions"][0]
        return partition

    def offset(self, timestamp: int, isolation: int = 0) -> int:
        """Return the offset that ListOffsets finds for a timestamp, or -1 if there is none."""
        found = self.listed_offset(timestamp, isolation)
        assert found["ErrorCode"] == 0, found
        return found["Offset"]

    def producers(self) -> Any:
        """Describe the producers. Transactional producers have a number instead of their random id."""
        requested = [{"Name": self.topic, "PartitionIndexes": [0]}]
        found = self.client.call("DescribeProducers", 0, Topics=requested)["Topics"][0]["Partitions"][0]
        return sorted(
            [self.name_of(one["ProducerId"]), one["LastSequence"], one["CurrentTxnStartOffset"]]
            for one in found["ActiveProducers"]
        )

    def name_of(self, producer_id: int) -> str:
        known = [index for index, one in enumerate(self.ids) if one.producer_id == producer_id]
        return f"id {known[0]}" if known else str(producer_id)

    def committed(self, offset: int, max_bytes: int = FETCHES) -> Any:
        """Fetch with read_committed from this offset.

        Return the error code, the log's offsets, the aborted transactions, and the batches' base offsets.
        """
        limits = {"PartitionMaxBytes": max_bytes}
        response = fetch(
            self.client,
            self.topic,
            offset,
            MaxBytes=FETCHES,
            IsolationLevel=READ_COMMITTED,
            partition_fields=limits,
        )
        found = response["Responses"][0]["Partitions"][0]
        aborted = found["AbortedTransactions"]
        return [
            found["ErrorCode"],
            found["LogStartOffset"],
            found["LastStableOffset"],
            found["HighWatermark"],
            aborted and [[self.name_of(one["ProducerId"]), one["FirstOffset"]] for one in aborted],
            [batch["base_offset"] for batch in walk(found["Records"] or b"")],
        ]

    def observe(self) -> dict[str, Any]:
        """Return offsets by timestamp, producers, and `committed` from every offset."""
        timestamps = (-1, -2, -3, -4, BASE_TIMESTAMP, BASE_TIMESTAMP + 3, BASE_TIMESTAMP + AFTER_ALL)
        first, end = self.offset(-2), self.offset(-1)
        return {
            "offsets": [
                [self.offset(timestamp, isolation) for timestamp in timestamps] for isolation in (0, 1)
            ],
            "producers": self.producers(),
            "committed": [self.committed(offset) for offset in range(max(0, first - 1), end + 2)],
        }


def write_open_transaction(partition: WatchedPartition) -> TransactionalId:
    """Write offsets 0-7, where an open transaction has offsets 2, 3 and 7. Return the open transaction.

    Offsets 0, 1 and 4 are not transactional. The marker at offset 6 aborts the transaction at offset 5.
    """
    for _ in range(2):
        partition.write(None)
    one = partition.begin_transaction()
    for _ in range(2):
        partition.write(one, timestamp=BASE_TIMESTAMP + 3)
    partition.write(None)
    other = partition.begin_transaction()
    partition.write(other)
    partition.end(other, commit=False)
    partition.write(one)
    return one


@contextmanager
def own_broker(broker: Broker, **overrides: str) -> Iterator[tuple[Broker, RawClient]]:
    """Start a separate broker of the same kind. Yield the broker and a client.

    `overrides` are broker configurations, with underscores instead of dots.
    """
    with another(broker, {key.replace("_", "."): value for key, value in overrides.items()}) as own:
        with RawClient(own.bootstrap) as client:
            wait_for_transaction_coordinator(client, "any")
        with RawClient(own.bootstrap) as client:
            yield own, client


@scenario(seconds=120)
def deleted_into_transaction(broker: Broker) -> Any:
    """Delete records up to offsets in and after an open transaction, then commit or abort the transaction."""
    seen: dict[str, Any] = {}
    with own_broker(broker) as (_, client):
        for commit in (True, False):
            for offset in (2, 3, 4, 6, 7, -1):
                partition = WatchedPartition(client, f"into-{offset}-{commit}")
                one = write_open_transaction(partition)
                steps: list[Any] = [partition.delete_before(offset), partition.observe()]
                partition.write(None)
                partition.write(one)
                steps.append(partition.observe())
                partition.end(one, commit=commit)
                steps.append(partition.observe())
                steps += [partition.delete_before(8), partition.observe()]
                partition.write(None)
                seen[partition.topic] = [*steps, partition.observe()]
    return seen


@scenario(seconds=120)
def deleted_into_batch(broker: Broker) -> Any:
    """Delete records up to every offset inside transactional and plain batches of several records."""
    seen: dict[str, Any] = {}
    with own_broker(broker) as (_, client):
        for offset in range(1, 13):
            partition = WatchedPartition(client, f"into-a-batch-{offset}")
            one, other = partition.begin_transaction(), partition.begin_transaction()
            partition.write(None, count=2)
            partition.write(one, count=3)
            partition.write(None, count=2)
            partition.write(other, count=2)
            partition.write(one, count=3)
            steps: list[Any] = [partition.delete_before(offset), partition.observe()]
            partition.write(None, count=2)
            steps.append(partition.observe())
            partition.end(one, commit=False)
            steps.append(partition.observe())
            partition.end(other, commit=True)
            seen[partition.topic] = [*steps, partition.observe()]
    return seen


@scenario(seconds=120)
def deleted_by_retention(broker: Broker) -> Any:
    """Let retention delete the segments that contain the start of an open transaction."""
    seen: dict[str, Any] = {}
    with own_broker(broker, **QUICK) as (own, client):
        for commit in (True, False):
            partition = WatchedPartition(client, f"retained-{commit}")
            one = partition.begin_transaction()
            partition.write(one)
            for producer in (None, None, None, one, None, None, None, None):
                partition.write(producer, value_bytes=BIG_BYTES)
            partition.write(one)
            steps = [partition.observe()]
            alter(client, 2, partition.topic, retention_bytes="700000")
            partition.wait(lambda partition=partition: partition.offset(-2) > 3)  # type: ignore[misc]
            directory = own.log_dir / f"{partition.topic}-0"
            partition.wait(lambda directory=directory: len(list(directory.glob("*.log"))) == 2)  # type: ignore[misc]
            steps.append(partition.observe())
            partition.end(one, commit=commit)
            seen[partition.topic] = [*steps, partition.observe()]
    return seen


def _restarted(own: Broker, how: str, names: list[str]) -> RawClient:
    """Stop or kill the broker, start it again, and wait for the leaders of the topics. Return a client."""
    if how == "kill":
        own.kill()
    else:
        own.stop()
    own.start()
    client = RawClient(own.bootstrap)
    for name in names:
        wait_for_topic(client, name, 1)
    wait_for_transaction_coordinator(client, "any")
    return client


def restarts(broker: Broker, how: str) -> Any:
    """Restart with the log start inside an open transaction, and after the transaction has ended."""
    seen: dict[str, Any] = {}
    with own_broker(broker, **QUICK) as (own, client):
        partitions: dict[WatchedPartition, tuple[TransactionalId, bool]] = {}
        for commit in (True, False):
            for offset in (3, 4, 7):
                partition = WatchedPartition(client, f"restarted-{offset}-{commit}")
                partitions[partition] = write_open_transaction(partition), commit
                partition.delete_before(offset)
            retained = WatchedPartition(client, f"restarted-retained-{commit}")
            one = retained.begin_transaction()
            retained.write(one)
            for producer in (None, None, None, one, None, None, None, None, one):
                retained.write(producer, value_bytes=BIG_BYTES)
            partitions[retained] = one, commit
            alter(client, 2, retained.topic, retention_bytes="700000")
            retained.wait(lambda retained=retained: retained.offset(-2) > 3)  # type: ignore[misc]
        removed = WatchedPartition(client, "restarted-gone")
        for sequence in range(7):
            removed.idempotent(900, sequence)
        finished = write_open_transaction(removed)
        removed.end(finished, commit=False)
        removed.delete_before(-1)
        names = [partition.topic for partition in (*partitions, removed)]
        # The broker writes log start offsets to a checkpoint periodically. A kill before that loses them.
        _wait_for_checkpoint(own, removed)
        for turn in ("open", "ended"):
            with _restarted(own, how, names) as again:
                for partition, (one, commit) in partitions.items():
                    partition.client = one.client = again
                    steps = seen.setdefault(partition.topic, {})
                    steps[turn] = partition.observe()
                    if turn == "open":
                        partition.write(one)
                        partition.end(one, commit=commit)
                        steps["end"] = partition.observe()
                removed.client = again
                seen[f"gone {turn}"] = removed.observe()
                if turn == "ended":
                    _wait_until_deleted(own, removed)
                    seen["gone and on"] = [removed.idempotent(900, 9), removed.observe()]
    return seen


def _wait_for_checkpoint(own: Broker, last: WatchedPartition) -> None:
    path = own.log_dir / "log-start-offset-checkpoint"
    end = last.offset(-1)
    last.wait(lambda: path.exists() and f"{last.topic} 0 {end}" in path.read_text())


def _wait_until_deleted(own: Broker, partition: WatchedPartition) -> None:
    """Wait until retention has deleted all segments before the log start, as they affect offset lookups."""
    start = partition.offset(-2)
    directory = own.log_dir / f"{partition.topic}-0"

    def are_deleted() -> bool:
        bases = sorted(int(path.stem) for path in directory.glob("*.log"))
        return all(base > start for base in bases[1:])

    partition.wait(are_deleted)


@scenario(seconds=150)
def restarted(broker: Broker) -> Any:
    """Restart the broker after a clean shutdown."""
    return restarts(broker, "stop")


@scenario(seconds=150)
def killed(broker: Broker) -> Any:
    """Restart the broker after SIGKILL."""
    return restarts(broker, "kill")


@scenario(seconds=120)
def moved(broker: Broker) -> Any:
    """Move a replica whose log starts inside an open transaction to another log directory."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own:
        with own.client() as client:
            wait_for_transaction_coordinator(client, "any")
        with own.client() as client:
            for commit in (True, False):
                for offset in (2, 3, 4, 7, -1):
                    partition = WatchedPartition(client, f"moved-{offset}-{commit}")
                    one = write_open_transaction(partition)
                    partition.delete_before(offset)
                    there = "B" if own.directory_of(client, partition.topic) == "A" else "A"
                    own.move(client, {there: {partition.topic: [0]}})
                    until(lambda: own.directory_of(client, partition.topic) == there)  # noqa: B023
                    steps = [partition.observe()]
                    partition.write(one)
                    steps.append(partition.observe())
                    partition.end(one, commit=commit)
                    steps.append(partition.observe())
                    for step in steps:
                        # kwire keeps producers whose batches are deleted, so that it can detect duplicates.
                        step["producers"] = [one for one in step["producers"] if one[2] >= 0]
                    seen[partition.topic] = steps
    return seen


@scenario(seconds=150)
def compacted(broker: Broker) -> Any:
    """Compact a log that starts inside a transaction, before and after the transaction ends."""
    seen: dict[str, Any] = {}
    with own_broker(broker, **{**QUICK, **CLEANER_SETTINGS}) as (own, client):
        for commit in (True, False):
            partition = WatchedPartition(client, f"compacted-{commit}", min_cleanable_dirty_ratio="0.01")
            one = partition.begin_transaction()
            for producer, key in (
                (one, b"a"),
                (None, b"b"),
                (one, b"b"),
                (None, b"c"),
                (None, b"a"),
                (one, b"c"),
            ):
                partition.write(producer, value_bytes=BIG_BYTES, key=key)
            partition.delete_before(1)
            alter(client, 2, partition.topic, cleanup_policy="compact,delete")
            time.sleep(ROUNDS_S)
            steps = [partition.observe()]
            # One round cleans all remaining segments, so that both brokers merge the same segments.
            alter(client, 2, partition.topic, cleanup_policy="delete")
            partition.write(one, value_bytes=BIG_BYTES, key=b"d")
            partition.end(one, commit=commit)
            for _ in range(4):
                partition.write(None, value_bytes=BIG_BYTES, key=b"c")
            alter(client, 2, partition.topic, cleanup_policy="compact,delete")
            directory = own.log_dir / f"{partition.topic}-0"
            partition.wait(
                lambda partition=partition, directory=directory: (  # type: ignore[misc]
                    f"{partition.topic} 0 {max(int(path.stem) for path in directory.glob('*.log'))}\n"
                    in (own.log_dir / CHECKPOINT).read_text()
                )
            )
            seen[partition.topic] = [*steps, partition.observe()]
    return seen


@scenario(seconds=120)
def found_by_timestamp(broker: Broker) -> Any:
    """Look up timestamps in three segments, with every log start offset."""
    seen: dict[str, Any] = {}
    newest = BASE_TIMESTAMP + AFTER_ALL
    with own_broker(broker) as (_, client):
        for name, timestamps in {
            "ascending": range(BASE_TIMESTAMP, BASE_TIMESTAMP + 9),
            "newest first": [newest, *range(BASE_TIMESTAMP, BASE_TIMESTAMP + 8)],
            "twice": [BASE_TIMESTAMP + index % 4 for index in range(9)],
            "descending": range(BASE_TIMESTAMP + 8, BASE_TIMESTAMP - 1, -1),
        }.items():
            partition = WatchedPartition(client, f"timed-{name.replace(' ', '-')}", index_interval_bytes="1")
            for timestamp in timestamps:
                partition.write(None, value_bytes=BIG_BYTES, timestamp=timestamp)
            for start in range(10):
                partition.delete_before(start)
                seen[f"{name} from {start}"] = [
                    [found["ErrorCode"], found["Offset"], found["Timestamp"], found["LeaderEpoch"]]
                    for timestamp in (0, *sorted({*timestamps, newest}), newest + 1, -3)
                    for found in (partition.listed_offset(timestamp),)
                ]
    return seen


@scenario(seconds=120)
def aborted_by_size(broker: Broker) -> Any:
    """Fetch with different offsets and size limits, and record the aborted transactions."""
    seen: dict[str, Any] = {}
    with own_broker(broker) as (_, client):
        for interval in ("1", "4096", "1000000"):
            partition = WatchedPartition(client, f"sized-{interval}", index_interval_bytes=interval)
            for turn in range(12):
                ids = [partition.begin_transaction() for _ in range(1 + turn % 2)]
                for one in ids:
                    partition.write(one, value_bytes=(10, 5_000, 120_000)[turn % 3])
                partition.write(None, value_bytes=(10, 60_000)[turn % 2])
                for one in ids:
                    partition.end(one, commit=turn % 4 == 3)
            end = partition.offset(-1)
            for start in (0, 5):
                partition.delete_before(start)
                seen[f"every {interval} from {start}"] = [
                    partition.committed(offset, max_bytes)
                    for max_bytes in (0, 1, 100, 5_000, 70_000, 300_000, FETCHES)
                    for offset in range(start, end + 1)
                ]
            seen[f"every {interval} in batches"] = [
                partition.committed(offset, max_bytes)
                for offset in range(5, end, 7)
                for max_bytes in _ends_of_batches(partition, offset)
            ]
    return seen


def _ends_of_batches(partition: WatchedPartition, offset: int) -> list[int]:
    """Return the number of bytes from an offset to the end of each of the next 12 batches."""
    response = fetch(partition.client, partition.topic, offset, MaxBytes=FETCHES)
    data = response["Responses"][0]["Partitions"][0]["Records"]
    ends: list[int] = []
    end = 0
    while end + 12 <= len(data) and len(ends) < 12:
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
        ends.append(end)
    return ends


@scenario(seconds=60)
def aborted_in_empty_responses(broker: Broker) -> Any:
    """Fetch aborted transactions where the response has no records: at the log end, and beyond MaxBytes."""
    seen: dict[str, Any] = {}
    with own_broker(broker) as (_, client):
        partitions = [WatchedPartition(client, f"full-{number}") for number in range(2)]
        for partition in partitions:
            one = write_open_transaction(partition)
            partition.end(one, commit=False)
        for offset, max_bytes in product((0, 3, 8, 9), (0, 1, 1000, FETCHES)):
            topics = [
                {
                    "Topic": partition.topic,
                    "Partitions": [{"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": FETCHES}],
                }
                for partition in partitions
            ]
            limits = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": max_bytes}
            response = client.call("Fetch", 12, IsolationLevel=READ_COMMITTED, Topics=topics, **limits)
            seen[f"from {offset} at most {max_bytes}"] = [
                [
                    len(found["Records"] or b""),
                    found["AbortedTransactions"]
                    and [one["FirstOffset"] for one in found["AbortedTransactions"]],
                ]
                for topic in response["Responses"]
                for found in topic["Partitions"]
            ]
    return seen
