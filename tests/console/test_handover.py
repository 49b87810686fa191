"""Connections that the broker hands over to the console."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from kwire.console import handover
from kwire.console.handover import serve_connections

REQUEST = b"GET /console/ HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def handover_to_app(
    entered: trio.Event, goes_on: trio.Event, page: str = "a page"
) -> AsyncIterator[Callable[[], trio.SocketStream]]:
    """Yield a function that sends a request to an application over a handed-over connection.

    The application sets `entered`, waits for `goes_on`, and responds with `page`.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await goes_on.wait()
        await PlainTextResponse(page)(scope, receive, send)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    gone = trio.Event()

    def connect() -> trio.SocketStream:
        client = socket.socket()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
        client.send(REQUEST)
        with accepted:
            socket.send_fds(ours, [b"."], [accepted.fileno()])
        client.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(client))

    with ours, theirs:
        theirs.setblocking(False)
        channel = trio.socket.from_stdlib_socket(theirs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connections, channel, app, gone.set, logging.getLogger())
            yield connect
            goes_on.set()
            ours.close()
            with trio.fail_after(5):
                await gone.wait()


async def text_of(stream: trio.SocketStream) -> str:
    """Read until the peer closes the connection."""
    with trio.fail_after(5):
        async with stream:
            return b"".join([part async for part in stream]).decode()


async def test_connection_gets_a_response_and_its_descriptor_is_closed() -> None:
    goes_on = trio.Event()
    goes_on.set()
    async with handover_to_app(trio.Event(), goes_on) as connect:
        for _ in range(3):
            async with connect() as stream:
                with trio.fail_after(5):
                    response = b"".join([part async for part in stream]).decode()
                    assert response.startswith("HTTP/1.1 200")
                    assert response.endswith("a page")
                    # The other end is closed, so sending fails.
                    await stream.send_all(b"more")
                    await trio.sleep(0.01)
                    with pytest.raises(trio.BrokenResourceError):
                        await stream.send_all(b"more")


async def test_too_many_connections_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MAX_REQUESTS", 1)
    entered, goes_on = trio.Event(), trio.Event()
    async with handover_to_app(entered, goes_on) as connect:
        first = connect()
        await entered.wait()
        assert "close some of its pages" in await text_of(connect())
        goes_on.set()
        assert (await text_of(first)).endswith("a page")
        await trio.testing.wait_all_tasks_blocked()
        assert (await text_of(connect())).endswith("a page")


async def test_connection_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MAX_REQUESTS", 1)
    monkeypatch.setattr("kwire.http.connections.SEND_TIMEOUT_SECONDS", 0.1)
    entered, goes_on = trio.Event(), trio.Event()
    goes_on.set()
    large = "x" * 50_000_000
    async with handover_to_app(entered, goes_on, large) as connect, connect():
        await entered.wait()
        with trio.fail_after(10):
            while not (await text_of(connect())).endswith(large):
                await trio.sleep(0.05)
