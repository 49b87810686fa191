"""What one failure does to everybody else: nothing. A node on virtual time, with directories that break."""

from __future__ import annotations

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.produce import ProduceRequest
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kwire.wire.registry import RequestHeader
from tests.rig import FETCH_VERSION, PRODUCE_VERSION, Rig, fetch_request, produce_request


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_long_poll_that_cannot_read_holds_up_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.create("a", "b")
    assert rig.produce("a").error_code == 0
    poll = rig.connect()
    poll.ask(FETCH_VERSION, fetch_request("a"))
    rig.turn()
    log = rig.node.log_manager.get("a", 0)
    assert log is not None

    def damaged(offset: int, up_to_offset: int) -> int:
        raise ValueError("our own mistake")

    monkeypatch.setattr(type(log), "size_between", lambda self, *offsets: damaged(*offsets))
    one, other = rig.connect(), rig.connect()
    one.ask(PRODUCE_VERSION, produce_request("a"))
    other.ask(PRODUCE_VERSION, produce_request("b"))
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
    poll.ask(FETCH_VERSION, fetch_request("a"))
    rig.turn()
    log = rig.node.log_manager.get("a", 0)
    assert log is not None
    log.fail(StorageError("Input/output error"))
    rig.node.log_manager.directory_failed(
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
        rig.node.log_manager.directory_failed(directory, StorageError("Input/output error"))
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
    rig.disk.broken = "/d2"
    again = Rig(rig.disk)
    for index in range(4):
        # As Kafka says it: the cluster knows that they are lost, and they have no leader.
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if index in lost else ErrorCode.NONE
        assert again.produce("a", index).error_code == expected, index
    again.node.begin_shutdown()
    again.node.finish_shutdown()
    rig.disk.broken = None
    healed = Rig(rig.disk)
    for index in range(4):
        assert healed.produce("a", index).base_offset == (1 if index in lost else 2), index


def test_a_topic_whose_directory_fails_is_deleted_all_the_same(rig: Rig) -> None:
    rig.create("a", partitions=4)
    rig.disk.broken = "/d2"
    answer = rig.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000))
    assert [topic.error_code for topic in answer.responses] == [0]
    rig.disk.broken = None
    for index in range(4):
        assert rig.produce("a", index).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_batch_of_a_transaction_is_refused_while_nobody_can_end_it(rig: Rig) -> None:
    rig.create("a")
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = rig.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "COORDINATOR_NOT_AVAILABLE" in answer.error_message
    assert rig.latest("a").offset == 0


def test_an_epoch_that_is_over_is_refused_by_its_name_though_nobody_can_end_its_transaction(rig: Rig) -> None:
    rig.create("a")
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    later = WritableTxnMarker(producer_id=1, producer_epoch=5, transaction_result=True, topics=topics)
    rig.call(1, WriteTxnMarkersRequest(markers=[later]))
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = rig.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.latest("a").offset == 1


def test_a_refused_produce_without_acknowledgement_closes_its_connection(rig: Rig) -> None:
    rig.create("a")
    client = rig.connect()
    request = produce_request(
        "a", acks=0, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    client.ask(PRODUCE_VERSION, request)
    rig.turn()
    assert client.channel.take_ready() == []
    assert client.channel.closing


def test_a_duplicate_is_answered_with_its_own_time(rig: Rig) -> None:
    rig.create("a")
    request = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    first = rig.call(PRODUCE_VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    again = rig.call(PRODUCE_VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    assert (first.base_offset, first.log_append_time_ms) == (0, -1)
    assert (again.base_offset, again.log_append_time_ms) == (0, 1_700_000_000_000)


def test_a_reply_that_cannot_be_written_is_an_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.connect()
    context = client.channel.open_slot(RequestHeader(12, 4, 1, "me", 2), 0)
    context.request = HeartbeatRequest()
    context.complete(object())
    assert client.receive(4, HeartbeatRequest).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not client.channel.closing
    assert "a reply cannot be written" in caplog.text


def test_a_failure_that_cannot_be_told_closes_its_connection_alone(rig: Rig) -> None:
    client = rig.connect()
    context = client.channel.open_slot(RequestHeader(0, 9, 1, "me", 2), 0)
    context.request = ProduceRequest(acks=0)
    context.complete(object())
    assert client.channel.take_ready() == []
    assert client.channel.closing


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("node.id", "7", "Cannot update these configs dynamically: [node.id]"),
        ("background.threads", "1000", "should not be greater than double the current value 10"),
        ("log.cleaner.threads", "0", "/ by zero"),
        ("log.cleaner.threads", "9", "cannot be increased to more than double the current value 1"),
        ("leader.replication.throttled.rate", "-1", "Value must be at least 0"),
        ("ssl.keystore.location", "/x", "only per-listener using the listener prefix"),
        ("ssl.engine.factory.class", "x", "Class x could not be found."),
        ("listeners", "x", "Unable to parse a listener name from x"),
        ("metric.reporters", "nosuch.Class", "update of Set(metric.reporters) failed"),
    ],
)
def test_settings_that_a_running_broker_refuses(rig: Rig, name: str, value: str, said: str) -> None:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    answer = rig.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert said in answer.error_message


@pytest.mark.parametrize(
    "name", ["cordoned.log.dirs", "ssl.provider", "listener.name.plaintext.ssl.provider"]
)
def test_what_one_broker_alone_can_be_told(rig: Rig, name: str) -> None:
    codes = []
    for resource_name in ("", "1"):
        change = AlterableConfig(name=name, config_operation=0, value="")
        resource = AlterConfigsResource(resource_type=4, resource_name=resource_name, configs=[change])
        answer = rig.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
        codes.append(answer.error_code)
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


def test_a_producer_s_expiry_changes_while_the_broker_runs(rig: Rig) -> None:
    rig.create("a")
    change = AlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1000")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    answer = rig.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert answer.error_code == 0
    log = rig.node.log_manager.get("a", 0)
    assert log is not None
    assert log.producers.expiration_ms == 1000
