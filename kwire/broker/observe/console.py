"""The way to the console, a process beside the broker (`kwire.console`, docs/decisions/0022).

The first request starts it, and one that has ended is started by the next. It is handed a socket without a
name in the file system, which no browser can reach but through here. What comes back is passed on as it
comes, so that a live tail is one long answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import h11
import trio
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from kwire.broker.api.table import ListenerRole
from kwire.broker.net.running import RunningNode
from kwire.broker.observe.turns import READER_ID, Turns
from kwire.broker.security.settings import Credentials, listener_security, peer_credentials

SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
BACKLOG: Final = 64
MAX_AT_ONCE: Final = 32
"""Requests that are passed on at the same time, live tails among them."""
CHUNK_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 1024 * 1024
"""Of a form; the console itself takes no more."""
HOP_BY_HOP: Final = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"expect"}
"""Headers that are a connection's own. RFC 9110, 7.6.1."""
STATIC: Final = "/console/static/"
"""What the broker is not asked for."""
TOO_FAST: Final = "the console gives a page a second while others are served, and some wait: ask again later"
SERVICE_UNAVAILABLE: Final = 503
BAD_GATEWAY: Final = 502
BAD_REQUEST: Final = 400
NO_WEBSOCKET: Final = "the console has no WebSockets: ask for its pages by HTTP\n"


class ConsoleProcess:
    """The console of a node, as an ASGI application that passes requests on."""

    def __init__(self, running: RunningNode, *, may_write: bool, is_told_to_write: bool = False) -> None:
        """`may_write`: it changes things as anybody may; `is_told_to_write`: as the broker itself, too."""
        self._running = running
        self._may_write = may_write
        self._is_told_to_write = is_told_to_write
        self._process: subprocess.Popen[bytes] | None = None
        self._address: bytes | str = b""
        self._under_way = 0
        self._turns = Turns(running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or say in one sentence why that cannot be done."""
        if scope["type"] != "http":
            await PlainTextResponse(NO_WEBSOCKET, BAD_REQUEST)(scope, receive, send)
            return
        refusal = ""
        if not self._running.bootstrap:
            refusal = "the broker does not serve yet: ask again in a moment"
        elif self._under_way >= MAX_AT_ONCE:
            refusal = "the console has too much to do: close some of its pages"
        if refusal:
            await PlainTextResponse(f"{refusal}\n", SERVICE_UNAVAILABLE)(scope, receive, send)
            return
        self._under_way += 1
        try:
            if scope["path"].startswith(STATIC) or await self._turns.wait():
                await self._forward(scope, receive, send)
            else:
                await PlainTextResponse(f"{TOO_FAST}\n", SERVICE_UNAVAILABLE)(scope, receive, send)
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the process; it holds nothing that would be lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._start()
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                await sock.connect(self._address)
                await _exchange(trio.SocketStream(sock), scope, receive, send_on)
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            self._running.loop.logger("kwire.http").warning("the console did not answer: %s", error)
            if not has_begun:
                told = PlainTextResponse("the console has ended: load the page again\n", BAD_GATEWAY)
                await told(scope, receive, send)

    def _start(self) -> None:
        """Have a process where there is none. OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        config = self._running.node.config
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("")  # the kernel finds a name, which goes with the last process that has it
            listener.listen(BACKLOG)
            self._address = listener.getsockname()
            command = [sys.executable, "-P", "-m", "kwire.console", "--fd", str(listener.fileno())]
            servers, credentials = self._way()
            command += ["--bootstrap-server", servers]
            command += ["--client-id", READER_ID]
            command += ["--node-id", str(config.node_id)]
            for directory in config.log_dirs:
                command += ["--log-dir", directory]
            if not (self._may_write if credentials is None else self._is_told_to_write):
                command.append("--read-only")
            environment = dict(os.environ)
            # The console finds the same modules as this process, installed or not.
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(SOURCE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
            )
            with _pipe_of(json.dumps(credentials)) as fd:
                self._process = subprocess.Popen(
                    [*command, "--credentials-fd", str(fd)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[listener.fileno(), fd],
                )

    def _way(self) -> tuple[str, Credentials | None]:
        """Where the console asks, and as whom: nobody where a listener takes everyone, else the broker."""
        config, listeners = self._running.node.config, self._running.server.listeners
        listeners = [one for one in listeners if one.role is ListenerRole.BROKER] or listeners
        if open_ := [one for one in listeners if listener_security(config, one.name) is None]:
            return ",".join(one.address for one in open_), None
        ours = config.inter_broker_listener_name
        listener = next((one for one in listeners if one.name == ours), listeners[0])
        return listener.address, peer_credentials(config, listener.name)


@contextmanager
def _pipe_of(text: str) -> Iterator[int]:
    """A descriptor that gives the text to a child; arguments and the environment are seen by others."""
    reader, writer = os.pipe()
    try:
        with open(writer, "w", encoding="utf-8") as file:
            file.write(text)  # it fits: a pipe has 64 KiB
        yield reader
    finally:
        os.close(reader)


async def _exchange(
    stream: trio.SocketStream,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """One request and its answer, which ends early where whoever asked has gone.

    h11.RemoteProtocolError, trio.BrokenResourceError.
    """
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            await PlainTextResponse("that is too much at once: send less\n", 413)(scope, receive, send)
            return
    connection = h11.Connection(h11.CLIENT)
    query = scope["query_string"]
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (*HOP_BY_HOP, b"content-length")
    ]
    request = h11.Request(
        method=scope["method"],
        target=scope["raw_path"] + (b"?" + query if query else b""),
        headers=[*headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")],
    )
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        await stream.send_all(connection.send(event) or b"")
    broken: Exception | None = None
    is_whole = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, receive, nursery.cancel_scope)
        try:
            await _answer(stream, connection, send)
            is_whole = True
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            broken = error  # not in the group that a nursery would make of it
        nursery.cancel_scope.cancel()
    if broken is not None:
        raise broken
    if is_whole:
        # Out of reach of the watch, which hears of the end while this is under way: cancelled then, the
        # server would neither close the connection nor see that it is idle.
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(stream: trio.SocketStream, connection: h11.Connection, send: Send) -> None:
    """Pass an answer on, but for word of its end. h11.RemoteProtocolError, trio.BrokenResourceError."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            told = [(name, value) for name, value in event.headers if name not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": event.status_code, "headers": told})
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, h11.EndOfMessage):
            return


async def _watch(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel once whoever asked has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
