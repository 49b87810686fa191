"""Many clients in one loop. Each is a raw connection with one request in flight, to save processor time."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from types import TracebackType

from bench.brokers import Broker

CONNECT_SECONDS = 60


class RawConnection:
    """One connection, with the part of a response that has arrived."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.received = b""


class RawConnections:
    """A context manager for connections with the numbers 0 to `count` - 1. It closes them after the block."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._poll = select.epoll()
        self._by_fd: dict[int, RawConnection] = {}
        self._connections: list[RawConnection] = []
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", broker.port), timeout=CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Do not set a timeout, because a timeout would add two system calls per request.
            connection.setblocking(False)
            connection_state = RawConnection(number, connection)
            self._connections.append(connection_state)
            self._by_fd[connection.fileno()] = connection_state
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def __enter__(self) -> RawConnections:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poll.close()
        for connection_state in self._connections:
            connection_state.connection.close()

    def send(self, number: int, request: bytes | bytearray) -> None:
        self._connections[number].connection.sendall(request)

    def responses(self, timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Wait for data, at most `timeout_s`. Yield the responses that are then complete.

        A response is a pair of the connection's number and the bytes after the correlation id.
        Raises RuntimeError if the broker has closed a connection.
        """
        for fd, _ in self._poll.poll(timeout_s):
            connection_state = self._by_fd[fd]
            data = connection_state.connection.recv(1 << 20)
            if not data:
                raise RuntimeError("the broker closed a connection")
            data = connection_state.received + data
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                yield connection_state.number, data[8:end]
                data = data[end:]
            connection_state.received = data


def request(key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """Return a request with its size prefix and header. The client id is null."""
    head = struct.pack(">hhih", key, version, 0, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def nullable_bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def unsigned_varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def compact_string(value: str) -> bytes:
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


class ResponseReader:
    """A decoder of a response's fields, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def string(self) -> str:
        return self.take(max(0, self.int16())).decode()

    def unsigned_varint(self) -> int:
        number, shift = 0, 0
        while (byte := self.take(1)[0]) > 127:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def compact_string(self) -> str:
        return self.take(max(0, self.unsigned_varint() - 1)).decode()
