"""A broker that crashes, hangs, or has no room on its disk, and comes back."""

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
from tests.testing.peer import Peer, produced

CLEAN = ".kafka_cleanshutdown"
HOUR_MS = 3_600_000


def waiting_fetch(topic: str) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def test_after_a_crash_it_is_where_it_was_with_what_it_has_acknowledged(tmp_path: Path) -> None:
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
            assert peer.receive(1) == b"", "nobody is answered"
        assert not broker.is_running
        assert not (tmp_path / CLEAN).exists()
        with pytest.raises(RuntimeError, match="is not running"):
            broker.topics()
        broker.start()
        assert broker.bootstrap_servers == address
        assert broker.records(topic, count=1)[0].value == b"before"
        with Peer(broker) as peer:
            peer.ask(produced(topic), 9)
        assert len(broker.requests.find("Produce")) == 1
        [appended] = broker.requests.find("Produce")
        assert first.offset == 0
        assert appended.response is not None
        assert appended.response["responses"][0]["partition_responses"][0]["base_offset"] == 1
    assert (tmp_path / CLEAN).exists()


def test_the_clock_is_not_set_back_by_a_crash_nor_is_data_removed_without_a_directory() -> None:
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


def test_a_restart_is_clean_and_at_the_same_address(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path) as broker:
        topic, address = broker.new_topic(), broker.bootstrap_servers
        broker.restart()
        assert (broker.topics(), broker.bootstrap_servers) == ([topic], address)


def test_who_crashed_and_is_stopped_gives_all_back(tmp_path: Path) -> None:
    broker = Broker()
    broker.start()
    directory = Path(broker.log_dir)
    broker.crash()
    broker.stop()
    assert not directory.exists()


def test_one_that_hangs_takes_requests_up_when_it_goes_on() -> None:
    with Broker() as broker, Peer(broker) as peer:
        broker.hang()
        peer.send(MetadataRequest(topics=[]), 12)
        with Peer(broker) as other:  # as with a process that is stopped, the kernel takes connections
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
            assert peer.answer(MetadataRequest(), 12).brokers
            assert other.answer(MetadataRequest(), 12).brokers
        broker.hang()  # which does not keep it from being stopped


def test_a_full_disk_ends_a_broker_that_comes_back_when_there_is_room() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        broker.produce(topic, "before")
        with Peer(broker) as peer:
            broker.fill_disk()
            answer = peer.ask(produced(topic), 9)
            [told] = answer.responses[0].partition_responses
            assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        broker.wait_until(lambda: not broker.is_running)
        for asked in (lambda: broker.records(topic), lambda: broker.advance(1)):
            with pytest.raises(RuntimeError, match="has failed: no log directory is left: No space"):
                asked()
        broker.free_disk()
        broker.start()
        assert [record.value for record in broker.records(topic)] == [b"before"]
        broker.produce(topic, "after")


def test_who_asks_while_a_broker_ends_is_told_so_before_the_time_is_over() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        broker.fill_disk()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="has failed: no log directory is left: No space"):
            broker.produce(topic, "no room")
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2


def test_a_start_that_fails_leaves_nothing_to_come_back_to() -> None:
    broker = Broker({"num.partitions": "many"})
    for _ in range(2):
        with pytest.raises(ConfigError):
            broker.start()
        assert not broker.is_running


def test_one_crash_after_the_other_loses_nothing_that_was_acknowledged() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        for _ in range(10):
            with Peer(broker) as peer:
                peer.ask(produced(topic), 9)
                broker.crash()
            broker.start()
        assert len(broker.records(topic)) == 10
