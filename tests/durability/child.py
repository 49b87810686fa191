"""A broker process that can be killed, and a client with pipelined requests.

One thread serves all connections: `Connections.turn` waits until a socket is ready.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 30
REPLY_SECONDS = 30
STOP_SECONDS = 30
SERVES = re.compile(rb"serves on ([\d.]+):(\d+),")
TROUBLE = re.compile(r"^Traceback| ERROR |CRITICAL", re.MULTILINE)


class Failed(AssertionError):
    """A guarantee that the broker broke."""


class BrokerProcess:
    """A broker process with a data directory, which can be killed and restarted."""

    def __init__(
        self,
        data: Path,
        log: Path,
        settings: Mapping[str, str],
        *,
        open_files: tuple[int, int] | None = None,
    ) -> None:
        """`open_files` are the soft and the hard limit of file descriptors (`ulimit -n`)."""
        self._log = log
        self._set_limit = (
            None if open_files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, open_files)
        )
        self._command = [sys.executable, "-m", "kwire", "serve", "--data", str(data)]
        for key, value in {"listeners": "PLAINTEXT://127.0.0.1:0", **settings}.items():
            self._command += ["--set", f"{key}={value}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self.address = ("", 0)

    def start(self) -> None:
        """Start the process without waiting; see `wait_until_it_serves`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KWIRE_"))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=kept,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=self._set_limit,
            )
        self._said = b""

    def wait_until_it_serves(self, seconds: float = START_SECONDS) -> bool:
        """Wait for the line with the listener address, and return False after the timeout."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return False
                more = os.read(self._process.stdout.fileno(), 4096)
                if not more:
                    raise Failed(f"the broker ended with status {self._process.wait()}:\n{self.log_end()}")
                self._said += more
        found = SERVES.search(self._said)
        if found is None:
            raise Failed(f"the broker says {self._said!r}")
        self.address = (found[1].decode(), int(found[2]))
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL if the process runs, and wait for its exit."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def stop(self) -> None:
        """Send SIGTERM and wait for a clean exit."""
        assert self._process is not None
        self._process.terminate()
        if self._process.wait(STOP_SECONDS):
            raise Failed(f"the broker stopped with status {self._process.returncode}:\n{self.log_end()}")
        self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.wait(STOP_SECONDS)
        self._process.stdout.close()
        self._process = None

    def log_end(self) -> str:
        """Return the last 4,000 characters of the log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def logged_errors(self) -> list[str]:
        """Return the log lines that report internal errors."""
        text = self._log.read_text(errors="replace")
        return [text[found.start() : found.start() + 2000] for found in TROUBLE.finditer(text)]


class Connection:
    """A connection with pipelined requests and a callback per response."""

    def __init__(self, sock: socket.socket, client_id: str) -> None:
        self.sock = sock
        self.client_id = client_id
        self.closed = False
        self.waiting: deque[tuple[int, type[Message], int, Callable[[Any], None]]] = deque()
        self.unsent = bytearray()
        self._received = bytearray()
        self._correlation_id = 0

    def send(self, version: int, request: Message, then: Callable[[Any], None]) -> None:
        """Send a request; `then` gets the response, unless the broker dies before."""
        self._correlation_id += 1
        self.unsent += encode_request(request, version, self._correlation_id, self.client_id)
        answer = API_VERSIONS[request.API_KEY].response_class
        self.waiting.append((self._correlation_id, answer, version, then))
        self.write()

    def write(self) -> None:
        """Send as much as the socket accepts."""
        while self.unsent and not self.closed:
            try:
                del self.unsent[: self.sock.send(self.unsent)]
            except BlockingIOError:
                return
            except OSError:
                self.unsent.clear()  # responses sent before the kill may still be read

    def read(self) -> None:
        """Read available bytes and pass each complete response to its callback."""
        try:
            more = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self.closed = True
            return
        self._received += more
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            correlation_id, response_class, version, then = self.waiting.popleft()
            answered, response = decode_response(response_class, version, frame)
            if answered != correlation_id:
                raise Failed(f"an answer to request {answered} in place of {correlation_id}")
            then(response)


class Connections:
    """All connections to the broker between two kills."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._all: list[Connection] = []

    def connect(self, client_id: str) -> Connection:
        sock = socket.create_connection(self._address, timeout=REPLY_SECONDS)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, client_id)
        self._all.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        return connection

    def turn(self, seconds: float) -> None:
        """Wait until a socket is ready, then read and write."""
        for connection in self._all:
            if not connection.closed:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
                self._selector.modify(connection.sock, wanted, connection)
        for key, events in self._selector.select(max(0.0, seconds)):
            connection = key.data
            if events & selectors.EVENT_WRITE:
                connection.write()
            if events & selectors.EVENT_READ:
                connection.read()
                if connection.closed:
                    self._selector.unregister(connection.sock)

    def drain(self) -> None:
        """Read the responses that a killed broker sent, up to the end of every connection."""
        deadline = time.monotonic() + REPLY_SECONDS
        while not all(connection.closed for connection in self._all):
            if time.monotonic() > deadline:
                raise Failed("a connection outlived its broker")
            self.turn(1)

    def request(self, connection: Connection, version: int, request: Message) -> Any:
        """Send one request and return its response."""
        answers: list[Any] = []
        connection.send(version, request, answers.append)
        self.wait_for([connection])
        return answers[0]

    def wait_for(self, connections: Sequence[Connection]) -> None:
        """Wait until every request of these connections has a response."""
        deadline = time.monotonic() + REPLY_SECONDS
        while any(connection.waiting for connection in connections):
            if any(connection.closed for connection in connections):
                raise Failed("the broker closed the connection")
            if time.monotonic() > deadline:
                raise Failed(f"no answer within {REPLY_SECONDS} s")
            self.turn(1)

    def close(self) -> None:
        for connection in self._all:
            connection.sock.close()
        self._selector.close()
