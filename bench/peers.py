"""Many clients in one loop: each a raw connection with one request under way, so that they cost little."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from types import TracebackType

from bench.brokers import Broker

CONNECT_SECONDS = 60


class Peer:
    """One connection."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.received = b""


class Peers:
    """Connections by number, closed with the block."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._poll = select.epoll()
        self._by_fd: dict[int, Peer] = {}
        self._peers: list[Peer] = []
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", broker.port), timeout=CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # With a timeout each call would ask first whether it may go on: two more system calls a request.
            connection.setblocking(False)
            peer = Peer(number, connection)
            self._peers.append(peer)
            self._by_fd[connection.fileno()] = peer
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poll.close()
        for peer in self._peers:
            peer.connection.close()

    def send(self, number: int, request: bytes | bytearray) -> None:
        self._peers[number].connection.sendall(request)

    def answers(self, timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Whole answers that are there within the time, behind their correlation ids; none if it passes."""
        for fd, _ in self._poll.poll(timeout_s):
            peer = self._by_fd[fd]
            data = peer.connection.recv(1 << 20)
            if not data:
                raise RuntimeError("the broker closed a connection")
            data = peer.received + data
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                yield peer.number, data[8:end]
                data = data[end:]
            peer.received = data


def request(key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A whole request without client id."""
    head = struct.pack(">hhih", key, version, 0, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def unsigned(number: int) -> bytes:
    """A varint of a number that is not negative."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def compact(value: str) -> bytes:
    data = value.encode()
    return unsigned(len(data) + 1) + data


class Reader:
    """Fields of an answer, in turn."""

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

    def text(self) -> str:
        return self.take(max(0, self.int16())).decode()

    def unsigned(self) -> int:
        number, shift = 0, 0
        while (byte := self.take(1)[0]) > 127:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def compact(self) -> str:
        return self.take(max(0, self.unsigned() - 1)).decode()
