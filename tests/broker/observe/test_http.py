"""The HTTP port: where it listens, whom it answers, and what it says of health."""

from __future__ import annotations

import gc
import random
import socket
import subprocess
import sys
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
from tests.broker.observe.conftest import SETTINGS, observed


async def test_a_broker_that_serves_is_alive_and_ready() -> None:
    async with observed() as node:
        assert await node.text("/healthz") == "ok\n"
        assert await node.text("/readyz") == "ok\n"
        assert "/healthz\n/readyz\n" in await node.text("/")
        assert await node.text("/elsewhere", 404)
        assert (await node.http.post("/healthz")).status_code == 405


async def test_it_listens_before_anything_is_waited_for() -> None:
    """As it begins with the broker, it can be connected to when the broker says that it serves."""
    async with observed() as node:
        # Nothing has been waited for since: what is beside the broker has had one step.
        socket.create_connection(("127.0.0.1", node.http.base_url.port or 0), 5).close()


async def test_the_port_is_given_back_at_the_end() -> None:
    async with observed() as node:
        port = node.http.base_url.port
        assert await node.text("/healthz")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0))


async def test_before_a_broker_is_unfenced_and_once_it_leaves_it_is_not_ready() -> None:
    async with observed() as node:
        running = node.running
        for stage, said in (
            (LifecycleStage.REGISTERED, "not unfenced yet"),
            (LifecycleStage.CONTROLLED_SHUTDOWN, "in controlled shutdown"),
        ):
            running.node.lifecycle.stage = stage
            assert said in await node.text("/readyz", 503)
            assert await node.text("/healthz") == "ok\n"
        running.node.lifecycle.stage = LifecycleStage.UNFENCED
        assert await node.text("/readyz") == "ok\n"
        running.node.stopping = True
        assert "shutting down" in await node.text("/readyz", 503)
        running.node.stopping = False


async def test_a_broker_that_its_controller_has_fenced_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with observed() as node:
        registered = node.running.node.image.brokers[node.running.node.node_id]
        monkeypatch.setitem(
            node.running.node.image.brokers, node.running.node.node_id, registered._replace(fenced=True)
        )
        assert "is fenced" in await node.text("/readyz", 503)


async def test_a_port_answers_while_its_broker_waits_for_a_controller() -> None:
    """As a node that is started before its controllers, which its orchestrator asks for its health."""
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
        said = []

        async def ask(running: RunningNode) -> None:
            await trio.testing.wait_all_tasks_blocked()
            async with httpx.AsyncClient(base_url=port.url, trust_env=False) as client:
                said.append((await client.get("/healthz")).text)
                said.append((await client.get("/readyz")).text)
            stop.set()

        async def answer_and_ask(running: RunningNode) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.serve, running)
                nursery.start_soon(ask, running)

        async with serve(config, disk=disk, background=[answer_and_ask], stop=stop):
            pass
        assert said[0] == "ok\n"
        assert "stage STARTING" in said[1]


async def test_a_broker_that_has_to_stop_is_neither_alive_nor_ready() -> None:
    async with observed() as node:
        node.running.failure.report("made up")
        assert await node.text("/healthz", 503) == "the broker is stopping after a failure: made up\n"
        assert await node.text("/readyz", 503) == "the broker is stopping after a failure: made up\n"


async def test_a_loop_that_does_not_turn_is_not_alive(autojump_clock: trio.testing.MockClock) -> None:
    class Stuck:
        def call_soon(self, callback: Any) -> None:
            pass

    running: Any = type("Running", (), {"loop": Stuck(), "failure": type("Failure", (), {"reason": ""})})
    assert await why_not_alive(running, 5) == "the loop has not completed a turn in 5 s"


async def test_a_controller_alone_is_ready_once_it_knows_who_leads() -> None:
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


async def test_bound_to_loopback_a_port_refuses_requests_to_other_names() -> None:
    """A site whose name was pointed to 127.0.0.1 is not to read it through a browser of this machine."""
    async with observed() as node:
        refused = await node.http.get("/healthz", headers={"Host": "rebound.example"})
        assert refused.status_code == 421
        assert "--http HOST:PORT" in refused.text
        assert (await node.http.get("/healthz", headers={"Host": "localhost"})).status_code == 200


async def test_bound_to_every_address_a_port_answers_by_any_name() -> None:
    async with observed(address="0.0.0.0:0") as node:
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
def test_an_address_is_a_port_with_or_without_a_host(text: str, address: tuple[str, int]) -> None:
    assert http_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "x", ":8080", "host:", "::1:80", "80 80", "http://127.0.0.1:80", "123456"]
)
def test_what_is_no_address_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="expected PORT or HOST:PORT, for example --http 8080"):
        http_address(text)


def test_a_port_in_use_is_found_before_the_broker_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--data", str(tmp_path / "data"), "--http", where]) == 1
    gc.enable()
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"kwire: cannot listen on {where} (listener --http): the port is in use: stop the program "
        f"that uses it, or set another port in --http"
    )
    assert not (tmp_path / "data").exists()


def test_where_the_extra_is_not_installed_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.broker.observe.http.find_spec", lambda name: None)
    assert main(["serve", "--http", "8080"]) == 1
    gc.enable()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "kwire: --http needs hypercorn and starlette: pip install 'kwire[console]'"
    )


async def test_what_fails_beside_a_broker_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(running: RunningNode) -> None:
        raise ZeroDivisionError("made up")

    async with serve(load(None, {}, SETTINGS), disk=MemoryDisk(), background=[fail]) as running:
        await trio.testing.wait_all_tasks_blocked()
        assert await why_not_alive(running) == ""
    assert "A background task failed" in caplog.text


def test_a_broker_without_a_port_does_not_load_what_one_is_made_of() -> None:
    look = "import sys, kwire.cli.server.serve; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not loaded & {"hypercorn", "starlette", "anyio", "h11", "asyncio"}
