"""Handshakes of TLS that fail: the alert, the log line, and the end of the connection."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest
import trio

from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.lingering_sockets import LINGER_MS, MAX_DRAINED_BYTES, MAX_SOCKETS, LingeringSockets
from kwire.broker.net.loop import Loop
from kwire.broker.net.socket_server import MAX_HANDSHAKE_MS
from kwire.broker.net.tls_connections import ServedTlsLayer
from kwire.broker.net.tls_transport_layer import STEP_BYTES, WINDOW_BYTES, TlsTransportLayer
from kwire.broker.security.principal_mapping import NoMatchingRuleError
from kwire.host.clock import ManualClock
from kwire.host.host import PeerAddress
from kwire.host.peer_log_limit import LOG_INTERVAL_MS
from kwire.host.system_socket import Socket
from tests.broker.net.test_tls_transport_layer import VERSIONS, client_context, server_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kwire.broker.api.request.context import Channel
    from kwire.broker.security.listener_tls import ListenerTls
    from kwire.broker.security.principal import Principal
    from tests.broker.net.conftest import Client, MakeHarness, ServerHarness


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def harness(version: str, make_harness: MakeHarness) -> ServerHarness:
    """Start a server that requires client certificates."""
    context = server_context(version, wants_certificate=True)
    scratch = memoryview(bytearray(WINDOW_BYTES))

    def new(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
        return TlsTransportLayer(sock, context, scratch, is_server=True)

    return await make_harness(new_transport_layer=new)


async def shake_hands(
    client: Client, context: ssl.SSLContext, early: bytes = b""
) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Complete the client's side of a handshake, with unencrypted bytes `early` behind its last message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    flights = 0
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sent = outgoing.read()
            flights += bool(sent)
            # With TLS 1.2, the client waits for the server after its last message, which is its second.
            await client.send_raw(sent + (early if sent and flights == 2 else b""))
            incoming.write(await client.stream.receive_some())
        except ssl.SSLError:
            await client.send_raw(outgoing.read())
            raise
        else:
            await client.send_raw(outgoing.read() + early)
            return tls, incoming


async def alert(client: Client, context: ssl.SSLContext, early: bytes = b"") -> str | None:
    """Return the reason of the alert that the server sends before it ends the connection."""
    try:
        tls, incoming = await shake_hands(client, context, early)
        while received := await client.stream.receive_some():
            incoming.write(received)
            try:
                tls.read(1)
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLError as error:
        assert await client.stream.receive_some() == b"", "there is more than the alert"
        return error.reason
    return None


async def test_alert_is_received_in_spite_of_unread_bytes(harness: ServerHarness) -> None:
    """Without the wait for the peer, the kernel would reset the connection, and the alert may be lost."""
    client = await harness.connect()
    reason = await alert(client, client_context(), early=bytes(2 * STEP_BYTES))
    assert reason is not None
    assert "ALERT" in reason
    assert not harness.server.connections, "the connection does not count any more"
    await client.stream.aclose()


async def test_failed_handshake_is_logged_once_per_minute(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    for minute in (1, 2):
        for _ in range(3):
            client = await harness.connect()
            assert await alert(client, client_context())
            await client.stream.aclose()
        assert len(caplog.messages) == minute
        assert caplog.messages[-1].startswith("Closing connection from 127.0.0.1:")
        assert (
            "(listener PLAINTEXT): the TLS handshake failed: the peer did not send a certificate"
            in (caplog.messages[-1])
        )
        harness.clock.advance(LOG_INTERVAL_MS)


async def test_client_that_rejects_the_certificate_is_logged(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = await harness.connect()
    with pytest.raises(ssl.SSLCertVerificationError):
        await shake_hands(client, client_context(trusts=False))
    await harness.node.until(lambda: bool(harness.node.closed))
    (message,) = caplog.messages
    assert "the peer does not accept the certificate of this node (alert unknown_ca)" in message


REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
HTTP_REQUEST = b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize("is_sasl", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 100])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            REQUEST,
            "the peer sent a Kafka request without TLS, but the listener has TLS. Set security.protocol=",
        ),
        (HTTP_REQUEST, "the peer sent an HTTP request, but the listener serves Kafka's protocol"),
    ],
)
async def test_other_protocol_is_named_and_gets_no_response(
    harness: ServerHarness,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    expected: str,
    piece_bytes: int,
    is_sasl: bool,
) -> None:
    def opened(channel: Channel) -> None:
        if is_sasl:
            channel.authentication = object()  # type: ignore[assignment]

    harness.node.on_opened = opened
    for _ in range(2):
        client = await harness.connect()
        for position in range(0, len(sent), piece_bytes):
            try:
                await client.send_raw(sent[position : position + piece_bytes])
            except trio.BrokenResourceError:
                break  # the server has closed the connection
            await trio.sleep(0.001)
        assert await client.is_closed(), "a Kafka client would take an alert for the size of a response"
        await client.stream.aclose()
    (message,) = caplog.messages
    assert expected in message
    if sent is REQUEST:
        assert f"security.protocol={'SASL_SSL' if is_sasl else 'SSL'} in the client" in message


async def test_connection_without_a_byte_is_not_logged(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the health check of a load balancer."""
    client = await harness.connect()
    await client.stream.aclose()
    await harness.node.until(lambda: bool(harness.node.closed))
    assert not caplog.messages


async def test_handshake_that_stalls_is_logged(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = await harness.connect()
    await harness.node.until(lambda: bool(harness.server.connections))
    harness.clock.advance(MAX_HANDSHAKE_MS)
    assert await client.is_closed()
    assert "the TLS handshake failed: it takes longer than 10 s" in caplog.messages[-1]


# --- the end of sockets


class Lingering:
    """Sockets that linger on a loop with a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.sockets = LingeringSockets(self.loop, memoryview(bytearray(1 << 16)))

    def add(self) -> tuple[Socket, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        own = Socket(fileno=ours.detach())
        self.sockets.add(own)
        return own, theirs

    def turns(self, until: int) -> None:
        """Run turns until this number of sockets is left."""
        end = time.monotonic() + 10
        while len(self.sockets) != until:
            assert time.monotonic() < end
            self.loop.turn(0.01)


@pytest.fixture
def lingering() -> Iterator[Lingering]:
    lingering = Lingering()
    yield lingering
    lingering.sockets.close_all()
    lingering.loop.close()


def test_socket_is_closed_when_the_peer_closes(lingering: Lingering) -> None:
    own, theirs = lingering.add()
    theirs.send(b"unread")
    assert theirs.recv(1) == b"", "the peer has the end at once"
    lingering.loop.turn()
    assert len(lingering.sockets) == 1
    theirs.close()
    lingering.turns(until=0)
    assert own.fileno() == -1


def test_socket_is_closed_after_a_time(lingering: Lingering) -> None:
    own, theirs = lingering.add()
    lingering.clock.advance(LINGER_MS - 1)
    lingering.loop.turn()
    assert len(lingering.sockets) == 1
    lingering.clock.advance(1)
    lingering.turns(until=0)
    assert own.fileno() == -1
    theirs.close()


def test_peer_cannot_send_for_ever(lingering: Lingering) -> None:
    own, theirs = lingering.add()
    theirs.setblocking(False)
    sent = 0
    while len(lingering.sockets):
        try:
            sent += theirs.send(bytes(1 << 14))
        except BlockingIOError:
            pass
        lingering.loop.turn()
    assert own.fileno() == -1
    assert MAX_DRAINED_BYTES <= sent <= 4 * MAX_DRAINED_BYTES
    theirs.close()


def test_number_of_sockets_is_limited(lingering: Lingering) -> None:
    pairs = [lingering.add() for _ in range(MAX_SOCKETS + 3)]
    assert len(lingering.sockets) == MAX_SOCKETS
    assert [own.fileno() == -1 for own, _ in pairs[:5]] == [True, True, True, False, False]
    for _, theirs in pairs:
        theirs.close()
    lingering.turns(until=0)


def test_a_subject_cannot_forge_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rules:
        server = server_context()

        def principal_of(self, certificate: bytes | None) -> Principal:
            raise NoMatchingRuleError(f"No rules apply to CN=a\n\x1b[31mb{'c' * 100_000}")

    with closing(Socket(socket.AF_INET, socket.SOCK_STREAM)) as sock:
        layer = ServedTlsLayer(sock, cast("ListenerTls", Rules()), memoryview(bytearray(WINDOW_BYTES)))
        monkeypatch.setattr(ServedTlsLayer, "peer_certificate", lambda layer: None)
        with pytest.raises(HandshakeError) as caught:
            layer.peer_principal()
    reason = str(caught.value.strerror)
    assert r"CN=a\n\x1b[31mb" in reason
    assert reason.isprintable()
    assert len(reason) < 2_000
