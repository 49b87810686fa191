"""Connections of peers that use TLS or HTTP on a listener."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from kwire.broker.net.unexpected_protocols import UnexpectedProtocol, unexpected_protocol
from kwire.host.peer_log_limit import LOG_INTERVAL_MS
from tests.broker.net.test_listeners import HOST, connect, start_broker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.net.conftest import ServerHarness

TLS, HTTP = UnexpectedProtocol.TLS, UnexpectedProtocol.HTTP


def client_hello() -> bytes:
    """Return the first bytes that Python's TLS client sends."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


FIRST_BYTES = {
    "TLS": client_hello(),
    "GET": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.0\r\n\r\n",
    "POST": b"POST /topics/orders HTTP/1.1\r\n\r\n",
    "PUT": b"PUT / HTTP/1.1\r\n\r\n",
    "DELETE": b"DELETE / HTTP/1.1\r\n\r\n",
    "OPTIONS": b"OPTIONS * HTTP/1.1\r\n\r\n",
    "CONNECT": b"CONNECT localhost:9092 HTTP/1.1\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("name", FIRST_BYTES)
def test_first_bytes_show_the_protocol(name: str) -> None:
    found = unexpected_protocol(int.from_bytes(FIRST_BYTES[name][:4], "big", signed=True))
    assert found is (TLS if name == "TLS" else HTTP)


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 104_857_601, 0x53534820])
def test_other_invalid_sizes_show_no_protocol(size: int) -> None:
    assert unexpected_protocol(size) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TLS", "the listener has no TLS. Set security.protocol=PLAINTEXT in the client"),
        ("GET", "the peer sent an HTTP request, but the listener serves Kafka's protocol"),
    ],
)
async def test_unexpected_protocol_is_logged_once_per_minute(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture, name: str, expected: str
) -> None:
    for minute in (1, 2):
        for _ in range(3):
            client = await harness.connect()
            await client.send_raw(FIRST_BYTES[name])
            assert await client.is_closed()
        assert len(caplog.messages) == minute
        assert "Closing connection from 127.0.0.1:" in caplog.messages[-1]
        assert expected in caplog.messages[-1]
        harness.clock.advance(LOG_INTERVAL_MS)


async def test_unexpected_protocol_between_requests_is_an_invalid_frame_size(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes belong to a client that has lost its position in the stream."""
    client = await harness.connect()
    await client.send(b"pwaiting")
    await client.send_raw(FIRST_BYTES["GET"])
    await harness.node.until(lambda: "waiting" in harness.node.delayed)
    harness.node.complete("waiting")
    assert await client.receive() == b"waiting"
    assert await client.is_closed()
    assert "frame size 1195725856 is above the maximum" in caplog.text


SASL = {
    "listeners": f"PLAINTEXT://{HOST}:0,SASL_PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0",
    "listener.security.protocol.map": ",".join(
        ("PLAINTEXT:PLAINTEXT", "SASL_PLAINTEXT:SASL_PLAINTEXT", "CONTROLLER:PLAINTEXT")
    ),
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    ),
}


@pytest.mark.parametrize("name", ["TLS", "GET"])
async def test_every_listener_logs_an_unexpected_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A SASL listener also delays the end of the connection, as for every failed authentication."""
    async with start_broker(tmp_path, **SASL) as broker:
        for listener in broker.server.listeners:
            caplog.clear()
            for _ in range(2):
                client = await connect(listener.port)
                async with client.stream:
                    await client.send_raw(FIRST_BYTES[name])
                    assert await client.is_closed()
            (message,) = caplog.messages
            assert f"(listener {listener.name})" in message
            if name == "TLS":
                expected = "SASL_PLAINTEXT" if listener.name == "SASL_PLAINTEXT" else "PLAINTEXT"
                assert f"Set security.protocol={expected} in" in message
