"""The console process behind the HTTP port: the first request starts it, and it ends with the node."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trio

from kwire.broker.observe.console import CONSOLE_FAILED, OVERLOADED, ConsoleProcess
from kwire.broker.observe.console_rate_limit import ConsoleRateLimit
from kwire.broker.observe.http import OPEN_CONSOLE
from kwire.cli.main import main
from kwire.testing.tls import Certificates, ClientAuth, Tls
from tests.broker.observe.conftest import ObservedNode, serve_observed

MEBIBYTE = 1024 * 1024


def console_pids() -> set[int]:
    """Return the process ids of the consoles that this process has started."""
    listed = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=False
    )
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "kwire.console" in line}


async def test_first_request_starts_the_console_and_it_ends_with_the_node() -> None:
    async with serve_observed(console=True) as node:
        assert not console_pids()
        assert "/console/" in await node.text("/")
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert node.running.bootstrap in page
        (pid,) = console_pids()
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        assert "--accent" in await node.text("/console/static/console.css")
        assert console_pids() == {pid}
    assert not console_pids()


PASSWORD = "broker-secret"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = f'{MODULE} required username="broker" password="{PASSWORD}"'
SASL_SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_broker="{PASSWORD}";',
}
"""The settings of a broker that accepts only authenticated clients."""


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.proc
async def test_console_uses_the_broker_credentials_on_a_sasl_listener(writes: bool) -> None:
    async with serve_observed(SASL_SETTINGS, console=True, console_writes=writes) as node:
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert ("This console is read-only" in page) != writes
        (pid,) = console_pids()
        for name in ("cmdline", "environ"):
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


async def test_console_prefers_a_listener_without_authentication() -> None:
    both = "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    settings = {**SASL_SETTINGS, "listeners": both, "security.inter.broker.protocol": "PLAINTEXT"}
    async with serve_observed(settings, console=True) as node:
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert "This console is read-only" not in page
        closed, open_ = node.running.bootstrap.split(",")
        assert open_ in page
        assert closed not in page


TLS_LISTENERS = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
}
OPEN_CONTROLLER_LISTENER = {
    **TLS_LISTENERS,
    "process.roles": "broker,controller",
    "listeners": f"{TLS_LISTENERS['listeners']},CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
}
SASL_SSL_LISTENERS = {
    **TLS_LISTENERS,
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "plain.sasl.jaas.config": f'{LOGIN} user_broker="{PASSWORD}";',
}


def with_prefixes(settings: dict[str, str], auth: ClientAuth) -> dict[str, str]:
    """Return the settings of the TLS listeners, which have different authorities."""
    made: dict[str, str] = {}
    for listener in ("clients", "brokers"):
        made |= Certificates(Tls(auth)).listener_settings(listener)
        if login := settings.get("plain.sasl.jaas.config"):
            made[f"listener.name.{listener}.plain.sasl.jaas.config"] = login
    return {key: value for key, value in settings.items() if key != "plain.sasl.jaas.config"} | made


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("listeners", "auth", "is_open"),
    [
        (TLS_LISTENERS, "none", True),
        (TLS_LISTENERS, "requested", True),
        (TLS_LISTENERS, "required", False),
        (OPEN_CONTROLLER_LISTENER, "required", False),
        (SASL_SSL_LISTENERS, "none", False),
        (SASL_SSL_LISTENERS, "required", False),
    ],
)
@pytest.mark.proc
async def test_console_connects_to_the_tls_listener_of_brokers(
    listeners: dict[str, str], auth: ClientAuth, is_open: bool, writes: bool
) -> None:
    settings = with_prefixes(listeners, auth)
    async with serve_observed(settings, console=True, console_writes=writes) as node:
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert ("This console is read-only" in page) != (writes or is_open)
        (pid,) = console_pids()
        for name in ("cmdline", "environ"):
            assert b"PRIVATE KEY" not in Path(f"/proc/{pid}/{name}").read_bytes()


async def test_console_uses_the_new_certificates_of_its_listener() -> None:
    old, new = (Certificates(Tls("required")).listener_settings("brokers") for _ in range(2))
    trusted = "listener.name.brokers.ssl.truststore.certificates"
    both = {trusted: old[trusted] + new[trusted]}
    settings = {
        "listeners": "BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
    }
    async with serve_observed({**settings, **old}, console=True) as node:
        await node.text("/console/")
        (pid,) = console_pids()
        for stores in (old, new):
            node.running.node.config.update({}, {**stores, **both})
        assert "There are no topics" in await node.text("/console/")
        assert console_pids() - {pid}


@pytest.mark.parametrize(
    ("settings", "address", "times"),
    [(SASL_SETTINGS, "0.0.0.0:0", 1), (SASL_SETTINGS, "127.0.0.1:0", 0), ({}, "0.0.0.0:0", 0)],
)
async def test_an_open_console_beside_a_sasl_listener_causes_a_warning(
    settings: dict[str, str], address: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_observed(settings, console=True, address=address) as node:
        await node.text("/metrics")
    name = [record.message for record in caplog.records if OPEN_CONSOLE in record.message]
    assert len(name) == times


async def test_connection_close_ends_the_connection_after_one_page() -> None:
    async with serve_observed(console=True) as node:
        await node.text("/console/")
        host, port = node.http.base_url.host, node.http.base_url.port
        assert port is not None
        with trio.fail_after(20):
            async with await trio.open_tcp_stream(host, port) as stream:
                request = f"GET /console/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                await stream.send_all(request.encode())
                assert (b"".join([part async for part in stream])).endswith(b"</html>")


async def test_a_killed_console_is_restarted() -> None:
    async with serve_observed(console=True) as node:
        await node.text("/console/")
        (pid,) = console_pids()
        os.kill(pid, signal.SIGKILL)
        with trio.fail_after(20):
            while True:
                with suppress(httpx.TransportError):  # the connection went to the console that was killed
                    if (await node.http.get("/console/")).status_code == 200:
                        break
        assert console_pids() - {pid}


async def test_a_websocket_upgrade_is_refused() -> None:
    async with serve_observed(console=True) as node:
        request = "GET /console/topics/x/live/events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        request += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        request += "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0) as stream:
                await stream.send_all(request.encode())
                response = b""
                while b"use HTTP" not in response:
                    part = await stream.receive_some()
                    assert part, response
                    response += part
        assert response.startswith(b"HTTP/1.1 400")


def test_console_ends_when_its_broker_is_killed() -> None:
    """The console detects the broker's death on the socket that hands over connections."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        command = [sys.executable, "-m", "kwire.console", "--fd", str(theirs.fileno())]
        process = subprocess.Popen(
            [*command, "--bootstrap-server", "127.0.0.1:1"], pass_fds=[theirs.fileno()]
        )
    ours.close()
    assert process.wait(20) == 0


async def exchange(node: ObservedNode, *parts: str) -> str:
    """Send these parts with a pause after each, and return what the server sends until it closes."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0) as stream:
            for part in parts:
                await stream.send_all(part.encode())
                await trio.sleep(0.02)
            return (b"".join([got async for got in stream])).decode()


async def test_requests_are_routed_by_path_however_they_are_split() -> None:
    async with serve_observed(console=True) as node:
        for path, begins in (
            ("/console/", "200"),
            ("/console", "307"),
            ("/console?x=1", "307"),
            ("/console/nowhere", "404"),
            ("/console/static/console.css", "200"),
            ("/consoles", "404"),
            ("/healthz", "200"),
        ):
            rest = " HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for parts in ((f"GET {path}{rest}",), ("G", f"ET {path[:5]}", f"{path[5:]} HT", rest[3:])):
                response = await exchange(node, *parts)
                assert response.startswith(f"HTTP/1.1 {begins}"), (path, parts, response)
                # The next request of a connection could be for the other server, so the server closes it.
                assert "connection: close" in response.lower()
                assert ("content-security-policy" in response) == bool(re.match(r"/console\b", path))


async def test_loopback_console_refuses_other_host_names() -> None:
    async with serve_observed(console=True) as node:
        for host, status in (("localhost", 200), ("10.1.2.3", 421), ("rebound.example", 421)):
            assert (await node.http.get("/console/", headers={"Host": host})).status_code == status


MALFORMED_REQUESTS = (
    "GET PATH HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    "HTTP2-Settings: !!!!x\r\n\r\n",
    "GET PATH HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n\x01\x02\x03",
    "GET PATH HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "GET PATH HTTP/1.1\r\nHo",
    "GET PATH",
    "G",
    "",
)
"""Requests that are malformed, incomplete, or protocol upgrades."""


async def test_malformed_requests_stop_neither_port_nor_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kwire.broker.observe.connection_router.FIRST_BYTES_SECONDS", 0.5)
    monkeypatch.setattr("kwire.http.connections.REQUEST_TIMEOUT_SECONDS", 0.5)
    async with serve_observed(console=True) as node:
        await node.text("/console/")
        pids = console_pids()
        async with trio.open_nursery() as nursery:
            for request in MALFORMED_REQUESTS:
                for path in ("/healthz", "/console/"):
                    nursery.start_soon(exchange, node, request.replace("PATH", path))
        assert await node.text("/healthz") == "ok\n"
        await node.text("/console/")
        assert console_pids() == pids


async def test_unread_request_bodies_do_not_block_later_requests() -> None:
    async with serve_observed(console=True) as node:
        for path in (*["/console/cluster"] * 40, "/healthz"):
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MEBIBYTE}\r\n\r\n"
            with suppress(trio.BrokenResourceError):  # the server does not read the complete body
                assert (await exchange(node, head, "x" * MEBIBYTE)).startswith("HTTP/1.1 200")
        await node.text("/console/cluster")


async def test_a_console_that_cannot_start_returns_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_observed(console=True) as node:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with trio.fail_after(20):
            responses: list[str] = []
            while len(responses) < 5:
                with suppress(httpx.TransportError):
                    responses.append(await node.text("/console/", 503))
        assert set(responses) == {f"{CONSOLE_FAILED}\n"}


async def test_a_stopped_console_refuses_connections_as_overloaded() -> None:
    async with serve_observed(console=True) as node:
        console = ConsoleProcess(node.running, may_write=False)
        with socket.socket() as sock:
            assert not console.hand_over(sock.fileno())
            (pid,) = console_pids()
            os.kill(pid, signal.SIGSTOP)
            while not (refusal := console.hand_over(sock.fileno())):
                pass
        assert refusal == OVERLOADED
        console.close()
        assert not console_pids()


async def test_a_rate_limited_page_returns_503_try_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(turns: ConsoleRateLimit) -> bool:
        return False

    monkeypatch.setattr(ConsoleRateLimit, "acquire", never)
    async with serve_observed(console=True) as node:
        assert "try again later" in await node.text("/console/", 503)
        assert not console_pids()
        assert "--accent" in await node.text("/console/static/console.css")


async def test_a_public_console_is_read_only_and_checks_the_host_name() -> None:
    async with serve_observed(address="0.0.0.0:0", console=True) as node:
        assert "This console is read-only" in await node.text("/console/")
        for host, status in (("10.1.2.3:8080", 200), ("127.0.0.1", 200), ("rebound.example", 421)):
            response = await node.http.get("/console/", headers={"Host": host})
            assert response.status_code == status
        headers = {"Host": "rebound.example"}
        assert (await node.http.get("/healthz", headers=headers)).status_code == 200
    async with serve_observed(address="0.0.0.0:0", console=True, console_writes=True) as node:
        assert "changes nothing" not in await node.text("/console/")


async def test_a_form_that_is_too_large_returns_413() -> None:
    async with serve_observed(console=True) as node:
        for size, status in ((MEBIBYTE + 1, 413), (MEBIBYTE, 403)):
            response = await node.http.post("/console/topics/x/messages", content=bytes(size))
            assert response.status_code == status


async def test_without_the_option_there_is_no_console() -> None:
    async with serve_observed() as node:
        assert await node.text("/console/", 404)


def test_console_without_its_dependencies_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kwire.broker.observe.http.find_spec", lambda name: None if name != "hypercorn" else name
    )
    assert main(["serve", "--console"]) == 1
    gc.enable()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "kwire: --console needs starlette and jinja2: pip install 'kwire[console]'"
    )


async def test_other_http_methods_reach_the_console() -> None:
    async with serve_observed(console=True) as node:
        response = await node.http.head("/console/")
        assert (response.status_code, response.text) == (200, "")
        for method in ("PUT", "DELETE", "OPTIONS"):
            assert (await node.http.request(method, "/console/")).status_code == 405


def test_a_controller_alone_has_no_console(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "log.dirs": str(tmp_path),
    }
    overrides = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    assert main(["serve", "--console", *overrides]) == 1
    gc.enable()
    assert "--console needs a broker" in capsys.readouterr().err
