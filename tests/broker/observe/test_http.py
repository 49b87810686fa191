"""The HTTP port: its address, the requests that it accepts, and its health checks."""

from __future__ import annotations

import gc
import random
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from kwire.broker.config import load
from kwire.broker.net.loop_events import LoopEvent
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import serve
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import format_directories
from kwire.broker.observe.health import why_not_alive, why_not_ready
from kwire.broker.observe.http import HttpPort, http_address
from kwire.cli.main import main
from kwire.testing.disk import MemoryDisk
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.registry import encode_request
from tests.broker.observe.conftest import SETTINGS, serve_observed


async def test_a_serving_broker_is_alive_and_ready() -> None:
    async with serve_observed() as node:
        assert await node.text("/healthz") == "ok\n"
        assert await node.text("/readyz") == "ok\n"
        assert "/healthz\n/readyz\n" in await node.text("/")
        assert await node.text("/elsewhere", 404)
        assert (await node.http.post("/healthz")).status_code == 405


async def test_the_port_listens_as_soon_as_the_broker_serves() -> None:
    """The port accepts connections by the time that the broker reports that it serves."""
    async with serve_observed() as node:
        # Nothing has been awaited since: the background task has run one step.
        socket.create_connection(("127.0.0.1", node.http.base_url.port or 0), 5).close()


async def test_the_port_is_closed_at_the_end() -> None:
    async with serve_observed() as node:
        port = node.http.base_url.port
        assert await node.text("/healthz")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0))


@pytest.mark.parametrize(
    ("first_bytes", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the HTTP port has no TLS. Open an http:// URL"),
        (encode_request(ApiVersionsRequest(), 0, 1, "me"), "the peer sent a Kafka request to the HTTP port"),
    ],
)
@pytest.mark.parametrize("console", [False, True])
async def test_another_protocol_is_logged_once_per_minute(
    console: bool, first_bytes: bytes, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_observed(console=console) as node:
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0) as stream:
                await stream.send_all(first_bytes)
                with suppress(trio.BrokenResourceError):  # a reset, because the port does not read the bytes
                    assert await stream.receive_some() == b""
        assert [expected in message for message in caplog.messages if "Closing" in message] == [True]
        assert await node.text("/healthz") == "ok\n"


async def test_a_fenced_or_stopping_broker_is_not_ready() -> None:
    async with serve_observed() as node:
        running = node.running
        for stage, texts in (
            (LifecycleStage.REGISTERED, "not unfenced yet"),
            (LifecycleStage.CONTROLLED_SHUTDOWN, "in controlled shutdown"),
        ):
            running.node.lifecycle.stage = stage
            assert texts in await node.text("/readyz", 503)
            assert await node.text("/healthz") == "ok\n"
        running.node.lifecycle.stage = LifecycleStage.UNFENCED
        assert await node.text("/readyz") == "ok\n"
        running.node.stopping = True
        assert "shutting down" in await node.text("/readyz", 503)
        running.node.stopping = False


async def test_a_broker_fenced_by_its_controller_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_observed() as node:
        registered = node.running.node.image.brokers[node.running.node.node_id]
        monkeypatch.setitem(
            node.running.node.image.brokers, node.running.node.node_id, registered._replace(fenced=True)
        )
        assert "is fenced" in await node.text("/readyz", 503)


async def test_health_is_served_while_the_broker_waits_for_a_controller() -> None:
    """An orchestrator asks for the health of a node that it started before the controllers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = load(
            None,
            {},
            {
                **SETTINGS,
                "process.roles": "broker",
                "node.id": "1",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            },
        )
        disk = MemoryDisk()
        list(format_directories(config, disk, random.Random(1), 0, ignore_formatted=True))
        port = HttpPort("0", read_socket_settings(config))
        stop = LoopEvent()
        texts = []

        async def check_health(running: RunningNode) -> None:
            await trio.testing.wait_all_tasks_blocked()
            async with httpx.AsyncClient(base_url=port.url, trust_env=False) as client:
                texts.append((await client.get("/healthz")).text)
                texts.append((await client.get("/readyz")).text)
            stop.set()

        async def serve_and_check_health(running: RunningNode) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.serve, running)
                nursery.start_soon(check_health, running)

        async with serve(config, disk=disk, background=[serve_and_check_health], stop=stop):
            pass
        assert texts[0] == "ok\n"
        assert "stage STARTING" in texts[1]


async def test_a_failed_broker_is_neither_alive_nor_ready() -> None:
    async with serve_observed() as node:
        node.running.failure.report("made up")
        assert await node.text("/healthz", 503) == "the broker is stopping after a failure: made up\n"
        assert await node.text("/readyz", 503) == "the broker is stopping after a failure: made up\n"


async def test_a_broker_with_a_blocked_loop_is_not_alive(autojump_clock: trio.testing.MockClock) -> None:
    class Stuck:
        def call_soon(self, callback: Any) -> None:
            pass

    running: Any = type("Running", (), {"loop": Stuck(), "failure": type("Failure", (), {"reason": ""})})
    assert await why_not_alive(running, 5) == "the event loop has not responded for 5 s"


async def test_a_controller_is_ready_once_it_knows_the_leader() -> None:
    settings = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "log.dirs": "/data",
    }
    config, disk = load(None, {}, settings), MemoryDisk()
    list(format_directories(config, disk, random.Random(1), 0, ignore_formatted=True))
    async with serve(config, disk=disk) as running:
        with trio.fail_after(5):
            while why_not_ready(running):
                await trio.sleep(0.01)
        assert running.node.quorum.leader_id == 1


async def test_a_loopback_port_refuses_other_host_names() -> None:
    """Otherwise a website could read the page through a browser of this machine (DNS rebinding)."""
    async with serve_observed() as node:
        refused = await node.http.get("/healthz", headers={"Host": "rebound.example"})
        assert refused.status_code == 421
        assert "--http HOST:PORT" in refused.text
        assert (await node.http.get("/healthz", headers={"Host": "localhost"})).status_code == 200


async def test_a_public_port_accepts_any_host_name() -> None:
    async with serve_observed(address="0.0.0.0:0") as node:
        url = f"http://127.0.0.1:{node.http.base_url.port}/healthz"
        assert (await node.http.get(url, headers={"Host": "broker-1.example"})).status_code == 200


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::]:8080", ("::", 8080)),
        ("broker-1.example:80", ("broker-1.example", 80)),
    ],
)
def test_an_http_address_is_a_port_with_an_optional_host(text: str, address: tuple[str, int]) -> None:
    assert http_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "x", ":8080", "host:", "::1:80", "80 80", "http://127.0.0.1:80", "123456"]
)
def test_an_invalid_http_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected PORT or HOST:PORT, for example --http 8080"):
        http_address(text)


def test_a_port_in_use_stops_the_start(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--data", str(tmp_path / "data"), "--http", address]) == 1
    gc.enable()
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"kwire: cannot listen on {address} (listener --http): the port is in use: stop the program "
        f"that uses it, or set another port in --http"
    )
    assert not (tmp_path / "data").exists()


def test_http_without_its_dependencies_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.broker.observe.http.find_spec", lambda name: None)
    assert main(["serve", "--http", "8080"]) == 1
    gc.enable()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "kwire: --http needs hypercorn and starlette: pip install 'kwire[console]'"
    )


async def test_a_failed_background_task_does_not_stop_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(running: RunningNode) -> None:
        raise ZeroDivisionError("made up")

    async with serve(load(None, {}, SETTINGS), disk=MemoryDisk(), background=[fail]) as running:
        await trio.testing.wait_all_tasks_blocked()
        assert await why_not_alive(running) == ""
    assert "fail failed; the node continues without it" in caplog.text


def test_without_http_its_dependencies_are_not_imported() -> None:
    code = "import sys, kwire.cli.server.serve; print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in completed.stdout.split()}
    assert not loaded & {"hypercorn", "starlette", "anyio", "h11", "asyncio", "trio"}
