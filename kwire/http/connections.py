"""Connections that were accepted elsewhere, served by Hypercorn.

Its own `serve` accepts, too. Here whoever accepts looks at the first bytes, to choose who answers: the
broker's pages, or the console in another process (docs/decisions/0022). So each connection is for one request
and ends with its answer: the next may be for somebody else.
"""

from __future__ import annotations

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp


class Connections:
    """How connections are served."""

    def __init__(self, *, read_timeout_seconds: int | None = None, tells_of_errors: bool = False) -> None:
        """A client that is silent for so long is let go, also one that is waiting for an answer.

        `tells_of_errors`: what is wrong in an application is told on stderr.
        """
        self._config = Config()
        self._config.errorlog = "-" if tells_of_errors else None
        self._config.loglevel = "WARNING"
        self._config.include_server_header = False
        self._config.keep_alive_max_requests = 1
        self._config.read_timeout = read_timeout_seconds
        self._context = WorkerContext(None)

    async def serve(self, stream: trio.SocketStream, app: ASGIApp) -> None:
        """Have `app` answer the request of a connection, and close it. Who sends none is let go soon."""
        wrapped = ASGIWrapper(app)  # type: ignore[arg-type]  # two descriptions of ASGI's one interface
        await TCPServer(wrapped, self._config, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
