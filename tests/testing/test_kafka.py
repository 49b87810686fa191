"""What a test asks of a Kafka by itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kwire.client.consumer import Consumer
from kwire.testing import Broker, Kafka, wait_until
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchResponse


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 1, "log.retention.hours": -1}) as broker:
        yield broker


def test_any_kafka_is_asked_by_its_address(broker: Broker) -> None:
    with Kafka(broker.bootstrap_servers) as kafka:
        topic = kafka.new_topic("elsewhere", partitions=3, config={"cleanup.policy": "compact"})
        assert kafka.produce(topic, "v", key="k", partition=2, headers={"h": b"x"}, timestamp_ms=5) == (
            broker.records(topic)
        )
        assert kafka.end_offsets(topic) == {0: 0, 1: 0, 2: 1}
        assert topic in broker.topics()
        assert kafka.new_topic("elsewhere") != topic


def test_headers_may_be_text_as_keys_and_values_may(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "v", headers={"source": "shop", "none": None, "raw": b"\xff"})
    assert broker.records(topic)[0].headers == [("source", b"shop"), ("none", None), ("raw", b"\xff")]
    # As a record has them: in their order, and one of them twice.
    pairs = [("hop", b"1"), ("source", "shop"), ("hop", b"2")]
    [record] = broker.produce(topic, "v", headers=pairs)
    assert broker.produce(topic, "v", headers=record.headers)[0].headers == record.headers
    assert broker.records(topic)[1].headers == [("hop", b"1"), ("source", b"shop"), ("hop", b"2")]
    number: Any = 3
    with pytest.raises(TypeError, match="keys, values and headers are str, bytes or None, not int: 3"):
        broker.produce(topic, "v", headers={"n": number})


def test_records_are_read_from_where_one_says(broker: Broker) -> None:
    topic = broker.new_topic(partitions=2)
    broker.produce(topic, "a", "b", None)
    broker.produce(topic, "c", partition=1)
    assert [one.value for one in broker.records(topic)] == [b"a", b"b", None, b"c"]
    assert [one.value for one in broker.records(topic, partition=0, offset=1)] == [b"b", None]


def test_a_leader_that_does_not_know_yet_what_is_committed_is_asked_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, answered = broker.new_topic(), Consumer._fetch
    broker.produce(topic, "a", "b")
    behind = iter(range(2))

    def fetch(
        self: Consumer, leader: int, led: Sequence[tuple[str, int]], wait_seconds: float
    ) -> FetchResponse:
        answer = answered(self, leader, led, wait_seconds)
        one = answer.responses[0].partitions[0]
        if next(behind, None) is not None:  # the answer of one whose high watermark is 0
            one.records, one.high_watermark, one.last_stable_offset = b"", 0, 0
        return answer

    monkeypatch.setattr(Consumer, "_fetch", fetch)
    assert [one.value for one in broker.records(topic)] == [b"a", b"b"]


def test_what_a_tail_that_is_gone_leaves_is_not_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction may leave nothing before the end of a partition."""
    topic, answered = broker.new_topic(), Consumer._fetch
    broker.produce(topic, "a", "b")

    def fetch(
        self: Consumer, leader: int, led: Sequence[tuple[str, int]], wait_seconds: float
    ) -> FetchResponse:
        answer = answered(self, leader, led, wait_seconds)
        answer.responses[0].partitions[0].records = b""
        return answer

    monkeypatch.setattr(Consumer, "_fetch", fetch)
    assert broker.records(topic) == []


def test_more_or_fewer_records_than_expected_are_told(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "a", "b")
    with pytest.raises(AssertionError, match=r"has 2 records, not 1:\n.*-0 at 0: None = b'a'"):
        broker.records(topic, count=1)
    with pytest.raises(AssertionError, match="has 2 records after 0 s, not 3"):
        broker.records(topic, count=3, timeout_s=0)


def test_a_topic_that_is_not_there_is_waited_for_as_long_as_records_are(broker: Broker) -> None:
    begun = time.monotonic()
    with pytest.raises(ApiError, match=r"there is no topic missing$") as refused:
        broker.records("missing", count=1, timeout_s=0.1)
    with pytest.raises(ApiError, match=r"there is no topic missing$"):
        broker.records("missing", timeout_s=0.1)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 0.1 <= time.monotonic() - begun < TIMEOUT_SECONDS
    # Each of its questions has to be answered in this time, too, which a busy machine may not do in less.
    with Kafka(broker.bootstrap_servers, timeout_s=3) as kafka:
        with pytest.raises(ApiError, match=r"there is no topic missing$"):
            kafka.records("missing")
        later = threading.Timer(0.2, lambda: broker.produce("later", "came"))
        later.start()
        assert [one.value for one in kafka.records("later", count=1, timeout_s=10)] == [b"came"]
        later.join()


def test_what_is_refused_raises_its_code(broker: Broker) -> None:
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


def test_an_address_that_is_none_or_nobodys_is_told() -> None:
    for wrong in ("localhost", "localhost:99999", "localhost:0"):
        with pytest.raises(ValueError, match="host:port"):
            Kafka(wrong).topics()
    with pytest.raises(OSError):
        Kafka("127.0.0.1:1", timeout_s=0.05).topics()


def test_a_broker_that_is_started_again_is_asked_at_its_new_address() -> None:
    broker = Broker()
    for _ in range(2):
        with broker:
            assert broker.topics() == []


def test_waiting_gives_what_came_and_says_what_did_not() -> None:
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) > 2 and "three", timeout_s=10) == "three"
    with pytest.raises(AssertionError, match="waited 0 s for the billing, last result: 0"):
        wait_until(lambda: 0, timeout_s=0, description="the billing")
