"""Envelope on a controller: it handles the inner request as if the client had sent it."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.broker.security.settings import is_node, own_principal, peer_credentials
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import decode_response, encode_record, encode_request
from tests.node_harness import NodeHarness

PRINCIPAL = encode_record(DefaultPrincipalData(type="User", name="ann", token_authenticated=False), 0)
LOCALHOST = ipaddress.ip_address("127.0.0.1").packed


def inner_request(name: str = "t", version: int = 7, timeout_ms: int = 1_000) -> bytes:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
    return encode_request(request, version, 77, "ann's")[4:]


def send_envelope(
    harness: NodeHarness, data: bytes, principal: bytes | None = PRINCIPAL, address: bytes = LOCALHOST
) -> EnvelopeResponse:
    client = harness.connect(role=ListenerRole.CONTROLLER)
    request = EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=address)
    envelope_response: EnvelopeResponse = client.call(0, request)
    return envelope_response


def test_the_inner_response_has_the_header_of_the_inner_request() -> None:
    harness = NodeHarness()
    envelope_response = send_envelope(harness, inner_request())
    assert envelope_response.error_code == ErrorCode.NONE
    assert envelope_response.response_data is not None
    correlation_id, response = decode_response(CreateTopicsResponse, 7, envelope_response.response_data)
    assert correlation_id == 77
    assert [(one.name, one.error_code) for one in response.topics] == [("t", ErrorCode.NONE)]
    assert "t" in harness.node.image.topics


def test_an_error_of_the_inner_request_is_in_the_inner_response() -> None:
    envelope_response = send_envelope(NodeHarness(), inner_request(timeout_ms=0))
    assert envelope_response.error_code == ErrorCode.NONE
    assert envelope_response.response_data is not None
    _, response = decode_response(CreateTopicsResponse, 7, envelope_response.response_data)
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


NODE = "org.apache.kafka.common.security.plain.PlainLoginModule required username=node password=secret"
WITH_SASL = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f"{NODE} user_node=secret user_ann=known;",
    "super.users": "User:admin; User:other node",
}


def test_id_of_a_delegation_token_is_no_user_of_a_node() -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required tokenauth=true"
    scram = {
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.controller.scram-sha-256.sasl.jaas.config": f"{login} username=id password=hmac;",
    }
    config = NodeHarness(None, **{**WITH_SASL, **scram}).node.config
    assert peer_credentials(config, "CONTROLLER") is not None
    assert not is_node(config, Principal("User", "id"))
    assert own_principal(config) == ANONYMOUS


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ("node", ErrorCode.NONE),
        ("other node", ErrorCode.NONE),
        ("ann", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("ANONYMOUS", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_only_nodes_may_send_an_envelope_on_a_listener_with_authentication(
    user: str, code: ErrorCode
) -> None:
    harness = NodeHarness(None, **WITH_SASL)
    client = harness.connect("CONTROLLER", ListenerRole.CONTROLLER, Principal("User", user))
    request = EnvelopeRequest(
        request_data=inner_request(), request_principal=PRINCIPAL, client_host_address=LOCALHOST
    )
    assert client.call(0, request).error_code == code
    assert ("t" in harness.node.image.topics) == (code is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"principal": b"\0\1" + PRINCIPAL[2:]}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"principal": PRINCIPAL[:4]}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"address": b"\1\2\3"}, ErrorCode.INVALID_REQUEST),
        ({"data": b"\0"}, ErrorCode.UNSUPPORTED_VERSION),
        ({"data": inner_request()[:-3]}, ErrorCode.UNSUPPORTED_VERSION),
        ({"data": encode_request(MetadataRequest(topics=[]), 12, 1, "x")[4:]}, ErrorCode.INVALID_REQUEST),
        ({"data": b"\0\x13\0\x63" + inner_request()[4:]}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_an_invalid_envelope_is_an_error_of_the_envelope(changed: dict[str, Any], code: ErrorCode) -> None:
    envelope_response = send_envelope(NodeHarness(), **{"data": inner_request(), **changed})
    assert (envelope_response.error_code, envelope_response.response_data) == (code, None)


def test_an_envelope_counts_as_the_request_in_it() -> None:
    harness = NodeHarness()
    client = harness.connect(role=ListenerRole.CONTROLLER)
    client.channel.request_metrics = metrics = RequestMetrics(lambda: 0.0)
    for _ in range(2):
        request = EnvelopeRequest(
            request_data=inner_request(), request_principal=PRINCIPAL, client_host_address=LOCALHOST
        )
        client.call(0, request)
    assert {key: times.count for key, times in metrics.apis.items()} == {(ApiKey.CREATE_TOPICS, 7): 2}
    assert metrics.errors == {(ApiKey.CREATE_TOPICS, ErrorCode.TOPIC_ALREADY_EXISTS): 1}


def test_an_invalid_envelope_counts_as_an_envelope() -> None:
    harness = NodeHarness()
    client = harness.connect(role=ListenerRole.CONTROLLER)
    client.channel.request_metrics = metrics = RequestMetrics(lambda: 0.0)
    client.call(0, EnvelopeRequest(request_data=b"\0", client_host_address=LOCALHOST))
    assert list(metrics.apis) == [(ApiKey.ENVELOPE, 0)]
    assert metrics.errors == {(ApiKey.ENVELOPE, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE): 1}
