"""Hypercorn for connections that were accepted elsewhere.

Hypercorn's own `serve` accepts connections itself. Here the HTTP port accepts them and peeks at the first
bytes to choose between the broker's pages and the console process (docs/decisions/0022). Therefore each
connection is closed after one request: the next request may belong to the other process.
"""

from __future__ import annotations

import logging
from typing import Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""A connection without a request, or with a WebSocket request, is closed after this time."""
SEND_TIMEOUT_SECONDS: Final = 30.0
"""A connection whose client does not read the response is closed after this time."""
NO_WEBSOCKET_RESPONSE: Final = PlainTextResponse("WebSockets are not supported: use HTTP\n", 400)

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class ConnectionServer:
    """A Hypercorn server for connections that are already accepted."""

    def __init__(self, logger: Logger, *, is_https: bool = False) -> None:
        """With `is_https`, TLS has ended before the connections arrive. Redirects then have https URLs."""
        self._logger = logger
        self._scheme = "https" if is_https else "http"
        self._config = Config()
        self._config.errorlog = None  # errors are logged here instead
        self._config.include_server_header = False
        self._config.keep_alive_max_requests = 1
        self._context = WorkerContext(None)

    async def serve(self, stream: trio.SocketStream, app: ASGIApp) -> None:
        """Serve the request of a connection with `app`, and close the connection in any case."""
        connection = _Connection(stream, app, self._logger, self._scheme)
        wrapped = ASGIWrapper(connection.serve)  # type: ignore[arg-type]  # two definitions of ASGI types
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.close_without_request)
            try:
                await TCPServer(wrapped, self._config, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
            except Exception as error:  # errors of Hypercorn must not end the port
                self._logger.warning("HTTP connection failed: %s: %.200s", type(error).__name__, error)
            stream.socket.close()
            nursery.cancel_scope.cancel()


class _Connection:
    """Timeouts of one connection, where Hypercorn has none."""

    def __init__(self, stream: trio.SocketStream, app: ASGIApp, logger: Logger, scheme: str) -> None:
        self._stream = stream
        self._app = app
        self._logger = logger
        self._scheme = scheme
        self._has_request = False

    async def close_without_request(self) -> None:
        """Close the connection if no request arrives within REQUEST_TIMEOUT_SECONDS."""
        await trio.sleep(REQUEST_TIMEOUT_SECONDS)
        if not self._has_request:
            self._stream.socket.close()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and close the connection if a send takes longer than SEND_TIMEOUT_SECONDS."""
        if scope["type"] == "websocket":
            await NO_WEBSOCKET_RESPONSE(scope, receive, send)
            return
        self._has_request = True
        scope["scheme"] = self._scheme

        async def send_in_time(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            # While the last message is sent, the application may receive the disconnect and be cancelled.
            # Hypercorn would then leave the connection open.
            with trio.CancelScope(shield=is_last):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._close_after_timeout)
                    if is_last:
                        nursery.start_soon(_discard_request, receive)
                    await send(message)
                    nursery.cancel_scope.cancel()

        try:
            await self._app(scope, receive, send_in_time)
        except Exception as error:
            self._logger.error("HTTP request for %s failed", scope["path"], exc_info=error)
            raise

    async def _close_after_timeout(self) -> None:
        # A blocked send of Hypercorn cannot be canceled, but closing the socket ends it.
        await trio.sleep(SEND_TIMEOUT_SECONDS)
        self._stream.socket.close()


async def _discard_request(receive: Receive) -> None:
    """Read the rest of the request: Hypercorn waits for buffer space before it reports the request's end."""
    while (await receive())["type"] != "http.disconnect":
        pass
