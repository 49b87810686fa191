"""Connections that the broker's HTTP port passes to the console before the broker reads any byte."""

from __future__ import annotations

import array
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kwire.host.platform.sockets import LOSES_DESCRIPTORS
from kwire.http.connections import ConnectionServer, Logger

MAX_REQUESTS: Final = 32
"""Maximum number of concurrent requests, including live tails."""
MAX_CONNECTIONS: Final = 256
"""Maximum number of connections, including those without a request; others are closed at once."""
OVERLOADED_RESPONSE: Final = PlainTextResponse("the console is overloaded: close some of its pages\n", 503)
ONE_FD: Final = socket.CMSG_SPACE(array.array("i").itemsize)


async def serve_connections(
    channel: trio.socket.SocketType,
    app: ASGIApp,
    on_disconnect: Callable[[], None],
    logger: Logger,
    *,
    is_https: bool = False,
) -> None:
    """Serve the connections whose file descriptors arrive on `channel`.

    Calls `on_disconnect` when the broker's process has ended. Where the system may lose a descriptor that was
    closed before its receipt, each descriptor is acknowledged with one byte. With `is_https`, the broker's
    process decrypts and encrypts the bytes of the connections.
    """
    connections = ConnectionServer(logger, is_https=is_https)
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

    async def serve(stream: trio.SocketStream) -> None:
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
            try:
                data, ancillary, _, _ = await channel.recvmsg(1, ONE_FD)
            except ConnectionResetError:  # the broker's process has not read all receipts
                data = b""
            if not data:
                on_disconnect()
                return
            for _, _, fds in ancillary:
                for fd in array.array("i", fds):
                    taken = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
                    if LOSES_DESCRIPTORS:
                        await _send_receipt(channel)
                    nursery.start_soon(serve, trio.SocketStream(taken))


async def _send_receipt(channel: trio.socket.SocketType) -> None:
    with suppress(OSError):  # the broker's process has ended
        await channel.send(b"r")
