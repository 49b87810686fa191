"""Routing of HTTP connections to the broker's pages or to the console process, with or without TLS.

The router peeks at the path and leaves the request unread for the application that serves it. So the broker's
event loop, which also serves Kafka clients, does not have to proxy the console's requests and responses.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.unexpected_protocols import (
    HTTP_METHODS,
    TLS_HANDSHAKE,
    UnexpectedProtocol,
)
from kwire.broker.observe.console import ConsoleProcess
from kwire.broker.observe.console_rate_limit import ConsoleRateLimit
from kwire.host.loggers import NodeLogger
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.http.connections import ConnectionServer
from kwire.http.status import SERVICE_UNAVAILABLE

if TYPE_CHECKING:
    from kwire.broker.observe.tls_termination import TlsTermination

CONSOLE_REQUEST: Final = re.compile(rb"[A-Za-z]+ /console(?:(?P<static>/static/)|(?=[/? ]))")
PEEK_BYTES: Final = 64
FIRST_BYTES_SECONDS: Final = 5.0
"""The time to wait for the first byte, and then for the complete request line.

A connection without any byte is closed. If only a part of the line has arrived, that part decides the route.
"""
PEEK_PAUSE_SECONDS: Final = 0.02
"""The pause before peeking again at an incomplete line. The pause doubles each time."""
TLS_ADVICE: Final = "the peer sent a TLS handshake, but the HTTP port has no TLS. Open an http:// URL"
HTTP_ADVICE: Final = (
    "the peer sent an HTTP request without TLS, but the HTTP port has TLS. Open an https:// URL"
)
NO_TLS_RESPONSE: Final = PlainTextResponse("this port has TLS: open an https:// URL\n", 400)
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
        tls: TlsTermination | None = None,
    ) -> None:
        self._connections = connections
        self._app = app
        self._console = console
        self._rate_limit = rate_limit
        self._logger = logger
        self._tls = tls
        self._log_limit = PeerLogLimit()

    async def route(self, stream: trio.SocketStream) -> None:
        """Serve a connection until it ends, or pass it to the console process."""
        async with stream:
            try:
                ip = stream.socket.getpeername()[0]
                if self._tls is None:
                    await self._route_plain(stream, ip)
                else:
                    await self._route_encrypted(stream, ip, self._tls)
            except (OSError, trio.TooSlowError):
                return

    async def _route_encrypted(self, stream: trio.SocketStream, ip: str, tls: TlsTermination) -> None:
        """Route a connection through TLS. Raises OSError or TooSlowError if no request has arrived."""

        async def route_decrypted(decrypted: trio.SocketStream) -> None:
            async with decrypted:
                with suppress(OSError, trio.TooSlowError):
                    await self._route_plain(decrypted, ip)

        first_bytes = await _first_bytes(stream.socket)
        if first_bytes[:4] in HTTP_METHODS:
            self._log_closed(ip, UnexpectedProtocol.HTTP, HTTP_ADVICE)
            await self._connections.serve(stream, NO_TLS_RESPONSE)
        elif first_bytes.startswith(b"\0"):
            self._log_closed(ip, UnexpectedProtocol.KAFKA, KAFKA_ADVICE)
        else:
            try:
                await tls.serve(stream, route_decrypted)
            except HandshakeError as error:
                self._log_closed(ip, "handshake", f"the TLS handshake failed: {error.strerror}")

    async def _route_plain(self, stream: trio.SocketStream, ip: str) -> None:
        """Route a connection without TLS, or the decrypted end of one with TLS.

        Raises OSError or TooSlowError if no request has arrived.
        """
        app = self._app
        first_bytes = await _first_bytes(stream.socket)
        if self._is_unexpected(first_bytes, ip):
            return
        if self._console is not None:
            first_bytes = await _first_line(stream.socket, first_bytes)
            match = CONSOLE_REQUEST.match(first_bytes)
            if match is not None:
                refusal = TOO_MANY_PAGES
                if match["static"] or await self._rate_limit.acquire():
                    refusal = self._console.hand_over(stream.socket.fileno())
                if not refusal:
                    return
                app = PlainTextResponse(f"{refusal}\n", SERVICE_UNAVAILABLE)
        await self._connections.serve(stream, _with_client(app, ip))

    def _is_unexpected(self, first_bytes: bytes, ip: str) -> bool:
        """Return whether the peer uses TLS or Kafka's protocol. Log this once per minute for each address."""
        # A Kafka request begins with its size. Sizes below 16 MiB begin with a zero byte.
        if first_bytes.startswith(TLS_HANDSHAKE):
            self._log_closed(ip, UnexpectedProtocol.TLS, TLS_ADVICE)
        elif first_bytes.startswith(b"\0"):
            self._log_closed(ip, UnexpectedProtocol.KAFKA, KAFKA_ADVICE)
        else:
            return False
        return True

    def _log_closed(self, ip: str, kind: Hashable, reason: str) -> None:
        if self._log_limit.should_log(ip, "--http", kind, int(1000 * trio.current_time())):
            self._logger.warning(
                "Closing HTTP connection from %s: %s. Further such connections of this peer are not logged "
                "for a minute",
                *(ip, reason),
            )


def _with_client(app: ASGIApp, ip: str) -> ASGIApp:
    """Return `app` with the client's address in its scope: behind TLS, the connection is a socket pair."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (ip, 0)}, receive, send)

    return serve


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
