"""Headers and frames of messages, and the table of error codes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kwire.wire.api_keys import ApiKey
from kwire.wire.codegen import encode
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kwire.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import ZERO_UUID, Uuid, uuid_from_text, uuid_to_text
from kwire.wire.registry import (
    API_VERSIONS,
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from kwire.wire.schema import Message
from tests.wire import kafka_json
from tests.wire.interpreter import representative, to_message
from tests.wire.kafka_python import kafka_python_class, to_kafka_python

APIS = [
    pytest.param(key, version, id=f"{api.name}-{version}")
    for key, api in API_VERSIONS.items()
    if kafka_json.in_kafka_python(api.name + "Request")
    for version in range(api.min_version, api.max_version + 1)
]
"""The APIs and versions whose frames kafka-python has."""


def sample(message_class: type[Message], version: int) -> tuple[Any, Any]:
    """Return a message as kwire's and as kafka-python's object."""
    shape = kafka_json.definition(message_class.__name__).struct
    value = representative(shape, version)
    if message_class is ApiVersionsResponse:
        value["error_code"] = 0  # with an error, kafka-python reads any version as version 0
    theirs = to_kafka_python(kafka_python_class(message_class.__name__), value, version)
    return to_message(message_class, value), theirs


@pytest.mark.parametrize(("key", "version"), APIS)
def test_request_frames_match_kafka_python(key: int, version: int) -> None:
    """Request header version 1, or 2 for flexible versions."""
    api = API_VERSIONS[key]
    request, theirs = sample(api.request_class, version)
    theirs.with_header(correlation_id=0x01020304, client_id="kwire")
    frame = theirs.encode(version=version, header=True, framed=True)
    assert encode_request(request, version, 0x01020304, "kwire") == frame
    header, position = decode_request_header(memoryview(frame)[4:])
    header_version = 2 if api.is_flexible(version) else 1
    assert header == RequestHeader(key, version, 0x01020304, "kwire", header_version)
    assert position == 8 + 2 + len("kwire") + (header_version - 1)
    assert decode_request(header, memoryview(frame)[4:], position) == request


@pytest.mark.parametrize(("key", "version"), APIS)
def test_response_frames_match_kafka_python(key: int, version: int) -> None:
    """Response header version 0, or 1 for flexible versions except ApiVersions (KIP-511)."""
    response, theirs = sample(API_VERSIONS[key].response_class, version)
    theirs.with_header(correlation_id=0x01020304)
    frame = theirs.encode(header=True, framed=True)
    assert b"".join(bytes(one) for one in pieces(key, version, response)) == frame
    assert decode_response(API_VERSIONS[key].response_class, version, frame[4:]) == (0x01020304, response)


def pieces(key: int, version: int, response: Message) -> list[Any]:
    return encode_response(key, version, 0x01020304, response)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_response_has_header_0(version: int) -> None:
    response = ApiVersionsResponse()
    [frame] = encode_response(ApiKey.API_VERSIONS, version, 9, response)
    assert bytes(frame)[4:] == b"\x00\x00\x00\x09" + encode(response, version)  # type: ignore[arg-type]


def test_flexible_headers() -> None:
    [plain] = pieces(12, 3, HeartbeatResponse())
    [flexible] = pieces(12, 4, HeartbeatResponse())
    assert plain == bytes.fromhex("0000000a 01020304 00000000 0000")
    assert flexible == bytes.fromhex("0000000c 01020304 00 00000000 0000 00")


@pytest.mark.parametrize("client_id", [None, "", "c", "é" * 100])
def test_client_ids(client_id: str | None) -> None:
    for version in (3, 4):
        frame = encode_request(HeartbeatRequest(group_id="g"), version, 1, client_id)
        header, position = decode_request_header(memoryview(frame)[4:])
        assert header.client_id == client_id
        assert decode_request(header, memoryview(frame)[4:], position) == HeartbeatRequest(group_id="g")


def test_malformed_client_ids_are_replaced() -> None:
    frame = struct.pack(">hhih", 12, 0, 1, 2) + b"\xff\xfe"
    assert decode_request_header(memoryview(frame))[0].client_id == "\ufffd\ufffd"


def test_headers_with_unknown_tags() -> None:
    body = encode(HeartbeatRequest(group_id="g"), 4)
    frame = struct.pack(">hhih", 12, 4, 1, -1) + bytes.fromhex("02 05 03 616263 80 01 00") + body
    header, position = decode_request_header(memoryview(frame))
    assert header == RequestHeader(ApiKey.HEARTBEAT, 4, 1, None, 2)
    assert decode_request(header, memoryview(frame), position).group_id == "g"
    response = bytes.fromhex("00000001 01 07 02 6162") + encode(HeartbeatResponse(error_code=3), 4)
    assert decode_response(HeartbeatResponse, 4, response) == (1, HeartbeatResponse(error_code=3))
    for tags in ("", "01", "01 05", "01 05 04 616263", "ff ff ff ff ff"):
        with pytest.raises(WireError):
            decode_request_header(memoryview(struct.pack(">hhih", 12, 4, 1, -1) + bytes.fromhex(tags)))


@pytest.mark.parametrize("size", range(10))
def test_frame_with_an_incomplete_header_is_refused(size: int) -> None:
    with pytest.raises(WireError, match="has no header"):
        decode_request_header(memoryview(bytes(size)))


def test_client_id_beyond_the_frame_is_refused() -> None:
    with pytest.raises(WireError, match="client_id"):
        decode_request_header(memoryview(struct.pack(">hhih", 12, 0, 1, 5) + b"abcd"))


@pytest.mark.parametrize("api_key", [-1, 4, 17, 999])
def test_unknown_api_key_still_has_a_header(api_key: int) -> None:
    frame = struct.pack(">hhih", api_key, 99, 77, 1) + b"c"
    assert decode_request_header(memoryview(frame)) == (RequestHeader(api_key, 99, 77, "c", 1), 11)


def test_api_versions_of_a_future_version() -> None:
    """Only the fields that the response needs are read from its header (KIP-511)."""
    frame = encode_request(ApiVersionsRequest(client_software_name="x"), 4, 77, "c")[4:]
    changed = struct.pack(">hh", 18, 99) + frame[4:]
    header, _ = decode_request_header(memoryview(changed))
    assert header == RequestHeader(ApiKey.API_VERSIONS, 99, 77, "c", 2)


def test_bytes_after_a_request_are_ignored() -> None:
    frame = encode_request(MetadataRequest(), 12, 1, None)[4:] + b"more"
    header, position = decode_request_header(memoryview(frame))
    assert decode_request(header, memoryview(frame), position) == MetadataRequest()


class Span:
    """A fake file region."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_file_regions_are_pieces_of_a_response(version: int) -> None:
    """A response with file regions has the same bytes as one with their content."""

    def response(spans: list[Any]) -> FetchResponse:
        partitions = [
            PartitionData(partition_index=index, records=span, aborted_transactions=None)
            for index, span in enumerate(spans)
        ]
        return FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])

    contents = [b"first" * 50, b"", b"in memory", b"last"]
    spans = [Span(contents[0]), Span(contents[1]), contents[2], Span(contents[3])]
    pieces_found = encode_response(1, version, 5, response(spans))
    assert [one for one in pieces_found if isinstance(one, Span)] == [spans[0], spans[1], spans[3]]
    joined = b"".join(one.data if isinstance(one, Span) else bytes(one) for one in pieces_found)  # type: ignore[arg-type]
    [whole] = encode_response(1, version, 5, response(contents))
    assert joined == whole
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4


def test_response_without_a_header() -> None:
    with pytest.raises(WireError, match="has no header"):
        decode_response(HeartbeatResponse, 0, b"\x00\x00\x00")


def test_request_cannot_have_file_regions() -> None:
    """Only responses can have file regions."""
    data = PartitionProduceData(index=0, records=Span(b"batch"))
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[data])])
    with pytest.raises(ValueError, match="ProduceRequest holds regions"):
        encode_request(request, 12, 1, None)


@pytest.mark.parametrize("version", [4, 18])
def test_records_of_a_response_are_a_view_of_its_frame(version: int) -> None:
    """A follower validates and appends the records without an earlier copy."""
    partition = PartitionData(records=b"batches", aborted_transactions=None)
    [sent] = encode_response(
        1, version, 5, FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    )
    frame = bytearray(sent)[4:]  # type: ignore[arg-type]
    _, response = decode_response(FetchResponse, version, frame)
    view = response.responses[0].partitions[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert bytes(view) == b"batches"


def test_bytes_after_a_response_are_refused() -> None:
    for version, tags in ((3, b""), (4, b"\x00")):
        frame = b"\x00\x00\x00\x09" + tags + encode(HeartbeatResponse(), version)
        assert decode_response(HeartbeatResponse, version, frame) == (9, HeartbeatResponse())
        with pytest.raises(WireError, match="2 bytes after a HeartbeatResponse"):
            decode_response(HeartbeatResponse, version, frame + b"ab")


@pytest.mark.parametrize("requested_version", range(5))
def test_api_versions_response_of_an_older_broker(requested_version: int) -> None:
    """KIP-511: the broker returns UNSUPPORTED_VERSION in version 0, with the versions it supports."""
    known = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)]
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)
    [frame] = encode_response(ApiKey.API_VERSIONS, 0, 9, response)
    assert decode_response(ApiVersionsResponse, requested_version, frame[4:]) == (9, response)  # type: ignore[index]


def test_uuids_as_text() -> None:
    value = Uuid(bytes(range(16)))
    assert uuid_to_text(value) == "AAECAwQFBgcICQoLDA0ODw"
    assert uuid_from_text("AAECAwQFBgcICQoLDA0ODw") == value
    assert uuid_to_text(ZERO_UUID) == "A" * 22
    for text in ("", "A" * 21, "A" * 23, "A" * 40, "!" * 22, "A" * 10):
        with pytest.raises(ValueError):
            uuid_from_text(text)


RENAMED = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}
"""Errors with another name in kafka-python than in Apache Kafka."""


def test_error_codes_match_kafka_python() -> None:
    theirs = kafka_json.reference("kafka.errors").kafka_errors
    known = {code: error.message for code, error in theirs.items() if code is not None}
    assert {int(code): RENAMED.get(code, code.name) for code in ErrorCode if code in known} == known
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


def test_api_errors() -> None:
    assert str(ApiError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    assert str(ApiError(ErrorCode.INVALID_REQUEST, "why")) == "INVALID_REQUEST: why"
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_REQUEST.retriable
