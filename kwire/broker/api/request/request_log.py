"""The last requests of a node, in a ring of slots of equal size.

A request is written before it is handled, and its duration and response size when the response is sent. The
slots are memory of the process, or a mapped file that survives the process (`broker.observe.ring_file`).
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
"""The longest text of an IPv6 address."""
NO_RESPONSE: Final = -1.0
_SLOT: Final = Struct(f"<qqddqqihh{CLIENT_BYTES + PEER_BYTES}s")
_RESPONSE: Final = Struct("<qd")
"""The part of a slot after its number: response bytes and seconds."""
_RESPONSE_OFFSET: Final = 8
_SLOT_BYTES: Final = _SLOT.size
SLOTS_BYTES: Final = SLOTS * _SLOT_BYTES


class LoggedRequest(NamedTuple):
    """One request of the log."""

    received_s: float
    """When it was received, in seconds of the node's clock."""
    seconds: float | None
    """From then until the response was passed on for sending; None if there was no response."""
    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str | None
    """Truncated to `CLIENT_BYTES`; None also if it is empty."""
    peer_host: str
    size_bytes: int
    response_bytes: int

    @property
    def request_id(self) -> str:
        """The id of the request in log lines."""
        return request_id(self.connection, self.correlation_id)


def request_id(connection: int, correlation_id: int) -> str:
    """Return the id of a request in log lines and in the flight recorder."""
    return f"{connection}-{correlation_id}"


def client_bytes(client_id: str | None, peer_host: str) -> bytes:
    """Return the client id and the address as slots have them."""
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
        """Move the log to another buffer, where it takes `SLOTS_BYTES` from byte `at` on."""
        slots[at : at + SLOTS_BYTES] = self._slots[self._at : self._at + SLOTS_BYTES]
        self._slots, self._at = slots, at

    def move_to_memory(self) -> None:
        """Move the log to memory of this process."""
        self.move_to(bytearray(SLOTS_BYTES), 0)

    def begin(
        self, header: RequestHeader, client: bytes, connection: int, size_bytes: int, received_s: float
    ) -> int:
        """Log a request before it is handled, and return its number. `client` is from `client_bytes`."""
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
        """Log the response to a request. Return False if its slot has been reused."""
        if self._count - number >= SLOTS:
            return False
        at = self._at + number % SLOTS * _SLOT_BYTES + _RESPONSE_OFFSET
        _RESPONSE.pack_into(self._slots, at, response_bytes, seconds)
        return True

    def has_requests_of_others(self, client_id: str, since: float) -> bool:
        """Return whether the log has a request of any other client since then."""
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
        """Return the requests, the newest one last."""
        return read_slots(self._slots[self._at : self._at + SLOTS_BYTES])


def read_slots(slots: Buffer) -> list[LoggedRequest]:
    """Return the requests in `SLOTS_BYTES`, the newest one last."""
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
