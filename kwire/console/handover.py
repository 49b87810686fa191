"""Connections that a broker's HTTP port hands over, with nothing read of them."""

from __future__ import annotations

import array
import socket
from collections.abc import Callable
from typing import Final

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kwire.http.connections import ConnectionServer, Logger

MAX_REQUESTS: Final = 32
"""Requests that are answered at the same time, live tails among them."""
MAX_CONNECTIONS: Final = 256
"""Those without a request among them; more are closed at once."""
OVERLOADED_RESPONSE: Final = PlainTextResponse(
    "the console has too much to do: close some of its pages\n", 503
)
ONE_FD: Final = socket.CMSG_SPACE(array.array("i").itemsize)


async def serve_connections(
    channel: trio.socket.SocketType,
    app: ASGIApp,
    on_disconnect: Callable[[], None],
    logger: Logger,
) -> None:
    """Have `app` answer what comes. `when_gone` is called when whoever hands it over is no more."""
    connections = ConnectionServer(logger)
    under_way = 0
    open_connections = 0

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal under_way
        chosen: ASGIApp = app if under_way < MAX_REQUESTS else OVERLOADED_RESPONSE
        under_way += 1
        try:
            await chosen(scope, receive, send)
        finally:
            under_way -= 1

    async def response(stream: trio.SocketStream) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            async with stream:
                if open_connections <= MAX_CONNECTIONS:
                    await connections.serve(stream, bounded)
        finally:
            open_connections -= 1

    async with trio.open_nursery() as nursery:
        while True:
            said, ancillary, _, _ = await channel.recvmsg(1, ONE_FD)
            if not said:
                on_disconnect()
                return
            for _, _, fds in ancillary:
                for fd in array.array("i", fds):
                    taken = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
                    nursery.start_soon(response, trio.SocketStream(taken))
