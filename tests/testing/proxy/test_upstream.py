"""Connections to the cluster: their order, their limits and their failures."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress

import pytest

from kwire.client.errors import Disconnected
from kwire.testing import Broker, Proxy
from kwire.testing.proxy import brokers as proxy_brokers
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from kwire.wire.registry import RequestHeader, decode_response, encode_request
from kwire.wire.schema import Message
from tests.testing.peer import Peer, produce_request
from tests.testing.proxy.scripted_broker import FUTURE, ScriptedBroker, metadata_of

MIB = 1 << 20


def port_of(response: MetadataResponse, node_id: int) -> int:
    return next(one.port for one in response.brokers if one.node_id == node_id)


def frame(api_key: int, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    """Return a request of an API that kwire does not declare."""
    content = (
        api_key.to_bytes(2, "big")
        + version.to_bytes(2, "big")
        + correlation_id.to_bytes(4, "big")
        + b"\0\2me"
        + body
    )
    return len(content).to_bytes(4, "big") + content


def test_listeners_are_stable_per_broker_and_follow_address_changes() -> None:
    with (
        ScriptedBroker() as first,
        ScriptedBroker(lambda header, body: metadata_of(1, 2)) as second,
        ScriptedBroker(lambda header, body: metadata_of(3, 4)) as moved,
        Proxy(first.bootstrap_servers) as proxy,
    ):
        first.respond = lambda header, body: metadata_of(first.port, second.port)
        with Peer(proxy) as peer:
            one = peer.request(MetadataRequest(topics=[]), 12)
            assert [broker.host for broker in one.brokers] == ["127.0.0.1"] * 2
            assert port_of(one, 2) not in (first.port, second.port, peer.sock.getpeername()[1])
            first.respond = lambda header, body: metadata_of(first.port, moved.port, second.port)
            with socket.create_connection(("127.0.0.1", port_of(one, 2))) as before:
                two = peer.request(MetadataRequest(topics=[]), 12)
                assert [port_of(two, node) for node in (1, 2)] == [port_of(one, node) for node in (1, 2)]
                assert port_of(two, 3) not in (port_of(one, 1), port_of(one, 2))
                del before
        with Peer(proxy) as peer:
            peer.sock.close()
            peer.sock = socket.create_connection(("127.0.0.1", port_of(one, 2)))
            peer.request(MetadataRequest(topics=[]), 12)
            assert [header.api_key for header in moved.requests] == [ApiKey.METADATA], "new connections"


def test_error_without_a_coordinator_keeps_its_empty_address() -> None:
    failed = FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1)
    with ScriptedBroker(lambda header, body: failed) as broker, Proxy(broker.bootstrap_servers) as proxy:
        with Peer(proxy) as peer:
            found = peer.request(FindCoordinatorRequest(key="g"), 3)
        assert (found.node_id, found.host, found.port) == (-1, "", -1)


def test_too_many_brokers_close_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proxy_brokers, "MAX_BROKERS", 4)
    ports = range(1000, 1010)
    with (
        ScriptedBroker(lambda header, body: metadata_of(*ports)) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        peer.send(MetadataRequest(topics=[]), 12)
        assert peer.receive(1) == b""
    assert f"the broker at {broker.bootstrap_servers} failed" in caplog.text
    assert "a response names broker 4, after 4 other brokers" in caplog.text


# --- versions and unknown APIs


def test_unknown_api_is_forwarded_unchanged_and_not_recorded() -> None:
    with (
        ScriptedBroker(lambda header, body: b"response") as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        peer.sock.sendall(frame(76, 3, b"request"))
        assert peer.receive(16) == b"\0\0\0\x0c\0\0\0\x07response"
        assert broker.bodies[-1] == b"request"
        assert len(proxy.requests) == 0


@pytest.mark.parametrize(
    ("api_key", "version", "explanation"),
    [
        (ApiKey.FETCH, FUTURE, "use versions 4 to"),
        (78, 0, "cannot decode the addresses in the response"),
        (ApiKey.SASL_HANDSHAKE, 0, "as Kafka's clients do since 1.0"),
    ],
)
def test_request_that_cannot_pass_closes_the_connection_with_a_reason(
    api_key: int, version: int, explanation: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ScriptedBroker() as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        if api_key == ApiKey.SASL_HANDSHAKE:
            peer.send(SaslHandshakeRequest(mechanism="GSSAPI"), 0)
        else:
            peer.sock.sendall(frame(api_key, version, b"\0"))
        assert peer.receive(1) == b""
        assert [header.api_key for header in broker.requests] == [ApiKey.API_VERSIONS], "of the proxy's start"
    assert explanation in caplog.text


def test_api_versions_of_a_future_client_is_answered_as_by_an_older_broker() -> None:
    with (
        ScriptedBroker() as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        peer.sock.sendall(frame(ApiKey.API_VERSIONS, FUTURE, b"\0"))
        size = int.from_bytes(peer.receive(4), "big")
        _, response = decode_response(ApiVersionsResponse, 0, peer.receive(size))
        assert response.error_code == 35
        [supported] = response.api_keys
        narrowed = peer.request(ApiVersionsRequest(), supported.max_version)
        offered = {one.api_key: one.max_version for one in narrowed.api_keys}
        assert offered[ApiKey.FETCH] < FUTURE
        assert offered[76] == FUTURE
        assert 78 not in offered


# --- order and limits


def test_pipelined_requests_are_answered_in_order() -> None:
    with Broker() as upstream, Proxy(upstream.bootstrap_servers) as proxy:
        topic = proxy.new_topic()
        with Peer(proxy) as peer:
            for number in range(100):
                peer.send(produce_request(topic, b"%d" % number), 9)
                if not number % 10:
                    peer.send(produce_request(topic, b"%d" % number, acks=0), 9)
            offsets = [
                peer.receive_response(produce_request(topic), 9)
                .responses[0]
                .partition_responses[0]
                .base_offset
                for _ in range(100)
            ]
        assert offsets == sorted(offsets)
        assert len(proxy.records(topic, count=110)) == 110
        [one_way] = {one.outcome for one in proxy.requests.find("Produce") if one.request["acks"] == 0}
        assert one_way == "no response requested"


def large_fetch_response(size: int) -> FetchResponse:
    data = PartitionData(partition_index=0, high_watermark=1, aborted_transactions=[], records=bytes(size))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def test_client_that_does_not_receive_stops_the_broker_from_sending() -> None:
    response, count = large_fetch_response(4 * MIB), 40
    with (
        ScriptedBroker(lambda header, body: response) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=MIB)
        for _ in range(count):
            peer.send(request, 12)
        proxy.wait_until(lambda: len(broker.requests) > 2)
        time.sleep(0.3)
        completed = [one for one in proxy.requests.find("Fetch") if one.outcome is not None]
        assert len(completed) < 12, "the responses in the proxy and in the buffers of the kernel"
        for _ in range(count):
            found = peer.receive_response(request, 12)
            assert len(found.responses[0].partitions[0].records) == 4 * MIB


def test_broker_that_does_not_receive_stops_the_client_from_sending() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ScriptedBroker() as broker:
        stuck = listener.getsockname()[1]
        broker.respond = lambda header, body: metadata_of(stuck)
        with Proxy(broker.bootstrap_servers) as proxy:
            with Peer(proxy) as peer:
                port = port_of(peer.request(MetadataRequest(topics=[]), 12), 1)
            sent = 0
            data = encode_request(produce_request("t", bytes(MIB), acks=0), 9, 1, "flood")
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.settimeout(1)
                with suppress(TimeoutError):
                    while sent < 200 * MIB:
                        client.sendall(data)
                        sent += len(data)
            assert sent < 60 * MIB, "the proxy has not limited requests with acks=0"


def test_endpoints_at_the_end_of_a_fetch_response_are_replaced() -> None:
    response = large_fetch_response(2 * MIB)
    response.node_endpoints = [NodeEndpoint(node_id=5, host="kafka-5", port=9092, rack="r")]
    with (
        ScriptedBroker(lambda header, body: response) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        found = peer.request(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=MIB), 16)
        [endpoint] = found.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.rack) == (5, "127.0.0.1", "r")
        assert endpoint.port not in (9092, broker.port)
        assert len(found.responses[0].partitions[0].records) == 2 * MIB


# --- failures


def test_start_without_a_cluster_fails_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    proxy = Proxy(f"127.0.0.1:{port}", timeout_s=0.3)
    with pytest.raises(
        Disconnected, match=f"cannot reach a broker at 127.0.0.1:{port} within 0.3 s"
    ) as failed:
        proxy.start()
    assert "connection refused" in str(failed.value)
    assert time.monotonic() - began < 3
    with pytest.raises(RuntimeError, match="the proxy is not running"):
        proxy.bootstrap_servers  # noqa: B018


def test_start_uses_the_bootstrap_server_that_responds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Broker() as upstream, Proxy(f"127.0.0.1:{port},{upstream.bootstrap_servers}") as proxy:
        first, second = proxy.bootstrap_servers.split(",")
        with socket.create_connection(("127.0.0.1", int(first.rpartition(":")[2]))) as refused:
            refused.settimeout(5)
            assert refused.recv(1) == b"", "the first server is down"
        with Peer(proxy) as peer:
            assert f":{peer.sock.getpeername()[1]}" in second
            assert peer.request(MetadataRequest(topics=[]), 12).brokers


def test_unreachable_broker_closes_the_connection_and_is_logged_with_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        ScriptedBroker(lambda header, body: metadata_of(port)) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
    ):
        with Peer(proxy) as peer:
            local = port_of(peer.request(MetadataRequest(topics=[]), 12), 1)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", local)) as client:
                client.settimeout(5)
                assert client.recv(1) == b""
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(lines) == 1, "such failures are logged once per minute"
    assert f"the connection to the broker at 127.0.0.1:{port} failed: connection refused" in lines[0]


def test_lost_broker_closes_the_connection_after_the_earlier_responses() -> None:
    received = 0

    def respond(header: RequestHeader, body: memoryview) -> Message | None:
        nonlocal received
        received += 1
        if received == 1:
            return metadata_of(9092)
        proxy.wait_until(lambda: len(proxy.requests) == 3)
        return None

    with (
        ScriptedBroker(respond) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        for _ in range(3):
            peer.send(MetadataRequest(topics=[]), 12)
        assert peer.receive_response(MetadataRequest(), 12).brokers
        assert peer.receive(1) == b""
        proxy.wait_until(lambda: all(one.outcome is not None for one in proxy.requests))
        outcomes = [one.outcome for one in proxy.requests]
    assert outcomes == ["", "the connection was closed", "the connection was closed"]


def test_lost_broker_closes_a_connection_with_an_ignored_request() -> None:
    with (
        ScriptedBroker(lambda header, body: metadata_of(9092)) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        peer.request(MetadataRequest(topics=[]), 12)
        proxy.faults.ignore("Metadata")
        peer.send(MetadataRequest(topics=[]), 12)
        proxy.wait_until(lambda: len(proxy.requests) == 2)
        broker.disconnect()
        assert peer.receive(1) == b""


def test_idle_connection_that_the_broker_closes_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kwire.net")
    with (
        ScriptedBroker(lambda header, body: metadata_of(9092)) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        peer.request(MetadataRequest(topics=[]), 12)
        broker.disconnect()
        assert peer.receive(1) == b""
    assert f"Broker at {broker.bootstrap_servers} closed the connection of a client" in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


@pytest.mark.parametrize("defect", ["correlation id", "malformed"])
def test_response_that_cannot_be_forwarded_closes_the_connection(
    defect: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ScriptedBroker(lambda header, body: b"\0" * 3) as broker,
        Proxy(broker.bootstrap_servers) as proxy,
        Peer(proxy) as peer,
    ):
        if defect == "correlation id":
            broker.correlation_offset = 1
        peer.send(MetadataRequest(topics=[]), 12)
        assert peer.receive(1) == b""
    expected = {
        "correlation id": "it sent a response with correlation id 2, which is not expected",
        "malformed": "its response to Metadata v12 (client id 'peer', correlation id 1) cannot be forwarded",
    }
    assert expected[defect] in caplog.text
