"""The changes of responses that a proxy forwards."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.testing.proxy.responses import convert_response, must_decode
from kwire.testing.proxy.topic_names import TopicNames
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchResponse, NodeEndpoint, PartitionData
from kwire.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from kwire.wire.messages.produce import NodeEndpoint as ProduceEndpoint
from kwire.wire.messages.produce import ProduceResponse, TopicProduceResponse
from kwire.wire.primitives import Uuid
from kwire.wire.registry import RequestHeader, decode_response, encode_response
from kwire.wire.schema import Message

TOPIC_ID = Uuid(b"topic id of orders"[:16])
PORT = 50_000


def names() -> TopicNames:
    return TopicNames({}, lambda channel, topic_ids, done: None)


def converted(response: Message, version: int, frame: bytes | None = None) -> tuple[list[Any], memoryview]:
    """Return the pieces of the response for the client, and the received frame."""
    pieces: list[Any] = encode_response(response.API_KEY, version, 5, response)
    received = memoryview(frame if frame is not None else b"".join(pieces)[4:])
    header = RequestHeader(response.API_KEY, version, 5, "me", 2)
    result: list[Any] = convert_response(header, received, lambda broker_id, host, port: PORT, names())
    return result, received


def fetched(size: int, *endpoints: NodeEndpoint) -> FetchResponse:
    partition = PartitionData(
        partition_index=0, high_watermark=1, aborted_transactions=[], records=bytes(size)
    )
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])
    return FetchResponse(responses=[topic], node_endpoints=list(endpoints))


def test_fetch_response_without_addresses_is_forwarded_without_a_copy() -> None:
    pieces, received = converted(fetched(100_000), 17)
    assert pieces[1] is received
    assert int.from_bytes(pieces[0], "big") == len(received)


def test_addresses_at_the_end_are_replaced_without_a_copy_of_the_records() -> None:
    pieces, received = converted(fetched(100_000, NodeEndpoint(node_id=1, host="kafka-1", port=9092)), 17)
    size, records, tags = pieces
    assert records.obj is received.obj
    assert len(tags) < 100
    sent = b"".join(pieces)
    assert int.from_bytes(size, "big") == len(sent) - 4
    assert decode_response(FetchResponse, 17, memoryview(sent)[4:])[1] == fetched(
        100_000, NodeEndpoint(node_id=1, host="127.0.0.1", port=PORT)
    )


def test_addresses_are_replaced_beside_an_undeclared_tagged_field() -> None:
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="orders")],
        node_endpoints=[ProduceEndpoint(node_id=1, host="kafka-1", port=9092)],
    )
    pieces: list[Any] = encode_response(ApiKey.PRODUCE, 11, 5, response)
    frame = bytearray(b"".join(pieces)[4:])
    first_tag = frame.rindex(b"kafka-1") - 9  # the number of tagged fields, then tag 0
    assert frame[first_tag : first_tag + 2] == b"\1\0"
    frame[first_tag] = 2
    frame += b"\x63\1x"  # tag 99 with one byte
    sent = b"".join(converted(response, 11, bytes(frame))[0])
    [endpoint] = decode_response(ProduceResponse, 11, memoryview(sent)[4:])[1].node_endpoints
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", PORT)


@pytest.mark.parametrize("version", [1, 12])
def test_metadata_is_encoded_with_the_new_address(version: int) -> None:
    response = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="kafka-1", port=9092)])
    sent = b"".join(converted(response, version)[0])
    [broker] = decode_response(MetadataResponse, version, memoryview(sent)[4:])[1].brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", PORT)


def test_only_responses_that_may_change_are_decoded() -> None:
    assert must_decode(ApiKey.FETCH, 16)
    assert not must_decode(ApiKey.FETCH, 15)
    assert not must_decode(ApiKey.OFFSET_COMMIT, 9)
    assert not must_decode(76, 1)


def test_number_of_topic_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.testing.proxy.topic_names.MAX_TOPIC_NAMES", 2)
    found: dict[Uuid, str] = {}
    topics = [
        MetadataResponseTopic(name=f"t{number}", topic_id=Uuid(number.to_bytes(16, "big")))
        for number in range(4)
    ]
    TopicNames(found, lambda channel, topic_ids, done: None).learn(MetadataResponse(topics=topics))
    assert sorted(found.values()) == ["t1", "t2"]
