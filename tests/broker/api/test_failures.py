"""What one failure does to everybody else: nothing. A node on virtual time, with directories that break."""

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
from tests.rig import FETCH_VERSION, PRODUCE_VERSION, Rig, fetch_request, produce_request


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_long_poll_that_cannot_read_holds_up_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.create("a", "b")
    assert rig.produce("a").error_code == 0
    poll = rig.connect()
    poll.submit(FETCH_VERSION, fetch_request("a"))
    rig.turn()
    log = rig.node.log_manager.get("a", 0)
    assert log is not None

    def damaged(offset: int, up_to_offset: int) -> int:
        raise ValueError("our own mistake")

    monkeypatch.setattr(type(log), "size_between", lambda self, *offsets: damaged(*offsets))
    one, other = rig.connect(), rig.connect()
    one.submit(PRODUCE_VERSION, produce_request("a"))
    other.submit(PRODUCE_VERSION, produce_request("b"))
    rig.turn()
    for client in (one, other):
        answer = client.receive(PRODUCE_VERSION, ProduceRequest)
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert rig.produce("b").error_code == 0


def test_a_directory_that_fails_takes_its_own_partitions_offline(rig: Rig) -> None:
    rig.create("b", "a")
    assert [rig.directory_of(name).rpartition("/")[0] for name in ("b", "a")] == ["/d1", "/d2"]
    assert (rig.produce("a").error_code, rig.produce("b").error_code) == (0, 0)
    poll = rig.connect()
    poll.submit(FETCH_VERSION, fetch_request("a"))
    rig.turn()
    log = rig.node.log_manager.get("a", 0)
    assert log is not None
    log.fail(StorageError("Input/output error"))
    rig.node.log_manager.handle_log_dir_failure(
        rig.node.log_manager.directory_of(log), StorageError("Input/output error")
    )
    rig.turn()
    answer = poll.receive(FETCH_VERSION, FetchRequest)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.produce("a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.latest("a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.produce("b").error_code == 0
    assert rig.fatal == []


def test_without_any_directory_the_node_says_that_it_cannot_go_on(rig: Rig) -> None:
    for directory in rig.node.log_manager.directories():
        rig.node.log_manager.handle_log_dir_failure(directory, StorageError("Input/output error"))
    rig.turn()
    # The first of them holds the metadata log, which is reason enough.
    assert rig.fatal == [
        "the directory of the metadata log has failed: Input/output error",
        "no log directory is left: Input/output error",
    ]


def test_a_log_that_cannot_be_reached_is_not_made_again(rig: Rig) -> None:
    rig.create("a", partitions=4)
    lost = [index for index in range(4) if rig.directory_of("a", index).startswith("/d2")]
    assert lost
    for index in range(4):
        assert rig.produce("a", index).error_code == 0
    rig.node.begin_shutdown()
    rig.node.finish_shutdown()
    rig.disk.broken_directories["/d2"] = True
    again = Rig(rig.disk)
    for index in range(4):
        # As Kafka says it: the cluster knows that they are lost, and they have no leader.
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if index in lost else ErrorCode.NONE
        assert again.produce("a", index).error_code == expected, index
    again.node.begin_shutdown()
    again.node.finish_shutdown()
    rig.disk.broken_directories.clear()
    healed = Rig(rig.disk)
    for index in range(4):
        assert healed.produce("a", index).base_offset == (1 if index in lost else 2), index


def test_a_topic_whose_directory_fails_is_deleted_all_the_same(rig: Rig) -> None:
    rig.create("a", partitions=4)
    rig.disk.broken_directories["/d2"] = True
    answer = rig.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000))
    assert [topic.error_code for topic in answer.responses] == [0]
    rig.disk.broken_directories.clear()
    for index in range(4):
        assert rig.produce("a", index).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reply_that_cannot_be_written_is_an_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.connect()
    context = client.channel.open_slot(RequestHeader(ApiKey.HEARTBEAT, 4, 1, "me", 2), 0)
    context.request = HeartbeatRequest()
    context.complete(object())
    assert client.receive(4, HeartbeatRequest).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not client.channel.closing
    assert "could not encode the response" in caplog.text


def test_a_failure_that_cannot_be_told_closes_its_connection_alone(rig: Rig) -> None:
    client = rig.connect()
    context = client.channel.open_slot(RequestHeader(ApiKey.PRODUCE, 9, 1, "me", 2), 0)
    context.request = ProduceRequest(acks=0)
    context.complete(object())
    assert client.channel.take_ready() == []
    assert client.channel.closing
