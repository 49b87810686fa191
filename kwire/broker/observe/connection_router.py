"""Routing of HTTP connections to the broker's pages or to the console process.

The router peeks at the path and leaves the request unread for the application that serves it. So the broker's
event loop, which also serves Kafka clients, does not have to proxy the console's requests and responses.
"""

from __future__ import annotations

import re
import socket
from typing import Final

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from kwire.broker.net.unexpected_protocols import (
    TLS_HANDSHAKE,
    UnexpectedProtocol,
    UnexpectedProtocolLog,
)
from kwire.broker.observe.app import SERVICE_UNAVAILABLE
from kwire.broker.observe.console import ConsoleProcess
from kwire.broker.observe.console_rate_limit import ConsoleRateLimit
from kwire.host.loggers import NodeLogger
from kwire.http.connections import ConnectionServer

CONSOLE_REQUEST: Final = re.compile(rb"[A-Za-z]+ /console(?:(?P<static>/static/)|(?=[/? ]))")
PEEK_BYTES: Final = 64
FIRST_BYTES_SECONDS: Final = 5.0
"""The time to wait for the first byte, and then for the complete request line.

A connection without any byte is closed. If only a part of the line has arrived, that part decides the route.
"""
PEEK_PAUSE_SECONDS: Final = 0.02
"""The pause before peeking again at an incomplete line. The pause doubles each time."""
TLS_ADVICE: Final = "the peer sent a TLS handshake, but the HTTP port has no TLS. Open an http:// URL"
KAFKA_ADVICE: Final = (
    "the peer sent a Kafka request to the HTTP port. Set bootstrap.servers in the client to the address of a "
    "listener"
)
TOO_MANY_PAGES: Final = (
    "the console serves one page per second while the broker serves other clients, and too many requests "
    "are waiting: try again later"
)


class ConnectionRouter:
    """The router of the HTTP port, which passes each connection to the broker's pages or to the console."""

    def __init__(
        self,
        connections: ConnectionServer,
        app: ASGIApp,
        console: ConsoleProcess | None,
        rate_limit: ConsoleRateLimit,
        logger: NodeLogger,
    ) -> None:
        self._connections = connections
        self._app = app
        self._console = console
        self._rate_limit = rate_limit
        self._logger = logger
        self._unexpected_protocols = UnexpectedProtocolLog()

    async def route(self, stream: trio.SocketStream) -> None:
        """Serve a connection until it ends, or pass it to the console process."""
        app = self._app
        async with stream:
            try:
                first_bytes = await _first_bytes(stream.socket)
                if self._is_unexpected(first_bytes, stream.socket.getpeername()[0]):
                    return
                if self._console is not None:
                    first_bytes = await _first_line(stream.socket, first_bytes)
            except (OSError, trio.TooSlowError):
                return
            if self._console is not None:
                match = CONSOLE_REQUEST.match(first_bytes)
                if match is not None:
                    refusal = TOO_MANY_PAGES
                    if match["static"] or await self._rate_limit.acquire():
                        refusal = self._console.hand_over(stream.socket.fileno())
                    if not refusal:
                        return
                    app = PlainTextResponse(f"{refusal}\n", SERVICE_UNAVAILABLE)
            await self._connections.serve(stream, app)

    def _is_unexpected(self, first_bytes: bytes, ip: str) -> bool:
        """Return whether the peer uses TLS or Kafka's protocol. Log this once per minute for each address."""
        # A Kafka request begins with its size. Sizes below 16 MiB begin with a zero byte.
        if first_bytes.startswith(TLS_HANDSHAKE):
            protocol, advice = UnexpectedProtocol.TLS, TLS_ADVICE
        elif first_bytes.startswith(b"\0"):
            protocol, advice = UnexpectedProtocol.KAFKA, KAFKA_ADVICE
        else:
            return False
        if self._unexpected_protocols.should_log(ip, "--http", protocol, int(1000 * trio.current_time())):
            self._logger.warning(
                "Closing HTTP connection from %s: %s. Further such connections of this peer are not logged "
                "for a minute",
                *(ip, advice),
            )
        return True


async def _first_bytes(sock: trio.socket.SocketType) -> bytes:
    """Peek at the bytes that have arrived, at most `PEEK_BYTES`.

    Raises TooSlowError if no byte arrives within `FIRST_BYTES_SECONDS`. Raises OSError if the connection is
    lost.
    """
    with trio.fail_after(FIRST_BYTES_SECONDS):
        return await sock.recv(PEEK_BYTES, socket.MSG_PEEK)


async def _first_line(sock: trio.socket.SocketType, found: bytes) -> bytes:
    """Peek at the first line, or at its first `PEEK_BYTES`. `found` are the bytes that have arrived.

    Raises OSError if the connection is lost.
    """
    pause_seconds = PEEK_PAUSE_SECONDS
    with trio.move_on_after(FIRST_BYTES_SECONDS):
        while found and b"\n" not in found and len(found) < PEEK_BYTES:
            await trio.sleep(pause_seconds)  # the first bytes stay readable, so no event announces more data
            pause_seconds *= 2
            found = await sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    return found
