"""The console behind the HTTP port: a process that the first who asks starts, and that ends with the node."""

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
from tests.broker.observe.conftest import Observed, observed

MEBIBYTE = 1024 * 1024


def consoles() -> set[int]:
    """The consoles that this process has started, by their process ids."""
    listed = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=False
    )
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "kwire.console" in line}


async def test_the_first_who_asks_starts_it_and_it_ends_with_its_node() -> None:
    async with observed(console=True) as node:
        assert not consoles()
        assert "/console/" in await node.text("/")
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert node.running.bootstrap in page
        (pid,) = consoles()
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        assert "--accent" in await node.text("/console/static/console.css")
        assert consoles() == {pid}
    assert not consoles()


PASSWORD = "broker-secret"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = f'{MODULE} required username="broker" password="{PASSWORD}"'
CLOSED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_broker="{PASSWORD}";',
}
"""Of a broker that takes nobody who does not say who he is."""


@pytest.mark.parametrize("writes", [False, True])
async def test_it_comes_as_the_broker_where_all_have_to_say_who_they_are(writes: bool) -> None:
    async with observed(CLOSED, console=True, console_writes=writes) as node:
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert ("This console is read-only" in page) != writes
        (pid,) = consoles()
        for told in ("cmdline", "environ"):
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/{told}").read_bytes()


async def test_it_asks_where_everyone_is_taken_if_there_is_such_a_listener() -> None:
    both = "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    settings = {**CLOSED, "listeners": both, "security.inter.broker.protocol": "PLAINTEXT"}
    async with observed(settings, console=True) as node:
        page = await node.text("/console/")
        assert "There are no topics" in page
        assert "This console is read-only" not in page
        closed, open_ = node.running.bootstrap.split(",")
        assert open_ in page
        assert closed not in page


@pytest.mark.parametrize(
    ("settings", "address", "times"),
    [(CLOSED, "0.0.0.0:0", 1), (CLOSED, "127.0.0.1:0", 0), ({}, "0.0.0.0:0", 0)],
)
async def test_a_console_for_everybody_is_told_of_where_listeners_ask(
    settings: dict[str, str], address: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with observed(settings, console=True, address=address) as node:
        await node.text("/metrics")
    told = [record.message for record in caplog.records if OPEN_CONSOLE in record.message]
    assert len(told) == times


async def test_a_connection_that_is_for_one_page_ends_with_it() -> None:
    async with observed(console=True) as node:
        await node.text("/console/")
        host, port = node.http.base_url.host, node.http.base_url.port
        assert port is not None
        with trio.fail_after(20):
            async with await trio.open_tcp_stream(host, port) as stream:
                asked = f"GET /console/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                await stream.send_all(asked.encode())
                assert (b"".join([part async for part in stream])).endswith(b"</html>")


async def test_one_that_has_died_is_started_again() -> None:
    async with observed(console=True) as node:
        await node.text("/console/")
        (pid,) = consoles()
        os.kill(pid, signal.SIGKILL)
        with trio.fail_after(20):
            while True:
                with suppress(httpx.TransportError):  # it was handed over to the one that was about to die
                    if (await node.http.get("/console/")).status_code == 200:
                        break
        assert consoles() - {pid}


async def test_a_web_socket_is_refused() -> None:
    async with observed(console=True) as node:
        asked = "GET /console/topics/x/live/events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        asked += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        asked += "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0) as stream:
                await stream.send_all(asked.encode())
                answer = b""
                while b"use HTTP" not in answer:
                    part = await stream.receive_some()
                    assert part, answer
                    answer += part
        assert answer.startswith(b"HTTP/1.1 400")


def test_it_ends_where_its_broker_is_killed() -> None:
    """Nobody is left to end it then: it hears of that by the socket from which connections come."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "kwire.console", "--fd", str(theirs.fileno())]
        process = subprocess.Popen(
            [*command, "--bootstrap-server", "127.0.0.1:1"], pass_fds=[theirs.fileno()]
        )
    ours.close()
    assert process.wait(20) == 0


async def said(node: Observed, *parts: str) -> str:
    """What comes back on a connection where these are sent, a moment between any two, until it is closed."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0) as stream:
            for part in parts:
                await stream.send_all(part.encode())
                await trio.sleep(0.02)
            return (b"".join([got async for got in stream])).decode()


async def test_who_answers_is_told_by_the_path_however_it_comes() -> None:
    async with observed(console=True) as node:
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
                answer = await said(node, *parts)
                assert answer.startswith(f"HTTP/1.1 {begins}"), (path, parts, answer)
                # The next request of a connection may be for the other, so there is none.
                assert "connection: close" in answer.lower()
                assert ("content-security-policy" in answer) == bool(re.match(r"/console\b", path))


async def test_to_this_machine_it_answers_by_a_local_name_alone() -> None:
    async with observed(console=True) as node:
        for host, status in (("localhost", 200), ("10.1.2.3", 421), ("rebound.example", 421)):
            assert (await node.http.get("/console/", headers={"Host": host})).status_code == status


ODD = (
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
"""Requests that end a server which takes care of none of its connections, or that never come."""


async def test_nothing_that_a_client_sends_ends_the_port_or_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kwire.broker.observe.connection_router.FIRST_BYTES_SECONDS", 0.5)
    monkeypatch.setattr("kwire.http.connections.REQUEST_TIMEOUT_SECONDS", 0.5)
    async with observed(console=True) as node:
        await node.text("/console/")
        at = consoles()
        async with trio.open_nursery() as nursery:
            for odd in ODD:
                for path in ("/healthz", "/console/"):
                    nursery.start_soon(said, node, odd.replace("PATH", path))
        assert await node.text("/healthz") == "ok\n"
        await node.text("/console/")
        assert consoles() == at


async def test_a_body_that_nobody_reads_holds_nothing_up() -> None:
    async with observed(console=True) as node:
        for path in (*["/console/cluster"] * 40, "/healthz"):
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MEBIBYTE}\r\n\r\n"
            with suppress(trio.BrokenResourceError):  # it is not read to its end
                assert (await said(node, head, "x" * MEBIBYTE)).startswith("HTTP/1.1 200")
        await node.text("/console/cluster")


async def test_one_that_cannot_be_started_is_told_of_and_not_tried_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with observed(console=True) as node:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with trio.fail_after(20):
            answers: list[str] = []
            while len(answers) < 5:
                with suppress(httpx.TransportError):
                    answers.append(await node.text("/console/", 503))
        assert set(answers) == {f"{CONSOLE_FAILED}\n"}


async def test_one_that_takes_nothing_is_not_handed_more_than_is_kept_for_it() -> None:
    async with observed(console=True) as node:
        console = ConsoleProcess(node.running, may_write=False)
        with socket.socket() as sock:
            assert not console.hand_over(sock.fileno())
            (pid,) = consoles()
            os.kill(pid, signal.SIGSTOP)
            while not (refusal := console.hand_over(sock.fileno())):
                pass
        assert refusal == OVERLOADED
        console.close()
        assert not consoles()


async def test_who_would_wait_long_for_his_turn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(turns: ConsoleRateLimit) -> bool:
        return False

    monkeypatch.setattr(ConsoleRateLimit, "acquire", never)
    async with observed(console=True) as node:
        assert "try again later" in await node.text("/console/", 503)
        assert not consoles()
        assert "--accent" in await node.text("/console/static/console.css")


async def test_to_others_than_this_machine_it_only_shows_and_asks_for_a_name_of_the_host() -> None:
    async with observed(address="0.0.0.0:0", console=True) as node:
        assert "This console is read-only" in await node.text("/console/")
        for host, status in (("10.1.2.3:8080", 200), ("127.0.0.1", 200), ("rebound.example", 421)):
            answer = await node.http.get("/console/", headers={"Host": host})
            assert answer.status_code == status
        headers = {"Host": "rebound.example"}
        assert (await node.http.get("/healthz", headers=headers)).status_code == 200
    async with observed(address="0.0.0.0:0", console=True, console_writes=True) as node:
        assert "changes nothing" not in await node.text("/console/")


async def test_a_form_that_is_too_large_is_not_read_to_its_end() -> None:
    async with observed(console=True) as node:
        for size, status in ((MEBIBYTE + 1, 413), (MEBIBYTE, 403)):
            answer = await node.http.post("/console/topics/x/messages", content=bytes(size))
            assert answer.status_code == status


async def test_without_the_option_there_is_none() -> None:
    async with observed() as node:
        assert await node.text("/console/", 404)


def test_where_the_extra_is_not_installed_one_line_says_so(
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


async def test_other_methods_are_passed_on_too() -> None:
    async with observed(console=True) as node:
        answer = await node.http.head("/console/")
        assert (answer.status_code, answer.text) == (200, "")
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
