"""Quiet partitions of a fetch session are skipped: responses are the same as if each were checked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.api.records.fetch import _Fetch
from kwire.broker.metadata.image import PartitionImage
from kwire.broker.storage.log.log import Log
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.node_harness import NodeHarness, produce_request

VERSION, PARTITIONS, STEPS = 12, 4, 120


def fetch(offsets: dict[int, int], epochs: dict[int, int], **fields: Any) -> FetchRequest:
    partitions = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=epochs.get(index, -1),
        )
        for index, offset in offsets.items()
    ]
    return FetchRequest(
        **{"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        topics=[FetchTopic(topic="a", partitions=partitions)] if partitions else [],
    )


def partition_fields(response: Any) -> list[tuple[Any, ...]]:
    return [
        (
            one.partition_index,
            one.error_code,
            one.high_watermark,
            one.log_start_offset,
            len(one.records or b""),
        )
        for topic in response.responses
        for one in topic.partitions
    ]


class RandomSession:
    """A consumer with a fetch session, and random changes of the partitions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = NodeHarness()
        self.harness.create("a", partitions=PARTITIONS)
        self.client = self.harness.connect()
        self.isolation = self.rng.randrange(2)
        self.position = dict.fromkeys(range(PARTITIONS), 0)
        self.epochs: dict[int, int] = {}
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.transcript: list[Any] = []

    def run(self) -> list[Any]:
        session_id = self.send_fetch(self.position, session_epoch=0, max_wait_ms=0).session_id
        for epoch in range(1, STEPS):
            if self.rng.random() < 0.3:
                self.change_a_partition()
            next_offset = {
                index: self.next_offset(index)
                for index in range(PARTITIONS)
                if self.rng.random() < 0.3 or self.position[index] < self.ends[index]
            }
            self.send_fetch(
                next_offset,
                session_id=session_id,
                session_epoch=epoch,
                min_bytes=self.rng.choice((1, 1, 150)),
            )
        return self.transcript

    def next_offset(self, index: int) -> int:
        chance = self.rng.random()
        self.position[index] = self.ends[index] + (1 if chance < 0.05 else -1 if chance < 0.1 else 0)
        return max(0, self.position[index])

    def send_fetch(self, offsets: dict[int, int], **fields: Any) -> Any:
        self.client.send(VERSION, fetch(offsets, self.epochs, isolation_level=self.isolation, **fields))
        response = self.client.receive(VERSION, FetchRequest)
        for passed_ms in range(0, 600, 100):
            if response is not None:
                self.transcript.append((passed_ms, partition_fields(response)))
                return response
            self.change_a_partition()
            self.harness.host.advance(100)
            response = self.client.receive(VERSION, FetchRequest)
        raise AssertionError("no answer")

    def change_a_partition(self) -> None:
        index, chance = self.rng.randrange(PARTITIONS), self.rng.random()
        partition = self.harness.node.partition("a", index)
        assert partition is not None
        if chance < 0.2:
            self.harness.call(VERSION, produce_request("a", index))
            self.ends[index] = partition.log.log_end_offset
        elif chance < 0.25:
            at = DeleteRecordsPartition(partition_index=index, offset=self.ends[index])
            self.harness.call(2, DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="a", partitions=[at])]))
        elif chance < 0.3:
            epoch = partition.leader_epoch + 1
            partition.become_leader(PartitionImage((1,), (1,), 1, leader_epoch=epoch, partition_epoch=epoch))
            if self.rng.random() < 0.5:
                self.epochs[index] = epoch
        elif chance < 0.305:
            self.harness.disk.broken_directories[self.harness.directory_of("a", index)] = True


@pytest.mark.parametrize("seed", range(20))
def test_skipping_quiet_partitions_does_not_change_responses(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized = RandomSession(seed).run()
    read = _Fetch.read

    def read_all(fetch: _Fetch) -> Any:
        fetch._skips_quiet = False
        return read(fetch)

    monkeypatch.setattr(_Fetch, "read", read_all)
    assert RandomSession(seed).run() == optimized


def test_quiet_partitions_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    session = RandomSession(0)
    session_id = session.send_fetch(session.position, session_epoch=0, max_wait_ms=0).session_id
    read: list[Log] = []
    real = Log.read
    monkeypatch.setattr(
        Log,
        "read",
        lambda log, *offsets, **limits: read.append(log) or real(log, *offsets, **limits),  # type: ignore[func-returns-value]
    )
    request = fetch({}, {}, session_id=session_id, session_epoch=1)
    session.client.send(VERSION, request)
    session.harness.produce("a", 2)
    assert [index for index, *_ in partition_fields(session.client.receive(VERSION, FetchRequest))] == [2]
    assert [log.partition for log in read] == [2]
