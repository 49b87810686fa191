"""Listeners that open and close while the server runs, over real sockets (KIP-226)."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config import load
from kwire.broker.config.listeners import ListenerEndpoint
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import run_waits, serve, wait_any
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.wire.registry import decode_response, encode_request
from tests.broker.net.conftest import Client

if TYPE_CHECKING:
    from tests.broker.net.conftest import MakeHarness, ServerHarness

HOST = "127.0.0.1"


def endpoints(harness: ServerHarness, *more: ListenerEndpoint) -> list[ListenerEndpoint]:
    """Return the endpoint of the static listener, followed by `more`."""
    return [ListenerEndpoint("PLAINTEXT", HOST, harness.port), *more]


def extra_listener(port: int = 0, host: str = HOST) -> ListenerEndpoint:
    return ListenerEndpoint("EXTRA", host, port)


async def add_listeners(harness: ServerHarness, *more: ListenerEndpoint) -> int:
    """Change the listeners and return the port of the last one."""
    harness.server.change_listeners(endpoints(harness, *more))
    await wait_any(harness.loop.workers_done())
    return harness.server.listeners[-1].port


async def test_removed_listener_closes_its_connections(harness: ServerHarness) -> None:
    old = await harness.connect()
    port = await add_listeners(harness, extra_listener())
    new = await harness.connect(port)
    assert await new.request(b"enew") == b"new"
    assert await old.request(b"eold") == b"old"
    assert harness.server.quotas[ListenerRole.BROKER].listeners == 2
    harness.server.change_listeners(endpoints(harness))
    assert await new.is_closed()
    assert await old.request(b"estill there") == b"still there"
    assert harness.server.quotas[ListenerRole.BROKER].listeners == 1
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect((HOST, port))


async def test_response_to_the_removal_of_a_listener_is_sent_through_it(harness: ServerHarness) -> None:
    client = await harness.connect(await add_listeners(harness, extra_listener()))
    await client.send(b"pgone")
    await harness.node.until(lambda: "gone" in harness.node.delayed)

    def remove_listener() -> None:
        if "gone" in harness.node.delayed:
            harness.server.change_listeners(endpoints(harness))
            harness.node.complete("gone")

    harness.node.on_end_turn = remove_listener
    harness.loop.wake()
    assert await client.receive() == b"gone"
    assert await client.is_closed()


async def test_listener_with_a_changed_port_is_not_rebound(harness: ServerHarness) -> None:
    port = await add_listeners(harness, extra_listener())
    client = await harness.connect(port)
    assert await add_listeners(harness, extra_listener(1)) == port
    assert await client.request(b"ehere") == b"here"
    # Removal closes the listener at its bound address, not at the configured one.
    harness.server.change_listeners(endpoints(harness))
    assert await client.is_closed()


@pytest.mark.parametrize(("host", "port"), [(HOST, None), (HOST, -1), (HOST, 65536), ("a..b", 1)])
async def test_failed_bind_is_logged_once_and_not_retried(
    harness: ServerHarness, host: str, port: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind((HOST, 0))
        wrong = extra_listener(taken.getsockname()[1] if port is None else port, host)
        assert await add_listeners(harness, wrong) == harness.port
        assert caplog.text.count("Cannot open listener EXTRA") == 1
    await add_listeners(harness, wrong)
    await add_listeners(harness, extra_listener())
    assert len(harness.server.listeners) == 1
    await add_listeners(harness)
    assert await add_listeners(harness, extra_listener()) != harness.port


async def test_listener_removed_during_its_host_lookup_is_not_opened(
    harness: ServerHarness,
) -> None:
    harness.server.change_listeners(endpoints(harness, extra_listener()))
    harness.server.change_listeners(endpoints(harness))
    harness.server.change_listeners(endpoints(harness, extra_listener()))
    harness.server.change_listeners(endpoints(harness))
    await wait_any(harness.loop.workers_done())
    assert [listener.name for listener in harness.server.listeners] == ["PLAINTEXT"]


async def test_stopping_server_opens_no_listener(harness: ServerHarness) -> None:
    harness.server.change_listeners(endpoints(harness, extra_listener()))
    await run_waits(harness.server.drain())
    await wait_any(harness.loop.workers_done())
    assert not harness.server.listeners


async def test_removal_of_a_listener_at_its_connection_limit(make_harness: MakeHarness) -> None:
    harness = await make_harness(max_connections_by_listener={"EXTRA": 1})
    port = await add_listeners(harness, extra_listener())
    first, second = await harness.connect(port), await harness.connect(port)
    assert await first.request(b"efirst") == b"first"
    await second.send(b"enever")
    harness.server.change_listeners(endpoints(harness))
    assert await first.is_closed()
    assert await second.is_closed()


# --- a whole broker


@asynccontextmanager
async def start_broker(directory: Path, **more: str) -> AsyncIterator[RunningNode]:
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0",
        "advertised.listeners": f"PLAINTEXT://{HOST}:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT",
        "log.dirs": str(directory),
    } | more
    with trio.fail_after(60):
        async with serve(load(None, {}, settings)) as broker:
            await wait_any(broker.loop.workers_done())
            yield broker


async def connect(port: int) -> Client:
    return Client(await trio.open_tcp_stream(HOST, port))


async def set_listeners(client: Client, listeners: str) -> int:
    change = AlterableConfig(name="listeners", config_operation=0, value=listeners)
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])]
    )
    await client.send_raw(encode_request(request, 1, 7, "test"))
    _, response = decode_response(IncrementalAlterConfigsResponse, 1, await client.receive())
    return int(response.responses[0].error_code)


async def test_listeners_config_opens_and_closes_listeners_and_survives_a_restart(tmp_path: Path) -> None:
    async with start_broker(tmp_path) as broker:
        server = broker.server
        now = f"PLAINTEXT://{HOST}:{server.listeners[0].port}"
        both = f"{now},EXTRA://{HOST}:0"
        old = await connect(server.listeners[0].port)
        assert await set_listeners(old, both) == 0
        await wait_any(broker.loop.workers_done())
        new = await connect(server.listeners[1].port)
        assert await set_listeners(new, now) == 0
        assert await new.is_closed()
        assert [listener.name for listener in server.listeners] == ["PLAINTEXT"]
        assert await set_listeners(old, both) == 0
        for client in (old, new):
            await trio.aclose_forcefully(client.stream)
    # The next start opens the static listeners first, then applies the change.
    async with start_broker(tmp_path) as broker:
        assert [listener.name for listener in broker.server.listeners] == ["PLAINTEXT", "EXTRA"]
