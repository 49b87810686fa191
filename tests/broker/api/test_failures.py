"""Isolation of failures on a node on virtual time, with log directories that fail."""

from __future__ import annotations

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.produce import ProduceRequest
from kwire.wire.registry import RequestHeader
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, NodeHarness, fetch_request, produce_request


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def test_a_failing_long_poll_does_not_block_other_requests(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create("a", "b")
    assert harness.produce("a").error_code == 0
    poll = harness.connect()
    poll.submit(FETCH_VERSION, fetch_request("a"))
    harness.turn()
    log = harness.node.log_manager.get("a", 0)
    assert log is not None

    def damaged(offset: int, up_to_offset: int) -> int:
        raise ValueError("our own mistake")

    monkeypatch.setattr(type(log), "size_between", lambda self, *offsets: damaged(*offsets))
    one, other = harness.connect(), harness.connect()
    one.submit(PRODUCE_VERSION, produce_request("a"))
    other.submit(PRODUCE_VERSION, produce_request("b"))
    harness.turn()
    for client in (one, other):
        response = client.receive(PRODUCE_VERSION, ProduceRequest)
        assert response.responses[0].partition_responses[0].error_code == 0
    assert harness.produce("b").error_code == 0


def test_a_failed_directory_takes_only_its_partitions_offline(harness: NodeHarness) -> None:
    harness.create("b", "a")
    assert [harness.directory_of(name).rpartition("/")[0] for name in ("b", "a")] == ["/d1", "/d2"]
    assert (harness.produce("a").error_code, harness.produce("b").error_code) == (0, 0)
    poll = harness.connect()
    poll.submit(FETCH_VERSION, fetch_request("a"))
    harness.turn()
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    log.fail(StorageError("Input/output error"))
    harness.node.log_manager.handle_log_dir_failure(
        harness.node.log_manager.directory_of(log), StorageError("Input/output error")
    )
    harness.turn()
    response = poll.receive(FETCH_VERSION, FetchRequest)
    assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.latest_offset("a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("b").error_code == 0
    assert harness.fatal == []


def test_without_any_log_directory_the_node_reports_a_fatal_error(harness: NodeHarness) -> None:
    for directory in harness.node.log_manager.directories():
        harness.node.log_manager.handle_log_dir_failure(directory, StorageError("Input/output error"))
    harness.turn()
    # The first directory contains the metadata log, so its failure alone is fatal.
    assert harness.fatal == [
        "the log directory of the metadata log has failed: Input/output error",
        "all log directories have failed, the last one with: Input/output error",
    ]


def test_an_unreachable_log_is_not_created_again(harness: NodeHarness) -> None:
    harness.create("a", partitions=4)
    lost = [index for index in range(4) if harness.directory_of("a", index).startswith("/d2")]
    assert lost
    for index in range(4):
        assert harness.produce("a", index).error_code == 0
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    harness.disk.broken_directories["/d2"] = True
    restarted = NodeHarness(harness.disk)
    for index in range(4):
        # As in Kafka: the metadata says that the offline partitions have no leader.
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if index in lost else ErrorCode.NONE
        assert restarted.produce("a", index).error_code == expected, index
    restarted.node.begin_shutdown()
    restarted.node.finish_shutdown()
    harness.disk.broken_directories.clear()
    repaired = NodeHarness(harness.disk)
    for index in range(4):
        assert repaired.produce("a", index).base_offset == (1 if index in lost else 2), index


def test_a_topic_in_a_failed_directory_can_be_deleted(harness: NodeHarness) -> None:
    harness.create("a", partitions=4)
    harness.disk.broken_directories["/d2"] = True
    response = harness.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000))
    assert [topic.error_code for topic in response.responses] == [0]
    harness.disk.broken_directories.clear()
    for index in range(4):
        assert harness.produce("a", index).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_response_that_cannot_be_encoded_becomes_an_error(
    harness: NodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = harness.connect()
    context = client.channel.open_slot(RequestHeader(ApiKey.HEARTBEAT, 4, 1, "me", 2), 0)
    context.request = HeartbeatRequest()
    context.complete(object())  # type: ignore[arg-type]
    assert client.receive(4, HeartbeatRequest).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not client.channel.closing
    assert "Cannot encode the response" in caplog.text


def test_a_failed_acks_0_produce_closes_its_connection(harness: NodeHarness) -> None:
    client = harness.connect()
    context = client.channel.open_slot(RequestHeader(ApiKey.PRODUCE, 9, 1, "me", 2), 0)
    context.request = ProduceRequest(acks=0)
    context.complete(object())  # type: ignore[arg-type]
    assert client.channel.take_ready() == []
    assert client.channel.closing
