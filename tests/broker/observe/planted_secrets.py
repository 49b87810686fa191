"""Secrets that a test plants, and a broker process whose output is searched for them."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import ssl
import string
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from kwire.broker.security.sasl import SaslClient
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message
from tests.durability.child import ROOT

LETTERS = string.ascii_letters + string.digits
SECRET_LETTERS = 24
WINDOW_BYTES = 12
"""The length of the parts that are searched. A part of a secret is a leak, too."""
TIMEOUT_SECONDS = 20
FAILING = "failing"
"""The client id of requests whose handler fails."""
PROGRAM = f"""
import sys
from kwire.broker.api.dispatch import dispatcher
from kwire.cli.main import main

import_handler = dispatcher.import_handler

def failing_handler(name):
    handler = import_handler(name)

    def handle(node, context, *arguments):
        if context.header.client_id == {FAILING!r}:
            raise ZeroDivisionError("a bug")
        return handler(node, context, *arguments)

    return handle

dispatcher.import_handler = failing_handler
sys.exit(main())
"""
"""`kwire`, with a bug in every handler that is called for the client id `FAILING`."""


class PlantedSecrets:
    """Secrets, and the forms in which a text may contain them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._names: dict[bytes, str] = {}
        """The searched byte strings, with the name of the secret and the form."""

    def text(self, name: str) -> str:
        """Return a new secret text."""
        secret = "".join(self._rng.choices(LETTERS, k=SECRET_LETTERS))
        self.add(name, secret.encode())
        for encoding in ("utf-16-le", "utf-16-be"):
            self._names[secret[:WINDOW_BYTES].encode(encoding)] = f"{name} in {encoding}"
        return secret

    def add(self, name: str, secret: bytes) -> bytes:
        """Search for these bytes, too, and return them."""
        assert len(secret) >= 2 * WINDOW_BYTES
        for at in (0, len(secret) // 2, len(secret) - WINDOW_BYTES):
            for form, needle in _forms(secret[at : at + WINDOW_BYTES]):
                self._names.setdefault(needle, f"{name}[{at}:] in {form}")
        return secret

    def found(self, text: bytes) -> list[str]:
        """Return the names of the secrets in a text, with their forms."""
        return [name for needle, name in self._names.items() if needle in text]


def _forms(part: bytes) -> Iterator[tuple[str, bytes]]:
    yield "plain text", part
    yield "hex", part.hex().encode()
    yield "upper-case hex", part.hex().upper().encode()
    yield "a Python literal", repr(part)[2:-1].encode()
    yield "a list of numbers", str(list(part))[1:-1].encode()
    for before in range(3):
        # The first and the last group of four characters depend on the bytes around the part.
        groups = b64encode(bytes(before) + part)[4 if before else 0 : (before + len(part)) // 3 * 4]
        yield "base64", groups
        yield "URL-safe base64", groups.translate(bytes.maketrans(b"+/", b"-_"))


class KafkaClient:
    """One connection with raw requests. The broker may close the connection instead of responding."""

    def __init__(self, port: int, *, client_id: str = "tester", tls: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._sock = sock if tls is None else tls.wrap_socket(sock, server_hostname="127.0.0.1")
        self._client_id = client_id
        self.received = b""
        """All bytes from the broker."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def call(self, version: int, request: Message) -> Any:
        """Send a request. Return the response, or None if the broker has closed the connection."""
        frame = self.exchange(encode_request(request, version, 7, self._client_id))
        response_class = API_VERSIONS[request.API_KEY].response_class
        return decode_response(response_class, version, frame)[1] if frame else None

    def exchange(self, data: bytes) -> bytes:
        """Send bytes. Return the next frame of the broker, or nothing if the broker closes the connection."""
        frame = b""
        with suppress(ConnectionError, EOFError):
            self._sock.sendall(data)
            frame = self._read(int.from_bytes(self._read(4), "big"))
        self.received += frame
        return frame

    def send_all(self, data: bytes) -> None:
        """Send bytes, close the sending side, and wait until the broker closes the connection."""
        with suppress(ConnectionError):
            self._sock.sendall(data)
            self._sock.shutdown(socket.SHUT_WR)
            while more := self._sock.recv(1 << 16):
                self.received += more

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def authenticate(self, client: SaslClient) -> int:
        """Authenticate with SASL and return the error code."""
        self.call(1, SaslHandshakeRequest(mechanism=client.mechanism))
        message = client.evaluate(b"")
        while message is not None:
            response = self.call(2, SaslAuthenticateRequest(auth_bytes=message))
            if response.error_code:
                return int(response.error_code)
            message = None if client.is_complete else client.evaluate(bytes(response.auth_bytes))
        return 0


class ObservedProcess:
    """A broker process at log level DEBUG, with an HTTP port, the console, and a flight recorder."""

    def __init__(
        self, directory: Path, properties: str, log_format: str, environment: dict[str, str]
    ) -> None:
        self._data = directory / "data"
        self.log_path = directory / f"{log_format}.log"
        path = directory / "server.properties"
        path.write_text(properties)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KWIRE_"))}
        command = [sys.executable, "-c", PROGRAM, "serve", str(path), "--data", str(self._data)]
        command += ["--log-level", "debug", "--log-format", log_format, "--slow-request-ms", "0"]
        command += ["--http", "127.0.0.1:0", "--console"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**kept, **environment}, stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline() + self.process.stdout.readline()
        served = re.findall(rb"127\.0\.0\.1:(\d+)", self.printed)
        if len(served) < 2:
            self.kill()
            raise AssertionError(self.log_path.read_text())
        *self.ports, self.http_port = map(int, served)

    def get(self, path: str, headers: dict[str, str], status: int = 200) -> bytes:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        response = httpx.get(url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)
        assert response.status_code == status, response.text
        return response.content

    def files(self) -> dict[str, bytes]:
        """Return the log and the files of the node, except for the metadata log, which contains secrets."""
        paths = [path for path in self._data.rglob("*") if path.is_file()]
        found = [path for path in paths if path.parent.name != "__cluster_metadata-0"]
        return {str(path): path.read_bytes() for path in [*found, self.log_path]}

    def kill(self) -> None:
        """Kill the process, so that the next start writes its flight record."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self.printed += out
