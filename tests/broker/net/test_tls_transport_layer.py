"""TLS on a nonblocking socket, against Python's own blocking TLS and against itself."""

from __future__ import annotations

import errno
import random
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from kwire.broker.net.tls_transport_layer import MAX_BYTES_WITHOUT_DATA, WINDOW_BYTES, TlsTransportLayer
from kwire.certificates.authority import Authority
from kwire.host.platform.events import READABLE
from kwire.host.platform.sockets import MSG_MORE
from kwire.host.system_socket import Socket
from kwire.host.system_time import libc_time_ns
from kwire.wire.primitives import Buffer
from tests.client.tls_proxy import AUTHORITY, BROKER

TIMEOUT_SECONDS = 10.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SMALL_BUFFER_BYTES = 4096


def server_context(version: str = "1.3", *, wants_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(BROKER)
    context.maximum_version = VERSIONS[version]
    if wants_certificate:
        context.load_verify_locations(AUTHORITY)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, trusts: bool = True, own: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusts:
        context.load_verify_locations(AUTHORITY)
    if own:
        context.load_cert_chain(BROKER)
    return context


def layer(
    sock: socket.socket, context: ssl.SSLContext, *, is_server: bool = True, hostname: str | None = None
) -> TlsTransportLayer:
    """Take over the descriptor of a socket, as the loop does with those that it has accepted."""
    sock.setblocking(False)
    own = Socket(fileno=sock.detach())
    one = TlsTransportLayer(
        own, context, memoryview(bytearray(WINDOW_BYTES)), is_server=is_server, server_hostname=hostname
    )
    assert not is_server or one.handshake() == READABLE, "the first step of a server only asks for an event"
    return one


def sockets() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    theirs.settimeout(TIMEOUT_SECONDS)
    return ours, theirs


def until_done(work: Callable[..., int | None], *arguments: object) -> int:
    """Call `work` again whenever it has not finished, for up to TIMEOUT_SECONDS."""
    stop = threading.Event()
    timer = threading.Timer(TIMEOUT_SECONDS, stop.set)
    timer.start()
    try:
        while not stop.wait(0.0005):
            try:
                result = work(*arguments)
            except BlockingIOError:
                continue
            if result is not None:
                return result
        raise TimeoutError
    finally:
        timer.cancel()


def shake_hands(one: TlsTransportLayer) -> None:
    until_done(lambda: 0 if one.handshake() == 0 else None)


def shake_both_hands(*sides: TlsTransportLayer) -> None:
    complete = [False, False]
    while not all(complete):
        complete = [done or side.handshake() == 0 for done, side in zip(complete, sides, strict=True)]


def until_end(stream: ssl.SSLSocket) -> None:
    assert stream.recv(1) == b""


@contextmanager
def python_client(
    sock: socket.socket, context: ssl.SSLContext, talk: Callable[[ssl.SSLSocket], None]
) -> Iterator[list[BaseException]]:
    """Run a client in a thread, with Python's own TLS, and yield what it raised."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as stream:
                talk(stream)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()


def receive_exactly(one: TlsTransportLayer, count: int, rng: random.Random) -> bytes:
    received = bytearray()
    while len(received) < count:
        buffer = bytearray(rng.choice([1, 7, 16384, 70_000, 300_000]))
        got = until_done(one.receive_into, buffer)
        assert got, "the stream ended"
        received += buffer[:got]
    return bytes(received)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_arrive_in_both_directions(version: str) -> None:
    rng = random.Random(1)
    data = rng.randbytes(700_000)
    ours, theirs = sockets()

    def talk(stream: ssl.SSLSocket) -> None:
        stream.sendall(data)
        got = bytearray()
        while len(got) < len(data):
            got += stream.recv(1 << 16)
        assert got == data
        assert stream.version() == f"TLSv{version}"
        stream.unwrap()

    with python_client(theirs, client_context(), talk) as failures:
        one = layer(ours, server_context(version))
        shake_hands(one)
        assert one.peer_certificate() is None
        assert receive_exactly(one, len(data), rng) == data
        send_in_pieces(one, data, rng)
        assert until_done(one.receive_into, bytearray(10)) == 0
        one.close()
    assert not failures


def send_in_pieces(one: TlsTransportLayer, data: bytes, rng: random.Random) -> None:
    """Send as `SendQueue` does: buffers, several buffers with MSG_MORE, and regions of a file."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        at = 0
        while at < len(data):
            count = rng.choice([1, 100, 20_000, 200_000])
            kind = rng.choice(["send", "sendmsg", "more", "region"])
            piece = data[at : at + count]
            if kind == "send":
                at += until_done(one.send, piece)
            elif kind == "region":
                at += until_done(one.send_region, file.fileno(), at, len(piece))
            else:
                middle = len(piece) // 2
                more = MSG_MORE if kind == "more" and at + count < len(data) else 0
                buffers: list[Buffer] = [piece[:middle], memoryview(piece)[middle:]]
                at += until_done(one.sendmsg, buffers, (), more)


def test_handshake_arrives_byte_by_byte() -> None:
    """OpenSSL's client in memory sends one byte at a time."""
    ours, theirs = sockets()
    theirs.setblocking(False)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    one = layer(ours, server_context())
    is_ready = False
    while not is_ready:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            is_ready = True
        for byte in outgoing.read():
            theirs.send(bytes([byte]))
            one.handshake()
        try:
            incoming.write(theirs.recv(1 << 16))
        except BlockingIOError:
            pass
    assert one.handshake() == 0
    assert not one.has_more
    theirs.close()
    one.close()


def hello_with_requests(
    one: TlsTransportLayer, theirs: socket.socket, records: list[bytes], behind: bytes = b""
) -> None:
    """Complete the handshake with the client's last flight, `records` and `behind` in one segment."""
    theirs.setblocking(False)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    theirs.send(outgoing.read())
    assert one.handshake() == READABLE
    incoming.write(theirs.recv(1 << 16))
    client.do_handshake()
    for record in records:
        client.write(record)
    theirs.send(outgoing.read() + behind)
    assert one.handshake() == 0
    theirs.recv(1 << 16)  # session tickets


def test_requests_behind_the_handshake_cause_no_event() -> None:
    ours, theirs = sockets()
    one = layer(ours, server_context())
    hello_with_requests(one, theirs, [b"first", b"second" * 200])
    assert one.has_more
    buffer = bytearray(9)
    assert one.receive_into(buffer) == 9
    assert buffer == b"firstseco"
    assert one.has_more
    rest = bytearray(1 << 16)
    assert one.receive_into(rest) == len(b"first" + b"second" * 200) - 9
    assert not one.has_more
    with pytest.raises(BlockingIOError):
        one.receive_into(rest)
    theirs.close()
    one.close()


def test_part_of_a_record_is_not_more() -> None:
    """Otherwise, the loop would never wait."""
    ours, theirs = sockets()
    one = layer(ours, server_context())
    hello_with_requests(one, theirs, [b"first"])
    assert one.receive_into(bytearray(100)) == 5
    theirs.send(
        b"\x17\x03\x03\x01\x00" + bytes(100)
    )  # the header of a record of 256 bytes, and its first 100
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            one.receive_into(bytearray(100))
        assert not one.has_more
    theirs.close()
    one.close()


def test_part_of_a_record_behind_the_handshake_is_not_more() -> None:
    """Otherwise, such a client would keep the loop busy."""
    ours, theirs = sockets()
    one = layer(ours, server_context())
    hello_with_requests(one, theirs, [], behind=b"\x17\x03\x03\x01\x00" + bytes(100))
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            one.receive_into(bytearray(100))
        assert not one.has_more
    theirs.close()
    one.close()


def test_client_that_closes_the_socket_ends_the_stream() -> None:
    ours, theirs = sockets()
    one = layer(ours, server_context())
    hello_with_requests(one, theirs, [b"last words"])
    theirs.close()
    buffer = bytearray(100)
    assert one.receive_into(buffer) == 10
    assert one.receive_into(buffer) == 0
    one.close()


def test_end_of_tls_behind_data_needs_no_event() -> None:
    """A client may end TLS without closing its socket."""
    ours, theirs = sockets()
    one = layer(ours, server_context())
    other = layer(theirs, client_context(), is_server=False, hostname="127.0.0.1")
    shake_both_hands(one, other)
    assert other.send(b"last words") == 10
    other.close()
    buffer = bytearray(100)
    assert one.receive_into(buffer) == 10
    assert one.has_more
    assert one.receive_into(buffer) == 0
    one.close()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the peer sent an HTTP request without TLS"),
        (struct.pack(">ihhih", 10, 18, 0, 1, -1), "the peer sent a Kafka request without TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the peer did not send TLS"),
        (b"", "the peer closed the connection during the handshake"),
    ],
)
def test_bytes_that_are_not_tls_are_named(sent: bytes, reason: str) -> None:
    ours, theirs = sockets()
    one = layer(ours, server_context())
    if sent:
        theirs.send(sent)
    else:
        theirs.close()
    with pytest.raises(OSError, match=reason):
        one.handshake()
    one.close()
    theirs.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_client_without_a_certificate_gets_an_alert(version: str) -> None:
    """Without the alert, the client would take this for a lost connection, and retry for ever."""
    ours, theirs = sockets()
    seen: list[str | None] = []

    def talk(stream: ssl.SSLSocket) -> None:
        try:
            stream.recv(1)
        except ssl.SSLError as error:
            seen.append(error.reason)
            raise

    with python_client(theirs, client_context(), talk) as failures:
        one = layer(ours, server_context(version, wants_certificate=True))
        with pytest.raises(OSError, match="the peer did not send a certificate"):
            shake_hands(one)
        one.close()
    (failure,) = failures
    assert isinstance(failure, ssl.SSLError)
    assert "ALERT" in str(failure.reason)


def test_certificate_of_the_client_is_verified() -> None:
    ours, theirs = sockets()
    with python_client(theirs, client_context(own=True), until_end) as failures:
        one = layer(ours, server_context(wants_certificate=True))
        shake_hands(one)
        certificate = one.peer_certificate()
        one.close()
    assert certificate == ssl.PEM_cert_to_DER_cert(
        "-----BEGIN CERTIFICATE-----" + BROKER.read_text().partition("-----BEGIN CERTIFICATE-----")[2]
    )
    assert not failures


@pytest.mark.parametrize(
    ("context", "hostname", "reason"),
    [
        (client_context(trusts=False), "127.0.0.1", "certificate of the peer is not accepted: .*issuer"),
        (client_context(), "127.0.0.2", "certificate of the peer is not accepted: .*IP address mismatch"),
        (client_context(), "127.0.0.1", None),
    ],
)
def test_both_ends(context: ssl.SSLContext, hostname: str, reason: str | None) -> None:
    """The same class serves connections that this node opens to other nodes."""
    ours, theirs = sockets()
    server, client = layer(ours, server_context()), layer(theirs, context, is_server=False, hostname=hostname)
    assert client.handshake() == READABLE
    assert server.handshake() == READABLE
    if reason is not None:
        with pytest.raises(OSError, match=reason):
            client.handshake()
        with pytest.raises(OSError, match="alert"):
            server.handshake()
    else:
        assert (client.handshake(), server.handshake()) == (0, 0)
        client.send(b"ping")
        buffer = bytearray(10)
        assert until_done(server.receive_into, buffer) == 4
    client.close()
    server.close()


def test_messages_of_the_handshake_may_be_larger_than_a_record(tmp_path: Path) -> None:
    """Both ends send a chain of more than 16 KiB, as a broker of Kafka does with hundreds of authorities."""
    chain = tmp_path / "chain.pem"
    authority = Authority.create("one of many", libc_time_ns() // 1_000_000).certificate_pem
    chain.write_text(BROKER.read_text() + authority * 60)
    assert len(authority) * 60 > 24 << 10
    contexts = server_context(wants_certificate=True), client_context()
    for context in contexts:
        context.load_cert_chain(chain)
    ours, theirs = sockets()
    server = layer(ours, contexts[0])
    client = layer(theirs, contexts[1], is_server=False, hostname="127.0.0.1")
    shake_both_hands(server, client)
    assert server.peer_certificate() is not None
    client.close()
    server.close()


def test_end_of_tls_is_sent_when_the_connection_closes() -> None:
    ours, theirs = sockets()

    def talk(stream: ssl.SSLSocket) -> None:
        assert stream.recv(10) == b"bye"
        assert stream.recv(10) == b""  # an SSLEOFError, if the end of TLS were missing

    context = client_context()
    with python_client(theirs, context, talk) as failures:
        one = layer(ours, server_context())
        shake_hands(one)
        until_done(one.send, b"bye")
        one.close()
    assert not failures


# --- messages of TLS without data: KeyUpdate


def openssl_client(
    version: str, context: ssl.SSLContext
) -> tuple[TlsTransportLayer, subprocess.Popen[bytes]]:
    """Return a server, and the connected client of the command `openssl`.

    A line "K" of its input becomes a KeyUpdate with a request for one, and "R" a renegotiation.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", version]
    client = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ours, _ = listener.accept()
    listener.close()
    one = layer(ours, context)
    shake_hands(one)
    return one, client


def key_updates(count: int) -> tuple[TlsTransportLayer, subprocess.Popen[bytes]]:
    """Return a server, and a client that has sent KeyUpdate messages that want an answer."""
    one, client = openssl_client("-tls1_3", server_context())
    assert client.stdin is not None
    for _ in range(count):
        client.stdin.write(b"K\n")
        client.stdin.flush()
        time.sleep(0.02)
    client.stdin.write(b"after\n")
    client.stdin.flush()
    return one, client


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
def test_key_updates_are_answered() -> None:
    one, client = key_updates(3)
    buffer = bytearray(100)
    assert until_done(one.receive_into, buffer) == len(b"after\n")
    assert not one.has_more
    assert not one._outgoing.pending
    until_done(one.send, b"response")
    assert client.stdin is not None
    client.stdin.close()
    assert until_done(one.receive_into, buffer) == 0
    one.close()
    assert client.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
def test_renegotiation_is_refused() -> None:
    """Kafka closes the connection. The listener's context has the same option (`tls_context`)."""
    context = server_context("1.2")
    context.options |= ssl.OP_NO_RENEGOTIATION
    one, client = openssl_client("-tls1_2", context)
    assert client.stdin is not None
    client.stdin.write(b"R\n")
    client.stdin.flush()
    with pytest.raises(OSError, match="the peer requests a renegotiation"):
        until_done(one.receive_into, bytearray(100))
    one.close()
    client.stdin.close()
    assert client.wait(TIMEOUT_SECONDS) != 0


def test_peer_that_sends_no_data_is_closed() -> None:
    """Bytes of one record that never ends take the place of thousands of KeyUpdate messages."""
    ours, theirs = sockets()
    one = layer(ours, server_context())
    hello_with_requests(one, theirs, [b"first"])
    assert one.receive_into(bytearray(100)) == 5
    for _ in range(MAX_BYTES_WITHOUT_DATA):
        one._pass_on(memoryview(b"x"))
    with pytest.raises(OSError, match="messages of TLS without data"):
        one._pass_on(memoryview(b"x"))
    theirs.close()
    one.close()


def test_answers_that_the_socket_did_not_take_are_sent_before_data() -> None:
    class FullSocket:
        def send(self, data: Buffer) -> int:
            raise BlockingIOError

    ours, theirs = sockets()
    one = layer(ours, server_context())
    other = layer(theirs, client_context(), is_server=False, hostname="127.0.0.1")
    shake_both_hands(one, other)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(one, "_sock", FullSocket())
        one._tls.write(b"answer, ")  # in place of an answer that OpenSSL writes, for example to a KeyUpdate
        with pytest.raises(BlockingIOError):
            one._flush()
    assert one.send(b"data") == 4
    buffer = bytearray(100)
    assert buffer[: other.receive_into(buffer)] == b"answer, data"
    one.close()
    other.close()


def test_memory_of_sent_bytes_is_freed() -> None:
    ours, theirs = sockets()

    def talk(stream: ssl.SSLSocket) -> None:
        left = WINDOW_BYTES
        while left:
            left -= len(stream.recv(left))
        until_end(stream)

    with python_client(theirs, client_context(), talk) as failures:
        one = layer(ours, server_context())
        shake_hands(one)
        until_done(one.send, bytes(WINDOW_BYTES))
        assert one._unsent.obj == b""
        one.close()
    assert not failures


def test_name_that_no_certificate_can_have_is_an_error_of_the_connection() -> None:
    ours, theirs = sockets()
    theirs.close()
    own = Socket(fileno=ours.detach())
    with pytest.raises(OSError, match="cannot be the name in a certificate"):
        TlsTransportLayer(
            own, client_context(), memoryview(bytearray(1)), is_server=False, server_hostname=".example"
        )
    own.close()


class Failing:
    """An object of TLS whose every method raises the same exception."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def fail(*arguments: object) -> object:
            raise self._error

        return fail


CALLS: list[Callable[[TlsTransportLayer], int]] = [
    lambda one: one.handshake(),
    lambda one: one.receive_into(bytearray(10)),
    lambda one: one.send(b"x"),
    lambda one: one.sendmsg([b"x"], (), 0),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [MemoryError(), ValueError("invalid")])
def test_every_exception_of_tls_is_an_error_of_the_connection(
    error: Exception, call: Callable[[TlsTransportLayer], int]
) -> None:
    """The event loop closes a connection that raises an OSError, and only that connection."""
    ours, theirs = sockets()
    one = layer(ours, server_context())
    one._tls = cast("ssl.SSLObject", Failing(error))
    theirs.send(b"\x16\x03\x01")
    with pytest.raises(OSError, match="TLS failed") as raised:
        call(one)
    assert raised.value.errno == (errno.ENOMEM if isinstance(error, MemoryError) else errno.EPROTO)
    one.close()
    with suppress(ConnectionResetError):
        assert theirs.recv(1) == b""
    theirs.close()
