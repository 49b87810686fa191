"""Connections that were accepted elsewhere, served by Hypercorn.

Its own `serve` accepts, too. Here whoever accepts looks at the first bytes, to choose who answers: the
broker's pages, or the console in another process (docs/decisions/0022). So each connection is for one request
and ends with its answer: the next may be for somebody else.
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
"""Who has not sent a request until then is let go, and who has asked for a WebSocket."""
SEND_TIMEOUT_SECONDS: Final = 30.0
"""Who takes nothing of an answer for so long is let go."""
NO_WEBSOCKET_RESPONSE: Final = PlainTextResponse("there are no WebSockets here: ask for pages by HTTP\n", 400)

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class ConnectionServer:
    """How connections are served."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._config = Config()
        self._config.errorlog = None  # what fails is logged here
        self._config.include_server_header = False
        self._config.keep_alive_max_requests = 1
        self._context = WorkerContext(None)

    async def serve(self, stream: trio.SocketStream, app: ASGIApp) -> None:
        """Have `app` answer the request of a connection, and close it, whatever comes by it."""
        connection = _Connection(stream, app, self._logger)
        wrapped = ASGIWrapper(connection.answer)  # type: ignore[arg-type]  # two descriptions of one interface
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.close_without_request)
            try:
                await TCPServer(wrapped, self._config, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
            except Exception as error:  # of Hypercorn's own: nothing that a client sends ends a port
                self._logger.warning("a connection has failed: %.200r", error)
            stream.socket.close()
            nursery.cancel_scope.cancel()


class _Connection:
    """What bounds a connection, where Hypercorn would wait."""

    def __init__(self, stream: trio.SocketStream, app: ASGIApp, logger: Logger) -> None:
        self._stream = stream
        self._app = app
        self._logger = logger
        self._has_request = False

    async def close_without_request(self) -> None:
        """Close it where no request comes."""
        await trio.sleep(REQUEST_TIMEOUT_SECONDS)
        if not self._has_request:
            self._stream.socket.close()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, with an end to each of its sends."""
        if scope["type"] == "websocket":
            await NO_WEBSOCKET_RESPONSE(scope, receive, send)
            return
        self._has_request = True

        async def send_in_time(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            # The application may be told that it is done with while the last of it is sent, which has
            # Hypercorn close the connection: cancelled then, it would stay open.
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
            self._logger.error("%s failed", scope["path"], exc_info=error)
            raise

    async def _close_after_timeout(self) -> None:
        # Closed, since what Hypercorn sends cannot be cancelled.
        await trio.sleep(SEND_TIMEOUT_SECONDS)
        self._stream.socket.close()


async def _discard_request(receive: Receive) -> None:
    """Take what is left of a request: Hypercorn waits for room to say that it is at an end."""
    while (await receive())["type"] != "http.disconnect":
        pass
