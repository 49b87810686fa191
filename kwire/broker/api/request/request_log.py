"""The log of a node's last requests, in a ring of slots of equal size.

A request is logged before it is handled. Duration and response size are added when the response is sent. The
slots are in the memory of the process, or in a mapped file that survives the process
(`broker.observe.ring_file`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

    from kwire.wire.primitives import Buffer
    from kwire.wire.registry import RequestHeader

SLOTS: Final = 1_000
CLIENT_BYTES: Final = 64
PEER_BYTES: Final = 46
"""The length of the longest IPv6 address as text."""
NO_RESPONSE: Final = -1.0
_SLOT: Final = Struct(f"<qqddqqihh{CLIENT_BYTES + PEER_BYTES}s")
_RESPONSE: Final = Struct("<qd")
"""The part of a slot that is written with the response: response size in bytes, and duration in seconds."""
_RESPONSE_OFFSET: Final = 8
_SLOT_BYTES: Final = _SLOT.size
SLOTS_BYTES: Final = SLOTS * _SLOT_BYTES


class LoggedRequest(NamedTuple):
    received_s: float
    """The time at which the request was received, in seconds of the node's clock."""
    seconds: float | None
    """The time from then until the request was completed and its response queued; None before that."""
    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str | None
    """The client id, truncated to `CLIENT_BYTES`; None if the request has no client id or an empty one."""
    peer_host: str
    size_bytes: int
    response_bytes: int

    @property
    def request_id(self) -> str:
        """The request's connection and correlation id, for example `17-42`."""
        return request_id(self.connection, self.correlation_id)


def request_id(connection: int, correlation_id: int) -> str:
    """Return the connection and the correlation id, for example `17-42`, to identify a request in logs."""
    return f"{connection}-{correlation_id}"


def client_bytes(client_id: str | None, peer_host: str) -> bytes:
    """Return the client id and the address as slots contain them: each truncated, the client id padded."""
    client = (client_id or "").encode()[:CLIENT_BYTES]
    return client.ljust(CLIENT_BYTES, b"\0") + peer_host.encode()[:PEER_BYTES]


class RequestLog:
    """The log of the last requests of a running node."""

    __slots__ = ("_at", "_count", "_slots")

    def __init__(self) -> None:
        self._count = 0
        self._slots: bytearray | mmap = bytearray(SLOTS_BYTES)
        self._at = 0

    def move_to(self, slots: bytearray | mmap, at: int) -> None:
        """Move the log to another buffer. There it takes `SLOTS_BYTES` bytes, starting at byte `at`."""
        slots[at : at + SLOTS_BYTES] = self._slots[self._at : self._at + SLOTS_BYTES]
        self._slots, self._at = slots, at

    def move_to_memory(self) -> None:
        self.move_to(bytearray(SLOTS_BYTES), 0)

    def begin(
        self, header: RequestHeader, client: bytes, connection: int, size_bytes: int, received_s: float
    ) -> int:
        """Log a request before it is handled. Return its number. `client` is from `client_bytes`."""
        self._count = number = self._count + 1
        api_key, api_version, correlation_id, _, _ = header
        _SLOT.pack_into(
            self._slots,
            self._at + number % SLOTS * _SLOT_BYTES,
            number,
            0,
            NO_RESPONSE,
            received_s,
            connection,
            size_bytes,
            correlation_id,
            api_key,
            api_version,
            client,
        )
        return number

    def finish(self, number: int, response_bytes: int, seconds: float) -> bool:
        """Log the end of a request. Return False if a later request has reused the request's slot."""
        if self._count - number >= SLOTS:
            return False
        at = self._at + number % SLOTS * _SLOT_BYTES + _RESPONSE_OFFSET
        _RESPONSE.pack_into(self._slots, at, response_bytes, seconds)
        return True

    def has_requests_of_others(self, client_id: str, since: float) -> bool:
        """Return whether a request with another client id was received after `since`, on the node's clock."""
        ours = client_bytes(client_id, "")
        for number in range(self._count, max(0, self._count - SLOTS), -1):
            _, _, _, received_s, _, _, _, _, _, client = _SLOT.unpack_from(
                self._slots, self._at + number % SLOTS * _SLOT_BYTES
            )
            # The slots are not in order of time: a slow request whose slot was reused is logged again.
            if received_s > since and not client.startswith(ours):
                return True
        return False

    def all(self) -> list[LoggedRequest]:
        """Return the requests of the log, the newest one last."""
        return read_slots(self._slots[self._at : self._at + SLOTS_BYTES])


def read_slots(slots: Buffer) -> list[LoggedRequest]:
    """Return the requests in a buffer of `SLOTS_BYTES` bytes, the newest one last."""
    logged = []
    for number, reply, seconds, received_s, connection, size, correlation, key, version, client in sorted(
        _SLOT.iter_unpack(slots)
    ):
        if number:
            client_id, peer_host = (
                text.rstrip(b"\0").decode(errors="replace")
                for text in (client[:CLIENT_BYTES], client[CLIENT_BYTES:])
            )
            took = None if seconds == NO_RESPONSE else seconds
            logged.append(
                LoggedRequest(
                    received_s,
                    took,
                    connection,
                    correlation,
                    key,
                    version,
                    client_id or None,
                    peer_host,
                    size,
                    reply,
                )
            )
    return logged
