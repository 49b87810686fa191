"""A transport layer that XORs bytes, with a handshake and with bytes left over, like TLS."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

import trio

from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.host.platform.events import READABLE, WRITABLE
from kwire.host.system_socket import Socket
from kwire.wire.primitives import Buffer

HELLO = b"XOR!"
"""The bytes that each side sends first. A transport layer sends one of them per step of the handshake."""
RECORD_BYTES = 16 << 10
WINDOW_BYTES = 128 << 10
_TABLE = bytes(byte ^ 0x5A for byte in range(256))


def xor(data: Buffer) -> bytes:
    return bytes(data).translate(_TABLE)


class XorTransportLayer:
    """Hands out at most 16 KiB at a time, and takes all that the socket has."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._unsent_hello = HELLO
        self._hello = b""
        self._received = bytearray()
        self._plain = b""
        """The bytes that the caller has given, and that are not counted as sent."""
        self._encrypted = b""
        """Their encrypted bytes that the socket has not taken."""
        self.steps = 0

    @property
    def has_more(self) -> bool:
        return bool(self._received)

    def peer_principal(self) -> Principal:
        return ANONYMOUS

    def handshake(self) -> int:
        self.steps += 1
        if self._unsent_hello:
            self._sock.send(self._unsent_hello[:1])
            self._unsent_hello = self._unsent_hello[1:]
        if len(self._hello) < len(HELLO):
            try:
                received = self._sock.recv(1 << 16)
                if not received:
                    raise OSError(errno.ECONNRESET, "no hello")
                self._hello += received
            except BlockingIOError:
                pass
            if not HELLO.startswith(self._hello[: len(HELLO)]):
                raise OSError(errno.EPROTO, "not a hello")
            self._received += xor(self._hello[len(HELLO) :])
            self._hello = self._hello[: len(HELLO)]
        missing = len(self._hello) < len(HELLO)
        return (WRITABLE if self._unsent_hello else 0) | (READABLE if missing else 0)

    def receive_into(self, buffer: bytearray | memoryview, /) -> int:
        if not self._received:
            self._received += xor(self._sock.recv(1 << 17))
        count = min(len(buffer), len(self._received), RECORD_BYTES)
        buffer[:count] = self._received[:count]
        del self._received[:count]
        return count

    def send(self, data: Buffer, /) -> int:
        if self._plain:
            assert bytes(data[: len(self._plain)]) == self._plain, "the caller continues with other bytes"
        else:
            self._plain = bytes(data[:WINDOW_BYTES])
            self._encrypted = xor(self._plain)
        while self._encrypted:
            self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]
        sent, self._plain = len(self._plain), b""
        return sent

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        return self.send(b"".join(buffers))

    def send_region(self, fd: int, position: int, count: int, /) -> int:
        return self.send(os.pread(fd, min(count, WINDOW_BYTES), position))

    def close(self) -> None:
        self._sock.close()


class XorStream:
    """The client's end of a connection, for the blocking calls of tests."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._unchecked = len(HELLO)

    async def send_all(self, data: Any) -> None:
        await self.stream.send_all(xor(data))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while self._unchecked:
            hello = await self.stream.receive_some(self._unchecked)
            assert hello, "closed during the handshake"
            assert HELLO[-self._unchecked :].startswith(bytes(hello))
            self._unchecked -= len(hello)
        return xor(await self.stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await self.stream.aclose()
