"""Envelopes as a controller opens them: what is in them is answered as if its client had asked."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import decode_response, encode_record, encode_request
from tests.node_harness import NodeHarness

PRINCIPAL = encode_record(DefaultPrincipalData(type="User", name="ann", token_authenticated=False), 0)
HERE = ipaddress.ip_address("127.0.0.1").packed


def inner(name: str = "t", version: int = 7, timeout_ms: int = 1_000) -> bytes:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
    return encode_request(request, version, 77, "ann's")[4:]


def ask(
    harness: NodeHarness, data: bytes, principal: bytes | None = PRINCIPAL, address: bytes = HERE
) -> EnvelopeResponse:
    client = harness.connect(listener="CONTROLLER", role=ListenerRole.CONTROLLER)
    request = EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=address)
    answer: EnvelopeResponse = client.call(0, request)
    return answer


def test_what_is_in_it_is_answered_with_its_own_header() -> None:
    harness = NodeHarness()
    answer = ask(harness, inner())
    assert answer.error_code == ErrorCode.NONE
    assert answer.response_data is not None
    correlation_id, response = decode_response(CreateTopicsResponse, 7, answer.response_data)
    assert correlation_id == 77
    assert [(one.name, one.error_code) for one in response.topics] == [("t", ErrorCode.NONE)]
    assert "t" in harness.node.image.topics


def test_a_refusal_of_the_request_is_in_the_client_s_answer() -> None:
    answer = ask(NodeHarness(), inner(timeout_ms=0))
    assert answer.error_code == ErrorCode.NONE
    assert answer.response_data is not None
    _, response = decode_response(CreateTopicsResponse, 7, answer.response_data)
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"principal": b"\0\1" + PRINCIPAL[2:]}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"principal": PRINCIPAL[:4]}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"address": b"\1\2\3"}, ErrorCode.INVALID_REQUEST),
        ({"data": b"\0"}, ErrorCode.UNSUPPORTED_VERSION),
        ({"data": inner()[:-3]}, ErrorCode.UNSUPPORTED_VERSION),
        ({"data": encode_request(MetadataRequest(topics=[]), 12, 1, "x")[4:]}, ErrorCode.INVALID_REQUEST),
        ({"data": b"\0\x13\0\x63" + inner()[4:]}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_what_is_wrong_with_the_envelope_is_said_in_its_answer(
    changed: dict[str, Any], code: ErrorCode
) -> None:
    answer = ask(NodeHarness(), **{"data": inner(), **changed})
    assert (answer.error_code, answer.response_data) == (code, None)
