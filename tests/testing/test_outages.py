"""A broker that crashes, hangs or has a full disk, and recovers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kwire.broker.config import ConfigError
from kwire.testing import Broker
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest
from tests.testing.peer import Peer, produce_request

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
HOUR_MS = 3_600_000


def waiting_fetch(topic: str) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def test_crashed_broker_restarts_at_its_address_with_acknowledged_records(tmp_path: Path) -> None:
    broker = Broker(log_dir=tmp_path, sync=False)
    with broker:
        topic = broker.new_topic()
        [first] = broker.produce(topic, "before")
        address = broker.bootstrap_servers
        broker.advance(HOUR_MS)
        with Peer(broker) as peer:
            peer.send(waiting_fetch(topic), 12)
            broker.wait_until(lambda: broker.requests.find("Fetch"))
            broker.crash()
            assert peer.receive(1) == b"", "a waiting fetch gets no response"
        assert not broker.is_running
        assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
        with pytest.raises(RuntimeError, match="is not running"):
            broker.topics()
        broker.start()
        assert broker.bootstrap_servers == address
        assert broker.records(topic, count=1)[0].value == b"before"
        with Peer(broker) as peer:
            peer.request(produce_request(topic), 9)
        assert len(broker.requests.find("Produce")) == 1
        [appended] = broker.requests.find("Produce")
        assert first.offset == 0
        assert appended.response is not None
        assert appended.response["responses"][0]["partition_responses"][0]["base_offset"] == 1
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_crash_keeps_the_clock_and_the_temporary_directory() -> None:
    with Broker({"log.message.timestamp.type": "LogAppendTime"}) as broker:
        topic = broker.new_topic()
        broker.produce(topic, "one")
        broker.advance(HOUR_MS)
        broker.crash()
        broker.start()
        broker.produce(topic, "two")
        one, two = broker.records(topic, count=2)
        assert two.timestamp_ms - one.timestamp_ms >= HOUR_MS
        directory = Path(broker.log_dir)
    assert not directory.exists()


def test_restart_keeps_topics_and_address(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path) as broker:
        topic, address = broker.new_topic(), broker.bootstrap_servers
        broker.restart()
        assert (broker.topics(), broker.bootstrap_servers) == ([topic], address)


def test_stop_after_a_crash_removes_the_temporary_directory(tmp_path: Path) -> None:
    broker = Broker()
    broker.start()
    directory = Path(broker.log_dir)
    broker.crash()
    broker.stop()
    assert not directory.exists()


def test_hanging_broker_answers_requests_after_resume() -> None:
    with Broker() as broker, Peer(broker) as peer:
        broker.hang()
        peer.send(MetadataRequest(topics=[]), 12)
        with Peer(broker) as other:  # the kernel still accepts connections
            other.send(MetadataRequest(topics=[]), 12)
            peer.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                peer.receive(1)
            with pytest.raises(RuntimeError, match=r"call resume\(\) first"):
                broker.advance(1)
            with pytest.raises(RuntimeError, match="already suspended"):
                broker.hang()
            broker.resume()
            peer.sock.settimeout(10)
            assert peer.receive_response(MetadataRequest(), 12).brokers
            assert other.receive_response(MetadataRequest(), 12).brokers
        broker.hang()  # a hanging broker can be stopped


def test_full_disk_stops_the_broker_and_it_restarts_with_free_space() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        broker.produce(topic, "before")
        with Peer(broker) as peer:
            broker.fill_disk()
            response = peer.request(produce_request(topic), 9)
            [result] = response.responses[0].partition_responses
            assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        broker.wait_until(lambda: not broker.is_running)
        for request in (lambda: broker.records(topic), lambda: broker.advance(1)):
            with pytest.raises(
                RuntimeError, match="all log directories have failed, the last one with: No space"
            ):
                request()
        broker.free_disk()
        broker.start()
        assert [record.value for record in broker.records(topic)] == [b"before"]
        broker.produce(topic, "after")


def test_call_to_a_failing_broker_raises_before_its_timeout() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        broker.fill_disk()
        began = time.monotonic()
        with pytest.raises(
            RuntimeError, match="all log directories have failed, the last one with: No space"
        ):
            broker.produce(topic, "disk full")
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2


def test_failed_start_can_be_repeated() -> None:
    broker = Broker({"num.partitions": "many"})
    for _ in range(2):
        with pytest.raises(ConfigError):
            broker.start()
        assert not broker.is_running


def test_repeated_crashes_lose_no_acknowledged_records() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        for _ in range(10):
            with Peer(broker) as peer:
                peer.request(produce_request(topic), 9)
                broker.crash()
            broker.start()
        assert len(broker.records(topic)) == 10
