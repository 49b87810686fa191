"""`Kafka`: produce, read and describe any Kafka cluster from a test."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from kwire.client.consumer import Consumer
from kwire.testing import Broker, Kafka, wait_until
from kwire.testing.broker import Process
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchResponse


@pytest.fixture(scope="module")
def broker(process: Process) -> Iterator[Broker]:
    config = {"offsets.topic.num.partitions": 1, "log.retention.hours": -1}
    with Broker(config, process=process) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Kafka]:
    """Return a client whose internals a test can replace. Those of `Broker` may be in the child process."""
    with Kafka(broker.bootstrap_servers) as kafka:
        yield kafka


def test_kafka_connects_to_any_cluster_by_its_address(broker: Broker) -> None:
    with Kafka(broker.bootstrap_servers) as kafka:
        topic = kafka.new_topic("elsewhere", partitions=3, config={"cleanup.policy": "compact"})
        assert kafka.produce(topic, "v", key="k", partition=2, headers={"h": b"x"}, timestamp_ms=5) == (
            broker.records(topic)
        )
        assert kafka.end_offsets(topic) == {0: 0, 1: 0, 2: 1}
        assert topic in broker.topics()
        assert kafka.new_topic("elsewhere") != topic


def test_headers_accept_text_bytes_and_none(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "v", headers={"source": "shop", "none": None, "raw": b"\xff"})
    assert broker.records(topic)[0].headers == [("source", b"shop"), ("none", None), ("raw", b"\xff")]
    # Pairs keep their order, and a name may occur twice.
    pairs: list[tuple[str, str | bytes | None]] = [("hop", b"1"), ("source", "shop"), ("hop", b"2")]
    [record] = broker.produce(topic, "v", headers=pairs)
    assert broker.produce(topic, "v", headers=record.headers)[0].headers == record.headers
    assert broker.records(topic)[1].headers == [("hop", b"1"), ("source", b"shop"), ("hop", b"2")]
    number: Any = 3
    with pytest.raises(TypeError, match="keys, values and headers are str, bytes or None, not int: 3"):
        broker.produce(topic, "v", headers={"n": number})
    several: Any = ["v", "w"]
    with pytest.raises(TypeError, match=r"not list: \['v', 'w'\]. Pass several values as separate arguments"):
        broker.produce(topic, several)
    document: Any = {"id": 1}
    with pytest.raises(TypeError, match=r"not dict: \{'id': 1\}. Serialize it first"):
        broker.produce(topic, document)


def test_records_are_read_from_a_partition_and_offset(broker: Broker) -> None:
    topic = broker.new_topic(partitions=2)
    broker.produce(topic, "a", "b", None)
    broker.produce(topic, "c", partition=1)
    assert [one.value for one in broker.records(topic)] == [b"a", b"b", None, b"c"]
    assert [one.value for one in broker.records(topic, partition=0, offset=1)] == [b"b", None]


def test_records_fetches_again_while_the_high_watermark_is_behind(
    client: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, original_fetch = client.new_topic(), Consumer._fetch
    client.produce(topic, "a", "b")
    stale_responses = iter(range(2))

    def fetch(
        self: Consumer, leader: int, led: Sequence[tuple[str, int]], wait_seconds: float
    ) -> FetchResponse:
        response = original_fetch(self, leader, led, wait_seconds)
        one = response.responses[0].partitions[0]
        if next(stale_responses, None) is not None:  # as from a new leader whose high watermark is still 0
            one.records, one.high_watermark, one.last_stable_offset = b"", 0, 0
        return response

    monkeypatch.setattr(Consumer, "_fetch", fetch)
    assert [one.value for one in client.records(topic)] == [b"a", b"b"]


def test_records_does_not_wait_for_a_compacted_tail(client: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction can remove every record before the log end offset."""
    topic, original_fetch = client.new_topic(), Consumer._fetch
    client.produce(topic, "a", "b")

    def fetch(
        self: Consumer, leader: int, led: Sequence[tuple[str, int]], wait_seconds: float
    ) -> FetchResponse:
        response = original_fetch(self, leader, led, wait_seconds)
        response.responses[0].partitions[0].records = b""
        return response

    monkeypatch.setattr(Consumer, "_fetch", fetch)
    assert client.records(topic) == []


def test_wrong_number_of_records_raises_with_the_records(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "a", "b")
    with pytest.raises(AssertionError, match=r"has 2 records, not 1:\n.*-0 at 0: None = b'a'"):
        broker.records(topic, count=1)
    with pytest.raises(AssertionError, match="has 2 records after 0 s, not 3"):
        broker.records(topic, count=3, timeout_s=0)


def test_unknown_topic_fails_at_once_and_names_the_topics_that_exist(broker: Broker) -> None:
    broker.create_topic("shipments")
    broker.create_topic("invoices")
    begun = time.monotonic()
    for call in (broker.records, broker.end_offsets, partial(broker.lag, "billing")):
        with pytest.raises(
            ApiError, match=r"no topic shipmnts: did you mean 'shipments'\? Or use one of .*'inv"
        ):
            call("shipmnts")
    assert time.monotonic() - begun < TIMEOUT_SECONDS / 2
    with pytest.raises(
        AssertionError, match=r"no topic shipmnts: did you mean 'shipments'\?.* \(after 0.2 s\)"
    ):
        broker.records("shipmnts", count=1, timeout_s=0.2)
    assert time.monotonic() - begun >= 0.2


def test_missing_topic_is_waited_for_until_the_timeout(broker: Broker) -> None:
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"there is no topic missing: .* \(after 0.1 s\)$"):
        broker.records("missing", count=1, timeout_s=0.1)
    with pytest.raises(ApiError, match="there is no topic missing: ") as refused:
        broker.records("missing", timeout_s=0.1)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 0.1 <= time.monotonic() - begun < TIMEOUT_SECONDS
    # The timeout also limits each request, so it is long enough for a busy machine.
    with Kafka(broker.bootstrap_servers, timeout_s=3) as kafka:
        with pytest.raises(ApiError, match="there is no topic missing: "):
            kafka.records("missing")
        later = threading.Timer(0.2, lambda: broker.produce("later", "came"))
        later.start()
        assert [one.value for one in kafka.records("later", count=1, timeout_s=10)] == [b"came"]
        later.join()


def test_refused_request_raises_its_error_code(broker: Broker) -> None:
    topic = broker.new_topic()
    with pytest.raises(ApiError) as refused:
        broker.create_topic(topic)
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(LookupError, match="only partition 0, not 7"):
        broker.produce(topic, "x", partition=7)
    with pytest.raises(ValueError, match="at least one value"):
        broker.produce(topic)
    with pytest.raises(TypeError, match="str, bytes or None, not int: 3"):
        broker.produce(topic, 3)  # type: ignore[arg-type]


def test_invalid_or_unused_address_raises() -> None:
    for wrong in ("localhost", "localhost:99999", "localhost:0"):
        with pytest.raises(ValueError, match="host:port"):
            Kafka(wrong).topics()
    with pytest.raises(OSError):
        Kafka("127.0.0.1:1", timeout_s=0.05).topics()


def test_restarted_broker_is_reached_at_its_new_address(process: Process) -> None:
    broker = Broker(process=process)
    for _ in range(2):
        with broker:
            assert broker.topics() == []


def test_wait_until_returns_the_result_or_describes_the_timeout() -> None:
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) > 2 and "three", timeout_s=10) == "three"
    with pytest.raises(AssertionError, match="waited 0 s for the billing, last result: 0"):
        wait_until(lambda: 0, timeout_s=0, description="the billing")
