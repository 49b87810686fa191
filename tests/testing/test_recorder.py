"""`Recorder`: the requests that a broker received from clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwire.testing import Broker, Recorder, TopicPartition
from kwire.testing.broker import Process
from kwire.testing.exchange import Exchange
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.registry import RequestHeader
from tests.testing.peer import Peer, produce_request


@pytest.fixture(scope="module")
def shared(process: Process) -> Iterator[Broker]:
    with Broker(process=process) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.requests.clear()
    return shared


def fetch(topic: str, *, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    topics = []
    if session_epoch <= 0:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )


def test_exchange_has_decoded_fields_and_a_text_form(broker: Broker) -> None:
    topic = broker.new_topic()
    with Peer(broker, "billing") as peer:
        peer.request(produce_request(topic, b"first"), 9)
        peer.request(fetch(topic), 12)
    [one] = broker.requests.find("Produce")
    assert (one.version, one.client_id, one.outcome) == (9, "billing", "")
    assert one.request["acks"] == -1
    [data] = one.request["topic_data"][0]["partition_data"]
    assert [record.value for record in data["records"]] == [b"first"]
    assert one.response is not None
    [response] = one.response["responses"][0]["partition_responses"]
    assert (response["error_code"], response["base_offset"]) == (ErrorCode.NONE, 0)
    text = str(broker.requests)
    assert f"Produce 9 from billing: {{acks: -1, timeout_ms: 1000, topic_data: [{{name: '{topic}'" in text
    assert "records: [0: null = 'first']" in text.splitlines()[0]
    assert "records: [0: null = 'first']" in text.splitlines()[3], "fetched records are sent from a file"


def test_find_filters_by_client_topic_and_partition(broker: Broker) -> None:
    one, other = broker.new_topic("one"), broker.new_topic("other")
    with Peer(broker, "a") as a, Peer(broker, "b") as b:
        a.request(produce_request(one), 9)
        b.request(produce_request(other), 9)
        # The second fetch of a fetch session names no partitions.
        response = a.request(fetch(one, session_epoch=0), 12)
        a.request(fetch(one, session_id=response.session_id, session_epoch=1), 12)
        [topic] = b.request(MetadataRequest(topics=[MetadataRequestTopic(name=one)]), 12).topics
        b.request(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic.topic_id)]), 12)
    requests = broker.requests
    assert [found.client_id for found in requests.find("Produce")] == ["a", "b"]
    assert [found.client_id for found in requests.find("Produce", topic=other)] == ["b"]
    assert requests.find("Produce", topic=other, partition=1) == []
    assert requests.find("Produce", client_id="a", partition=0)[0].partitions == {TopicPartition(one, 0)}
    assert len(requests.find("Fetch", topic=one)) == 2
    assert len(requests.find("Metadata", topic=one)) == 2
    assert requests.find("Fetch", topic=other) == []


def test_client_with_a_node_client_id_is_recorded(broker: Broker) -> None:
    with Peer(broker, "node-1-fetch-0") as peer:
        peer.request(ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2"), 4)
        peer.request(MetadataRequest(topics=[]), 12)
    assert [one.api for one in broker.requests] == ["ApiVersions", "Metadata"]
    broker.requests.clear()
    with Peer(broker, "node-1-fetch-0") as node:
        node.request(ApiVersionsRequest(client_software_name="kwire", client_software_version="2"), 4)
        node.request(MetadataRequest(topics=[]), 12)
    assert list(broker.requests) == []


def test_identical_heartbeats_are_all_recorded(broker: Broker) -> None:
    with Peer(broker) as peer:
        for _ in range(3):
            peer.request(HeartbeatRequest(group_id="none", member_id="nobody"), 4)
    response = [found.response for found in broker.requests.find("Heartbeat")]
    assert len(response) == 3
    assert None not in response


def test_missing_responses_are_described(broker: Broker) -> None:
    topic = broker.new_topic()
    with Peer(broker) as peer:
        peer.send(produce_request(topic, acks=0), 9)
        broker.records(topic, count=1)
        waiting = fetch(topic)
        waiting.max_wait_ms, waiting.min_bytes = 60_000, 1 << 20
        peer.send(waiting, 12)
        broker.wait_until(lambda: broker.requests.find("Fetch"))
        assert "no response yet" in str(broker.requests)
    broker.wait_until(lambda: "the client disconnected" in str(broker.requests))
    assert "no response requested" in str(broker.requests)


def test_recorder_keeps_a_bounded_number_of_the_latest_exchanges() -> None:
    recorder = Recorder()
    header = RequestHeader(ApiKey.METADATA, 12, 0, "x")
    for number in range(MAX_EXCHANGES + 1):
        recorder.record_request(Exchange(number, header, memoryview(b"\x01\x00\x00\x00"), {}))
    kept = list(recorder)
    assert (len(kept), kept[0].received_at_s) == (MAX_EXCHANGES, 1)
    assert recorder.format(limit=1).startswith(f"({MAX_EXCHANGES - 1} earlier requests)")
    last = Exchange(0, header, memoryview(bytes(MAX_BYTES)), {})
    recorder.record_request(last)
    assert list(recorder) == [last]


def test_long_message_is_shortened(broker: Broker) -> None:
    topics = [MetadataRequestTopic(name=f"a-rather-long-name-{number}") for number in range(100)]
    with Peer(broker) as peer:
        peer.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    first, second = str(broker.requests).splitlines()
    assert first.endswith(" in all)")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in second
    assert len(first) < 1200


def test_unknown_api_name_raises() -> None:
    """A typing error must not make a test pass that expects no such request."""
    with pytest.raises(ValueError, match="there is no API 'Prodce': did you mean 'Produce'"):
        Recorder().find("Prodce")  # type: ignore[arg-type]


def test_history_of_a_later_test_needs_no_earlier_requests() -> None:
    recorder = Recorder(max_requests=3)
    header = RequestHeader(ApiKey.METADATA, 12, 0, "x")
    for at_s in range(1, 6):
        recorder.record_request(Exchange(at_s, header, memoryview(b"\x01\x00\x00\x00"), {}))
    with pytest.raises(ValueError, match="max_recorded_requests=3 "):
        recorder.since_test_began()
    recorder.begin_test(3.0)
    with pytest.raises(ValueError, match="has dropped requests of this test"):
        recorder.since_test_began()
    recorder.begin_test(3.5)
    assert [one.received_at_s for one in recorder.since_test_began()] == [4, 5]
    recorder.clear()
    assert recorder.since_test_began() == []


def test_exchange_has_its_connection_and_the_time_of_its_response(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.requests.clear()
    with Peer(broker) as one, Peer(broker) as other:
        for peer in (one, other, one):
            peer.request(produce_request(topic), 9)
    exchanges = list(broker.requests)
    assert all(found.received_at_s <= (found.responded_at_s or 0) for found in exchanges)
    first, second, third = (found.connection for found in exchanges)
    assert first == third != second
