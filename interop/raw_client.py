"""A client that sends exactly the given bytes and returns the broker's response."""

from __future__ import annotations

import socket
import struct
from typing import Any

from interop.wire import Fields, decode_response, encode_request
from kwire.wire.plural import plural

TIMEOUT_S = 15.0


class RawClient:
    """One connection to a broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def read_exactly(self, size: int) -> bytes:
        """Read exactly `size` bytes.

        Raises EOFError if the broker closes the connection first.
        """
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError(f"closed after {len(data)} of {plural(size, 'byte')}")
            data += piece
        return bytes(data)

    def read_frame(self) -> bytes:
        return self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])

    def send(self, api: str, version: int, **fields: Any) -> int:
        """Send a request and return its correlation id."""
        self.correlation_id += 1
        self.send_frame(encode_request(api, version, fields, correlation_id=self.correlation_id))
        return self.correlation_id

    def receive(self, api: str, version: int) -> Fields:
        return decode_response(api, version, self.read_frame())[1]

    def call(self, api: str, version: int, **fields: Any) -> Fields:
        expected = self.send(api, version, **fields)
        correlation_id, body = decode_response(api, version, self.read_frame())
        assert correlation_id == expected, (correlation_id, expected)
        return body

    def outcome(self, frame: bytes, api: str, version: int) -> Any:
        """Send these bytes as a frame. Return the decoded response, ``closed`` or ``silence`` (a timeout)."""
        self.send_frame(frame)
        return self.answer(api, version)

    def answer(self, api: str, version: int) -> Any:
        try:
            return decode_response(api, version, self.read_frame())[1]
        except EOFError:
            return "closed"
        except TimeoutError:
            return "silence"
