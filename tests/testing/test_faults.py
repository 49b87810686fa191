"""Injected faults, as clients see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.testing import ApiName, Broker, Faults, Process, Recorder
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest
from tests.testing.peer import Peer, produce_request


@pytest.fixture(scope="module")
def shared(process: Process) -> Iterator[Broker]:
    with Broker({"log.retention.hours": -1}, process=process) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()


def code_of(response: Any) -> ErrorCode:
    [result] = response.responses[0].partition_responses
    return ErrorCode(result.error_code)


def test_return_error_fails_the_given_number_of_requests(broker: Broker) -> None:
    topic = broker.new_topic()
    fault = broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    with Peer(broker) as peer:
        codes = [code_of(peer.request(produce_request(topic), 9)) for _ in range(3)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.NONE]
    assert (fault.hits, fault.is_over) == (2, True)
    assert len(broker.records(topic)) == 1
    assert "injected fault: returned NOT_LEADER_OR_FOLLOWER" in str(broker.requests)


def test_faults_match_only_the_given_topic_partition_and_client(broker: Broker) -> None:
    topic, other = broker.new_topic(), broker.new_topic()
    by_topic = broker.faults.return_error("Produce", "INVALID_RECORD", topic=topic, partition=0, times=None)
    by_partition = broker.faults.return_error("Produce", "INVALID_RECORD", topic=other, partition=1)
    by_client = broker.faults.return_error(
        "Produce", ErrorCode.CORRUPT_MESSAGE, client_id="billing", times=None
    )
    with Peer(broker) as peer, Peer(broker, "billing") as billing:
        assert code_of(peer.request(produce_request(topic), 9)) is ErrorCode.INVALID_RECORD
        assert code_of(peer.request(produce_request(other), 9)) is ErrorCode.NONE
        assert code_of(billing.request(produce_request(other), 9)) is ErrorCode.CORRUPT_MESSAGE
        by_topic.cancel()
        assert code_of(peer.request(produce_request(topic), 9)) is ErrorCode.NONE
    assert (by_topic.hits, by_partition.hits, by_client.hits) == (1, 0, 1)
    # Requests of the test itself match no fault.
    broker.faults.return_error("Produce", "INVALID_RECORD", times=None)
    broker.produce(topic, "x")


def fetch(topic: str, session_id: int, session_epoch: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])] if not session_epoch else []
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )


def test_fetch_error_is_returned_at_once_also_within_a_fetch_session(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "x")
    broker.faults.return_error("Fetch", "OFFSET_OUT_OF_RANGE", topic=topic, times=2)
    with Peer(broker) as peer:
        session_id = 0
        for epoch in range(2):
            response = peer.request(fetch(topic, session_id, epoch), 12)
            [result] = response.responses[0].partitions
            assert (result.error_code, result.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
            session_id = response.session_id
        request = fetch(topic, session_id, 2)
        request.min_bytes = 1
        [result] = peer.request(request, 12).responses[0].partitions
        assert result.error_code == ErrorCode.NONE
        assert result.records


def test_delay_blocks_later_requests_and_uses_the_clock_of_the_broker(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.faults.delay("Produce", 60)
    with Peer(broker) as peer, Peer(broker) as other:
        peer.send(produce_request(topic, b"first"), 9)
        peer.send(produce_request(topic, b"second"), 9)
        broker.wait_until(lambda: broker.requests.find("Produce"))
        other.request(produce_request(topic, b"of another"), 9)
        assert [one.value for one in broker.records(topic)] == [b"of another"]
        broker.advance(60_000)
        for _ in range(2):
            assert code_of(peer.receive_response(produce_request(topic), 9)) is ErrorCode.NONE
    assert [one.value for one in broker.records(topic)] == [b"of another", b"first", b"second"]


@pytest.mark.parametrize("truncates", [False, True])
def test_lost_or_truncated_response_does_not_undo_the_request(broker: Broker, truncates: bool) -> None:
    topic = broker.new_topic()
    (broker.faults.truncate_response if truncates else broker.faults.drop_response)("Produce")
    with Peer(broker) as peer:
        peer.send(MetadataRequest(topics=[]), 12)
        peer.send(produce_request(topic), 9)
        peer.send(MetadataRequest(topics=[]), 12)
        peer.receive_response(MetadataRequest(), 12)
        received = peer.receive(1000)
    if truncates:
        size = int.from_bytes(received[:4], "big") + 4
        assert len(received) == size // 2
    else:
        assert received == b""
    assert len(broker.records(topic)) == 1
    assert "then the connection was closed" in str(broker.requests)


def test_ignored_request_gets_no_response_and_does_not_delay_stop(process: Process) -> None:
    began = time.monotonic()
    with Broker(process=process) as broker:
        topic = broker.new_topic()
        broker.faults.ignore("Produce")
        peer = Peer(broker)
        peer.send(produce_request(topic), 9)
        broker.wait_until(lambda: broker.requests.find("Produce"))
        peer.sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.receive(1)
        assert broker.records(topic) == []
    assert time.monotonic() - began < 5, "stop waited for the client"
    peer.sock.close()


def test_failed_produce_with_acks_0_closes_the_connection(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.faults.return_error("Produce", "INVALID_RECORD")
    with Peer(broker) as peer:
        peer.send(produce_request(topic, acks=0), 9)
        assert peer.receive(1) == b""
    assert broker.records(topic) == []


@pytest.mark.parametrize(
    ("api", "error", "times", "message"),
    [
        ("Prodce", "INVALID_RECORD", 1, "there is no API 'Prodce': did you mean 'Produce'"),
        ("Xyz", "INVALID_RECORD", 1, "there is no API 'Xyz': use one of .*Produce"),
        ("Produce", "BAD_LUCK", 1, "'BAD_LUCK' is not a Kafka error"),
        ("Produce", "NOT_LEADER", 1, "is not a Kafka error: did you mean 'NOT_LEADER_OR_FOLLOWER'?"),
        ("Produce", 4711, 1, "4711 is not a Kafka error"),
        ("Produce", "NONE", 1, "NONE is not an error"),
        ("Produce", "INVALID_RECORD", 0, "pass a number of requests"),
    ],
)
def test_invalid_fault_is_refused_with_a_reason(api: Any, error: Any, times: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Broker().faults.return_error(api, error, times=times)


def test_topic_filter_is_refused_for_apis_without_topics() -> None:
    apis: tuple[ApiName, ...] = ("Heartbeat", "AddOffsetsToTxn")
    for api in apis:
        with pytest.raises(ValueError, match=f"{api} requests name no topics: filter by client_id="):
            Faults().drop_response(api, topic="orders")
        with pytest.raises(ValueError, match=f"{api} requests name no topics"):
            Recorder().find(api, partition=0)
    apis = ("Produce", "OffsetCommit", "DeleteTopics", "ConsumerGroupHeartbeat")
    for api in apis:
        assert Faults().drop_response(api, topic="orders").hits == 0


def test_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="a delay of -1 s: pass 0 or more"):
        Faults().delay("Fetch", -1)


def test_invalid_filter_is_refused() -> None:
    mistyped: dict[str, Any] = {"tpoic": "orders"}
    with pytest.raises(TypeError, match="times, client_id, topic, partition, not tpoic"):
        Faults().drop_response("Produce", **mistyped)
    never: dict[str, Any]
    for never in ({"partition": "0"}, {"topic": 5}):
        with pytest.raises(TypeError, match="topics are str and partitions int"):
            Faults().drop_response("Produce", **never)


def fault_descriptions(seed: int, *, others: int = 0) -> list[str | None]:
    """Return the faults of forty requests of one client, interleaved with those of another client."""
    faults = Faults()
    faults.random(seed, probability=0.5)
    result: list[str | None] = []
    for _ in range(40):
        for _ in range(others):
            faults.match("Produce", "shop", frozenset())
        fault = faults.match("Produce", "billing", frozenset())
        result.append(None if fault is None else fault.description)
    return result


def test_random_faults_of_a_client_do_not_depend_on_other_clients() -> None:
    assert fault_descriptions(7) == fault_descriptions(7, others=3) != fault_descriptions(8)
    kinds = {text.split()[0] for text in fault_descriptions(7) if text}
    assert kinds == {"returned", "delayed", "processed,"}
    assert 10 < sum(text is None for text in fault_descriptions(7)) < 30


def test_random_faults_can_be_filtered_and_limited() -> None:
    faults = Faults()
    seeded = faults.random(7, probability=1, client_id="billing", topic="orders", times=2)
    orders, bills = frozenset({("orders", 0)}), frozenset({("bills", 0)})
    assert faults.match("Produce", "shop", orders) is None
    assert faults.match("Produce", "billing", bills) is None
    assert faults.match("ApiVersions", "billing", orders) is None, "a client could not negotiate versions"
    assert [faults.match("Produce", "billing", orders) is not None for _ in range(3)] == [True, True, False]
    assert (seeded.hits, seeded.is_over) == (2, True)
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        faults.random(7, probability=0)
    with pytest.raises(ValueError, match="times=0"):
        faults.random(7, times=0)


def test_recorder_describes_random_faults(broker: Broker) -> None:
    topic = broker.new_topic()
    seeded = broker.faults.random(3, probability=1, times=1)
    with Peer(broker, "billing") as peer:
        error = None
        try:
            error = code_of(peer.request(produce_request(topic), 9))
        except OSError:
            pass
    assert seeded.hits == 1
    [result] = broker.requests.find("Produce", client_id="billing")
    assert "by seed 3" in str(result)
    assert ("returned" in str(result)) == (error not in (None, ErrorCode.NONE))
