"""A broker with TLS, and the client of the command `openssl`: KeyUpdate and renegotiation.

A line of the input with one of the letters k, K or R is a command to `openssl s_client`.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kwire.testing import Broker
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.registry import decode_response, encode_request

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the command openssl is not installed"
)

TIMEOUT_SECONDS = 10
VERSION = 3
FIRST_ID = 0x5EED0000
"""The first correlation id, by which a response is found in the output of `openssl`."""
LETTERS = (b"k", b"K", b"K", b"k", b"K")
KEY_UPDATE = b"<<< TLS 1.3, Handshake [length 0005], KeyUpdate"
PATIENCE_SECONDS = 0.01


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tls=True) as running:
        yield running


class OpensslClient:
    """A process of `openssl s_client`, whose input and output are frames."""

    def __init__(self, broker: Broker, directory: Path, *arguments: str) -> None:
        self._directory = directory
        self._next_id = FIRST_ID
        command = ["openssl", "s_client", "-connect", broker.bootstrap_servers, "-brief", *arguments]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-msg", "-msgfile", str(self._messages)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
            )

    @property
    def _output(self) -> Path:
        return self._directory / "output"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    @property
    def _messages(self) -> Path:
        return self._directory / "messages"

    def count_messages(self, kind: bytes) -> int:
        return self._messages.read_bytes().count(kind)

    def write(self, data: bytes) -> None:
        """Write bytes that `openssl` reads with one call, because it has read all earlier ones."""
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), data)

    def command(self, letter: bytes, reported: bytes) -> None:
        """Give a command, and wait until `openssl` has reported it."""
        count = self._log.read_bytes().count(reported)
        self.write(letter + b"\n")
        self._until(lambda: self._log.read_bytes().count(reported) > count)

    def request(self) -> ApiVersionsResponse:
        """Send a request and return its response."""
        self._next_id += 1
        request = ApiVersionsRequest(client_software_name="openssl", client_software_version="1")
        self.write(encode_request(request, VERSION, self._next_id, "openssl"))
        start = struct.pack(">i", self._next_id)

        def response() -> bytes | None:
            before, found, after = self._output.read_bytes().partition(start)
            size = int.from_bytes(before[-4:], "big")
            return found + after[: size - 4] if found and len(found + after) >= size else None

        self._until(lambda: response() is not None)
        frame = response()
        assert frame is not None
        _, decoded = decode_response(ApiVersionsResponse, VERSION, frame)
        assert isinstance(decoded, ApiVersionsResponse)
        return decoded

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < end, self._log.read_text()
            assert self.process.poll() is None or condition(), self._log.read_text()
            time.sleep(PATIENCE_SECONDS)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(TIMEOUT_SECONDS)


Connect = Callable[..., OpensslClient]


@pytest.fixture
def connect(broker: Broker, tmp_path: Path) -> Iterator[Connect]:
    clients: list[OpensslClient] = []

    def new(*arguments: str) -> OpensslClient:
        directory = tmp_path / str(len(clients))
        directory.mkdir()
        clients.append(OpensslClient(broker, directory, *arguments))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


def test_requests_continue_after_key_updates(connect: Connect) -> None:
    client = connect("-tls1_3")
    assert client.request().error_code == 0
    for letter in LETTERS:
        client.command(letter, b"KEYUPDATE")
        assert client.request().error_code == 0
    # K requests new keys of the other side, too.
    assert client.count_messages(KEY_UPDATE) == LETTERS.count(b"K")


def test_renegotiation_ends_only_its_connection(connect: Connect) -> None:
    other, client = connect("-tls1_2"), connect("-tls1_2")
    assert other.request().error_code == client.request().error_code == 0
    client.command(b"R", b"RENEGOTIATING")
    assert client.process.wait(TIMEOUT_SECONDS) != 0
    assert other.request().error_code == 0
    assert connect("-tls1_2").request().error_code == 0
