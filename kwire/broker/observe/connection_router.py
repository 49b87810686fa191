"""Who answers a connection of the HTTP port: the broker's pages, or the console beside it.

The path is looked at, and left to be read by whoever answers. So the broker's loop, which others wait for,
does not read requests to the console and pass answers on.
"""

from __future__ import annotations

import re
import socket
from typing import Final

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from kwire.broker.observe.app import SERVICE_UNAVAILABLE
from kwire.broker.observe.console import ConsoleProcess
from kwire.broker.observe.console_rate_limit import ConsoleRateLimit
from kwire.http.connections import ConnectionServer

CONSOLE_REQUEST: Final = re.compile(rb"[A-Za-z]+ /console(?:(?P<static>/static/)|(?=[/? ]))")
PEEK_BYTES: Final = 64
FIRST_BYTES_SECONDS: Final = 5.0
"""Who has sent nothing until then is let go; who has sent less than a line is answered by the broker."""
PEEK_PAUSE_SECONDS: Final = 0.02
"""Until it is looked at again, where part of a line has come; twice as long each time."""
TOO_MANY_PAGES: Final = (
    "the console gives a page a second while others are served, and some wait: ask again later"
)


class ConnectionRouter:
    """Takes connections, and sees to each."""

    def __init__(
        self,
        connections: ConnectionServer,
        app: ASGIApp,
        console: ConsoleProcess | None,
        rate_limit: ConsoleRateLimit,
    ) -> None:
        self._connections = connections
        self._app = app
        self._console = console
        self._rate_limit = rate_limit

    async def route(self, stream: trio.SocketStream) -> None:
        """Have a connection answered."""
        app = self._app
        async with stream:
            if self._console is not None:
                try:
                    asked = CONSOLE_REQUEST.match(await _first_bytes(stream.socket))
                except (OSError, trio.TooSlowError):
                    return
                if asked is not None:
                    refusal = TOO_MANY_PAGES
                    if asked["static"] or await self._rate_limit.acquire():
                        refusal = self._console.hand_over(stream.socket.fileno())
                    if not refusal:
                        return
                    app = PlainTextResponse(f"{refusal}\n", SERVICE_UNAVAILABLE)
            await self._connections.serve(stream, app)


async def _first_bytes(sock: trio.socket.SocketType) -> bytes:
    """The first line of what comes, or as much as is looked at; it stays unread. OSError, TooSlowError."""
    with trio.fail_after(FIRST_BYTES_SECONDS):
        found = await sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    pause_seconds = PEEK_PAUSE_SECONDS
    with trio.move_on_after(FIRST_BYTES_SECONDS):
        while found and b"\n" not in found and len(found) < PEEK_BYTES:
            await trio.sleep(pause_seconds)  # the socket can be read already: nothing tells of more
            pause_seconds *= 2
            found = await sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    return found
