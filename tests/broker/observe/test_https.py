"""The HTTP port with TLS. The clients use Python's own TLS."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trio

from kwire.broker.config import load
from kwire.broker.net.tls_transport_layer import TlsTransportLayer
from kwire.broker.observe import tls_termination
from kwire.broker.observe.http import OPEN_CONSOLE, check_tls_listener
from kwire.cli.main import main
from kwire.http import connections
from kwire.testing.tls import Certificates, ClientAuth, Tls
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.registry import encode_request
from tests.broker.observe.conftest import ObservedNode, serve_observed
from tests.broker.observe.test_console import SASL_SETTINGS, console_pids

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
    "inter.broker.listener.name": "PLAINTEXT",
}
AUTHENTICATIONS: tuple[ClientAuth, ...] = ("none", "requested", "required")
CERTIFICATES = {auth: Certificates(Tls(auth)) for auth in AUTHENTICATIONS}


def context_of(
    certificates: Certificates, name: str | None = None, *, folder: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS context of a client, with a certificate for `name`, whose file is in `folder`."""
    client = certificates.client(name, None)
    context = ssl.create_default_context(cadata=client.authority)
    if folder is not None:
        (folder / "client.pem").write_text(client.certificate + client.key)
        context.load_cert_chain(folder / "client.pem")
    return context


@asynccontextmanager
async def serve_https(
    auth: ClientAuth = "none",
    context: ssl.SSLContext | None = None,
    *,
    settings: dict[str, str] | None = None,
    address: str = "0",
    console: bool = False,
) -> AsyncIterator[ObservedNode]:
    certificates = CERTIFICATES[auth]
    async with serve_observed(
        {**LISTENERS, **certificates.listener_settings("TLS"), **(settings or {})},
        address,
        console=console,
        tls_listener="TLS",
        client_context=context_of(certificates) if context is None else context,
    ) as node:
        yield node


def port_of(node: ObservedNode) -> int:
    assert node.http.base_url.port is not None
    return node.http.base_url.port


@asynccontextmanager
async def connect(
    node: ObservedNode, context: ssl.SSLContext
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """Connect a client, and close its socket without the end of TLS."""
    async with await trio.open_tcp_stream("127.0.0.1", port_of(node)) as plain:
        stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        yield stream


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_health_and_metrics(version: ssl.TLSVersion) -> None:
    context = context_of(CERTIFICATES["none"])
    context.minimum_version = context.maximum_version = version
    async with serve_https(context=context) as node:
        assert node.http.base_url.scheme == "https"
        assert await node.text("/healthz") == "ok\n"
        assert await node.text("/readyz") == "ok\n"
        assert (await node.metrics()).value("kafka_server_kafkaserver_brokerstate") == 3
        assert (await node.http.get("/metrics/")).headers["location"] == f"{node.http.base_url}/metrics"


async def test_console() -> None:
    async with serve_https(console=True) as node:
        assert "There are no topics" in await node.text("/console/")
        assert "--accent" in await node.text("/console/static/console.css")
        redirect = await node.http.get("/console/groups/")
        assert redirect.headers["location"] == f"{node.http.base_url}/console/groups"
        assert console_pids()
    assert not console_pids()


async def test_loopback_port_refuses_other_host_names() -> None:
    async with serve_https() as node:
        refused = await node.http.get("/healthz", headers={"Host": "rebound.example"})
        assert refused.status_code == 421


async def test_required_client_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificates = CERTIFICATES["required"]
    trusted = context_of(certificates, "prometheus", folder=tmp_path)
    async with serve_https("required", trusted) as node:
        assert await node.text("/healthz") == "ok\n"
        for _ in range(2):
            # With TLS 1.3, the client's side of the handshake is complete before the server's.
            async with connect(node, context_of(certificates)) as stream:
                with pytest.raises(trio.BrokenResourceError) as failed:
                    await stream.receive_some()
            assert "CERTIFICATE_REQUIRED" in str(failed.value.__cause__)
    (line,) = [message for message in caplog.messages if "Closing HTTP connection" in message]
    assert "the TLS handshake failed: the peer did not send a certificate (ssl.client.auth=required)" in line


async def test_certificate_of_another_authority_is_rejected_if_one_is_requested(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = context_of(CERTIFICATES["none"], "prometheus", folder=tmp_path)
    foreign.load_verify_locations(cadata=CERTIFICATES["requested"].client(None, None).authority)
    async with serve_https("requested") as node:
        assert await node.text("/healthz") == "ok\n"
        async with connect(node, foreign) as stream:
            with pytest.raises(trio.BrokenResourceError) as failed:
                await stream.receive_some()
        assert "UNKNOWN_CA" in str(failed.value.__cause__)
    assert "the certificate of the peer (CN=prometheus) is not accepted: " in caplog.text


async def test_plain_http_gets_a_response_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_https() as node:
        for _ in range(2):
            async with httpx.AsyncClient(trust_env=False) as client:
                response = await client.get(f"http://127.0.0.1:{port_of(node)}/healthz")
            assert response.status_code == 400
            assert response.text == "this port has TLS: open an https:// URL\n"
    (line,) = [message for message in caplog.messages if "Closing HTTP connection" in message]
    assert "the peer sent an HTTP request without TLS" in line


async def test_kafka_request_is_named(caplog: pytest.LogCaptureFixture) -> None:
    request = encode_request(ApiVersionsRequest(), 0, 1, "me")
    async with serve_https() as node, await trio.open_tcp_stream("127.0.0.1", port_of(node)) as stream:
        await stream.send_all(request)
        with suppress(trio.BrokenResourceError):  # a reset, because the port does not read the bytes
            assert await stream.receive_some() == b""
    assert "the peer sent a Kafka request to the HTTP port" in caplog.text


async def test_kafka_request_with_tls_is_named(caplog: pytest.LogCaptureFixture) -> None:
    request = encode_request(ApiVersionsRequest(), 0, 1, "me")
    async with serve_https() as node, connect(node, context_of(CERTIFICATES["none"])) as stream:
        await stream.send_all(request)
        assert await stream.receive_some() == b""
    assert "the peer sent a Kafka request to the HTTP port" in caplog.text


async def test_other_bytes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_https() as node, await trio.open_tcp_stream("127.0.0.1", port_of(node)) as stream:
        await stream.send_all(b"SSH-2.0-OpenSSH_9.6\r\n")
        assert b"".join([part async for part in stream])[:1] in (b"", b"\x15")
    assert "the TLS handshake failed: the peer did not send TLS" in caplog.text


async def test_few_sockets_stay_open_after_failed_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_termination, "MAX_LINGERING", 2)
    monkeypatch.setattr(tls_termination, "LINGER_SECONDS", 60.0)
    open_before = -1
    async with serve_https() as node:
        clients = []
        try:
            for number in range(6):
                client = await trio.open_tcp_stream("127.0.0.1", port_of(node))
                clients.append(client)
                await client.send_all(b"SSH-2.0-OpenSSH_9.6\r\n")
                with trio.fail_after(5):
                    async for _ in client:
                        pass
                open_now = len(os.listdir("/dev/fd"))
                if number < 2:
                    open_before = open_now
            assert open_now - open_before == 4, "one descriptor of the client, none of the node"
        finally:
            for client in clients:
                await client.aclose()


async def test_stalled_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert tls_termination.HANDSHAKE_SECONDS == 10
    monkeypatch.setattr(tls_termination, "HANDSHAKE_SECONDS", 0.2)
    async with serve_https() as node, await trio.open_tcp_stream("127.0.0.1", port_of(node)) as stream:
        await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
        assert await node.text("/healthz") == "ok\n", "other clients are served"
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
    assert "the TLS handshake failed: it takes longer than" in caplog.text


async def test_handshake_one_byte_at_a_time() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context_of(CERTIFICATES["none"]).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with serve_https() as node, await trio.open_tcp_stream("127.0.0.1", port_of(node)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def trickle() -> None:
            for byte in outgoing.read():
                await stream.send_all(bytes([byte]))

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await trickle()
                incoming.write(await stream.receive_some())
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await trickle()
        incoming.write(b"".join([part async for part in stream]))
        # The last read returns nothing, because the server has ended TLS.
        assert b"".join(iter(lambda: tls.read(10_000), b"")).endswith(b"ok\n")


async def test_client_that_resets_the_connection_does_not_end_the_port() -> None:
    async with serve_https(console=True) as node:
        for request in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            async with connect(node, context_of(CERTIFICATES["none"])) as stream:
                if request:
                    await stream.send_all(request)
                linger = struct.pack("ii", 1, 0)
                stream.transport_stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert await node.text("/healthz") == "ok\n"


async def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_termination, "SEND_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(connections, "SEND_TIMEOUT_SECONDS", 0.3)
    ended: list[bool] = []
    close = TlsTransportLayer.close

    def closed(layer: TlsTransportLayer) -> None:
        ended.append(True)
        close(layer)

    monkeypatch.setattr(TlsTransportLayer, "close", closed)

    def large(running: object, out: object) -> list[object]:
        out.text = lambda: "x" * (32 << 20)  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr("kwire.broker.observe.app.metrics", large)
    async with serve_https() as node, connect(node, context_of(CERTIFICATES["none"])) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with trio.fail_after(10):
            while not ended:
                await trio.sleep(0.05)


async def test_large_page_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"{number}\n" for number in range(1_000_000))

    def large(running: object, out: object) -> list[object]:
        out.text = lambda: text  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr("kwire.broker.observe.app.metrics", large)
    async with serve_https() as node:
        assert await node.text("/metrics") == text


async def test_replaced_certificate_applies_to_new_connections() -> None:
    async with serve_https() as node:

        def serial() -> str:
            with (
                socket.create_connection(("127.0.0.1", port_of(node)), 5) as sock,
                context_of(CERTIFICATES["none"]).wrap_socket(sock, server_hostname="127.0.0.1") as tls,
            ):
                found = tls.getpeercert()
                assert found is not None
                return str(found["serialNumber"])

        before = await trio.to_thread.run_sync(serial)
        changed = CERTIFICATES["none"].listener_settings("TLS")
        command = [sys.executable, "-m", "kwire", "configs", "alter", "broker", "1"]
        command += ["--bootstrap-server", node.running.bootstrap.split(",")[0]]
        for key in ("keystore.key", "keystore.certificate.chain", "keystore.type"):
            name = f"listener.name.tls.ssl.{key}"
            command += ["--set", f"{name}={changed[name]}"]
        await trio.run_process(command, capture_stdout=True)
        with trio.fail_after(10):
            while await trio.to_thread.run_sync(serial) == before:
                await trio.sleep(0.05)


async def test_each_turn_has_at_most_one_step_of_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    class Turns(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    turns = Turns()
    steps: list[int] = []
    handshake = TlsTransportLayer.handshake

    def counted(layer: TlsTransportLayer) -> int:
        steps.append(turns.count)
        return handshake(layer)

    monkeypatch.setattr(TlsTransportLayer, "handshake", counted)
    trio.lowlevel.add_instrument(turns)
    async with serve_https() as node:

        async def connect_once() -> None:
            async with connect(node, context_of(CERTIFICATES["none"])):
                pass

        async with trio.open_nursery() as clients:
            for _ in range(20):
                clients.start_soon(connect_once)
    trio.lowlevel.remove_instrument(turns)
    assert len(steps) >= 40
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("auth", ["none", "required"])
async def test_console_without_authentication_is_logged(
    auth: ClientAuth, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = CERTIFICATES[auth]
    settings = {
        **SASL_SETTINGS,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,TLS:SASL_SSL",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.name.tls.plain.sasl.jaas.config": SASL_SETTINGS[
            "listener.name.sasl_plaintext.plain.sasl.jaas.config"
        ],
    }
    del settings["security.inter.broker.protocol"]
    async with serve_https(
        auth, context_of(certificates), settings=settings, address="0.0.0.0:0", console=True
    ):
        pass
    assert (OPEN_CONSOLE in caplog.text) == (auth == "none")


def test_certificates_of_a_controller_listener() -> None:
    certificates = CERTIFICATES["none"]
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
        "controller.listener.names": "TLS",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        **certificates.listener_settings("TLS"),
    }
    check_tls_listener(load(None, {}, {**settings, "log.dirs": "/data"}), "TLS")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--http", "0", "--http-tls", "NO"], "--http-tls NO: the node has no such listener."),
        (["--http", "0", "--http-tls", "PLAINTEXT"], "--http-tls PLAINTEXT: the listener has no TLS."),
        (["--http-tls", "TLS"], "--http-tls has no effect without an HTTP port: add --http or --console"),
    ],
)
def test_listener_without_tls_is_refused(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--data", str(tmp_path / "data"), *arguments]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_environment_variable_names_the_listener(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_HTTP_TLS", "EXTERNAL")
    assert main(["serve", "--data", str(tmp_path / "data"), "--http", "0"]) == 2
    assert "--http-tls EXTERNAL" in capsys.readouterr().err
