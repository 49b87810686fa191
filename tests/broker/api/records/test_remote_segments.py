"""Reads of a remote segment and of cold local segments: a worker reads, and the request waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.file_region import FileRegion
from kwire.broker.storage.log.log import Log
from kwire.host.system_os import os
from kwire.testing.disk import MemoryFile
from kwire.testing.virtual_host import WorkerTask
from kwire.wire.batch import batches
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.registry import encode_request
from tests.broker.api.records.leader import Leader
from tests.broker.api.records.slow_segment import move_first_segment
from tests.node_harness import FETCH_VERSION, NodeHarness

LIST_VERSION = 9
EARLIEST, EARLIEST_LOCAL = -2, -4
START_MS = 1_700_000_000_000


def log_of(harness: NodeHarness, index: int = 0) -> Log:
    log = harness.node.log_manager.get("a", index)
    assert log is not None
    return log


class Tiered(NodeHarness):
    """A broker whose partition a-0 has offsets 0 to 2 in a remote segment, and 3 and 4 on its disk."""

    def __init__(self) -> None:
        super().__init__()
        self.create("a", partitions=3)
        for _ in range(3):
            self.append()
        self.remote = move_first_segment(log_of(self), self.host.now_ms())
        self.append()
        self.append()
        self.tasks = self.host.hold_work()

    def append(self, index: int = 0) -> None:
        self.produce("a", index)

    def finish_reads(self) -> None:
        tasks, self.tasks[:] = list(self.tasks), []
        for task in tasks:
            task.deliver()
        self.turn()
        self.turn()


@pytest.fixture
def harness() -> Tiered:
    return Tiered()


def fetch(offset: int, *others: tuple[int, int], **fields: Any) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 20)
        for index, at in ((0, offset), *others)
    ]
    return FetchRequest(
        **{"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        topics=[FetchTopic(topic="a", partitions=partitions)],
    )


def list_offsets(timestamp: int) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=[partition])])


def first(response: Any) -> Any:
    return response.responses[0].partitions[0]


def offsets(partition: Any) -> list[int]:
    return [header.base_offset for _, header in batches(bytes(partition.records or b""))]


def test_fetch_waits_for_the_remote_segment_while_the_broker_serves_others(harness: Tiered) -> None:
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(1))
    assert client.receive(FETCH_VERSION, FetchRequest) is None
    assert offsets(first(harness.call(FETCH_VERSION, fetch(3)))) == [3, 4]
    assert harness.latest_offset("a").offset == 5
    assert (harness.remote.reads, len(harness.tasks)) == (0, 1)
    harness.finish_reads()
    found = first(client.receive(FETCH_VERSION, FetchRequest))
    assert (found.error_code, offsets(found)) == (ErrorCode.NONE, [1, 2])
    assert (found.log_start_offset, found.high_watermark) == (0, 5)
    assert harness.remote.reads == 1


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_fetch_returns_remote_and_local_records_together(harness: Tiered, isolation_level: int) -> None:
    harness.append(1)
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0, (1, 0), isolation_level=isolation_level, max_wait_ms=0))
    harness.finish_reads()
    response = client.receive(FETCH_VERSION, FetchRequest)
    assert [offsets(one) for one in response.responses[0].partitions] == [[0, 1, 2], [0]]


def test_later_requests_of_the_connection_wait_for_the_read(harness: Tiered) -> None:
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0))
    later = memoryview(encode_request(list_offsets(EARLIEST), LIST_VERSION, 2, "me"))[4:]
    assert harness.node.must_wait(client.channel, later)
    assert client.take_bytes() == b""
    harness.finish_reads()
    assert not harness.node.must_wait(client.channel, later)
    assert offsets(first(client.receive(FETCH_VERSION, FetchRequest))) == [0, 1, 2]


def test_list_offsets_by_timestamp_waits_for_the_remote_segment(harness: Tiered) -> None:
    client = harness.connect()
    client.send(LIST_VERSION, list_offsets(1))
    assert client.receive(LIST_VERSION, ListOffsetsRequest) is None
    assert offsets(first(harness.call(FETCH_VERSION, fetch(3)))) == [3, 4]
    harness.finish_reads()
    found = client.receive(LIST_VERSION, ListOffsetsRequest).topics[0].partitions[0]
    assert (found.error_code, found.timestamp, found.offset) == (ErrorCode.NONE, START_MS, 0)


def test_list_offsets_returns_log_start_and_local_log_start(harness: Tiered) -> None:
    found = [
        harness.call(LIST_VERSION, list_offsets(each)).topics[0].partitions[0].offset
        for each in (EARLIEST, EARLIEST_LOCAL)
    ]
    assert found == [0, 3]


def test_delete_records_raises_both_start_offsets(harness: Tiered) -> None:
    log = log_of(harness)
    for offset, starts in ((2, (2, 3)), (4, (4, 4))):
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [DeleteRecordsTopic(name="a", partitions=[partition])]
        response = harness.call(2, DeleteRecordsRequest(topics=topics))
        assert response.topics[0].partitions[0].low_watermark == offset
        assert (log.log_start_offset, log.local_log_start_offset) == starts
    found = first(harness.call(FETCH_VERSION, fetch(1)))
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("deleted records", ErrorCode.OFFSET_OUT_OF_RANGE),
        ("truncated", ErrorCode.OFFSET_OUT_OF_RANGE),
        ("new leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("new epoch", ErrorCode.FENCED_LEADER_EPOCH),
        ("failed disk", ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_change_during_the_read_decides_the_response(harness: Tiered, change: str, code: ErrorCode) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    log, epoch = partition.log, partition.leader_epoch
    request = fetch(2)
    request.topics[0].partitions[0].current_leader_epoch = epoch
    client = harness.connect()
    client.send(10, request)
    assert client.receive(10, FetchRequest) is None
    if change == "deleted records":
        log.delete_records_before(3)
    elif change == "truncated":
        log.truncate_to(0)
    elif change == "new leader":
        partition.become_follower(PartitionImage((1, 2), (1, 2), 2, leader_epoch=epoch, partition_epoch=1))
    elif change == "new epoch":
        partition.become_leader(PartitionImage((1,), (1,), 1, leader_epoch=epoch + 1, partition_epoch=1))
    else:
        partition.fail(StorageError("the disk is gone"))
    harness.finish_reads()
    found = first(client.receive(10, FetchRequest))
    assert (found.error_code, offsets(found)) == (code, [])


def test_a_closed_connection_drops_the_request(harness: Tiered) -> None:
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0))
    client.channel.close()
    harness.finish_reads()
    assert client.take_bytes() == b""


def test_a_session_that_advances_during_the_read_fails_the_fetch(harness: Tiered) -> None:
    session_id = harness.call(FETCH_VERSION, fetch(3, session_epoch=0)).session_id
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0, session_id=session_id, session_epoch=1))
    harness.call(FETCH_VERSION, fetch(3, session_id=session_id, session_epoch=2, max_wait_ms=0))
    harness.finish_reads()
    response = client.receive(FETCH_VERSION, FetchRequest)
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_remote_storage_that_fails_returns_a_storage_error(harness: Tiered) -> None:
    harness.remote.fails = True
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0))
    harness.finish_reads()
    assert first(client.receive(FETCH_VERSION, FetchRequest)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    client.send(LIST_VERSION, list_offsets(1))
    harness.finish_reads()
    found = client.receive(LIST_VERSION, ListOffsetsRequest).topics[0].partitions[0]
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log_of(harness).failure is None


def test_a_fetch_that_waited_for_records_waits_for_the_remote_segment(harness: Tiered) -> None:
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(5, (1, 0)))
    log = log_of(harness)
    harness.append()
    assert offsets(first(client.receive(FETCH_VERSION, FetchRequest))) == [5]
    client.send(FETCH_VERSION, fetch(6, (1, 0), min_bytes=1000))
    harness.append()
    moved = move_first_segment(log, harness.host.now_ms())
    harness.host.advance(60_000)
    assert client.receive(FETCH_VERSION, FetchRequest) is None
    harness.finish_reads()
    assert offsets(first(client.receive(FETCH_VERSION, FetchRequest))) == [6]
    assert moved.reads == 1


def test_reads_are_limited_by_the_size_of_the_response(harness: Tiered) -> None:
    for index in (1, 2):
        for _ in range(2):
            harness.append(index)
        move_first_segment(log_of(harness, index), harness.host.now_ms())
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0, (1, 0), (2, 0), max_bytes=1))
    assert len(harness.tasks) == 1
    harness.finish_reads()
    response = client.receive(FETCH_VERSION, FetchRequest)
    assert [len(offsets(one)) for one in response.responses[0].partitions] == [1, 0, 0]


def test_workers_do_at_most_eight_reads_of_a_request_at_a_time() -> None:
    harness = NodeHarness()
    harness.create("a", partitions=20)
    for index in range(20):
        harness.produce("a", index)
        move_first_segment(log_of(harness, index), harness.host.now_ms())
    tasks = harness.host.hold_work()
    listed = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name="a",
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=1) for index in range(20)],
            )
        ],
    )
    small = fetch(0, *((index, 0) for index in range(1, 20)))
    for partition in small.topics[0].partitions:
        partition.partition_max_bytes = 1000
    client = harness.connect()
    for version, request in ((FETCH_VERSION, small), (LIST_VERSION, listed)):
        client.send(version, request)
        for count in (8, 8, 4):
            assert len(tasks) == count
            for task in tasks[:]:
                task.deliver()
            tasks.clear()
            harness.turn()
            harness.turn()
        response = client.receive(version, type(request))
        if isinstance(request, FetchRequest):
            assert [offsets(one) for one in response.responses[0].partitions] == [[0]] * 20
        else:
            found = [(one.partition_index, one.offset) for one in response.topics[0].partitions]
            assert found == [(index, 0) for index in range(20)]


def test_a_follower_gets_offset_moved_to_tiered_storage() -> None:
    leader = Leader()
    for _ in range(2):
        leader.append()
    log = leader.partition().log
    log.high_watermark = 2
    moved = move_first_segment(log, leader.host.now_ms())
    leader.append()
    assert first(leader.fetch({0: 1})).error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    found = first(leader.fetch({0: 2}))
    assert (offsets(found), found.log_start_offset, moved.reads) == ([2], 0, 0)


def cold_segments(monkeypatch: pytest.MonkeyPatch, partitions: int = 1) -> tuple[NodeHarness, list[int]]:
    """Create partitions with the offsets 0 and 1 in a cold segment. Return the probed positions, too."""
    harness = NodeHarness()
    harness.create("a", partitions=partitions)
    for index in range(partitions):
        for _ in range(2):
            harness.produce("a", index)
        log_of(harness, index).roll(harness.host.now_ms())
        harness.produce("a", index)
    probed: list[int] = []

    def cold(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        probed.append(position)
        raise BlockingIOError

    monkeypatch.setattr(MemoryFile, "fileno", lambda file: 0)
    monkeypatch.setattr(os, "preadv", cold)
    return harness, probed


def test_cold_partitions_are_not_read_for_a_full_response(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, probed = cold_segments(monkeypatch, partitions=3)
    tasks = harness.host.hold_work()
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(2, (1, 0), (2, 0), max_bytes=1))  # offset 2 is in the active segment
    response = client.receive(FETCH_VERSION, FetchRequest)
    assert [len(offsets(one)) for one in response.responses[0].partitions] == [1, 0, 0]
    assert (tasks, probed) == ([], [])


def test_a_fetch_at_the_readable_end_waits_without_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, probed = cold_segments(monkeypatch)
    log_of(harness).high_watermark = 1
    tasks = harness.host.hold_work()
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(1))
    assert client.receive(FETCH_VERSION, FetchRequest) is None
    assert (tasks, probed) == ([], [])


def finish(
    harness: NodeHarness, tasks: list[WorkerTask], client: Any, version: int, request: type[Any]
) -> Any:
    """Let workers read until the response is there, and return it."""
    response = client.receive(version, request)
    while response is None:
        assert tasks
        for task in tasks[:]:
            task.deliver()
        tasks.clear()
        harness.turn()
        harness.turn()
        response = client.receive(version, request)
    return response


def test_a_failure_beside_a_cold_segment_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, _ = cold_segments(monkeypatch, partitions=2)
    corrupt, read = log_of(harness, 1), Log.read

    def read_or_fail(log: Log, *arguments: Any, **limits: Any) -> FileRegion:
        if log is corrupt:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        return read(log, *arguments, **limits)

    monkeypatch.setattr(Log, "read", read_or_fail)
    tasks = harness.host.hold_work()
    client = harness.connect()
    client.send(FETCH_VERSION, fetch(0, (1, 0)))
    found = finish(harness, tasks, client, FETCH_VERSION, FetchRequest).responses[0].partitions
    assert sorted(one.error_code for one in found) == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]
    assert harness.node.topic_stats.for_topic("a").failed_reads == 1


def test_a_cold_local_segment_is_read_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, probed = cold_segments(monkeypatch)
    tasks = harness.host.hold_work()
    for version, request, request_class in (
        (FETCH_VERSION, fetch(1), FetchRequest),
        (LIST_VERSION, list_offsets(1), ListOffsetsRequest),
    ):
        client = harness.connect()
        client.send(version, request)
        response = finish(harness, tasks, client, version, request_class)
        if request_class is FetchRequest:
            assert offsets(first(response)) == [1]
        else:
            assert response.topics[0].partitions[0].offset == 0
    assert len(probed) == 5  # index and batches for Fetch; time index, index and batches for ListOffsets
