"""The last requests of a node, in slots of equal size: each goes over the oldest one.

A request is logged before it is handled, and how it was answered when its reply leaves. What holds the slots
may be memory of the process or, so that they outlive it, a file that is mapped (`broker.observe.ring`).
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
"""An IPv6 address has as many at most."""
NO_RESPONSE: Final = -1.0
_SLOT: Final = Struct(f"<qqddqqihh{CLIENT_BYTES + PEER_BYTES}s")
_RESPONSE: Final = Struct("<qd")
"""Of a slot, behind its number: bytes of the reply, and seconds."""
_RESPONSE_OFFSET: Final = 8
_SLOT_BYTES: Final = _SLOT.size
SLOTS_BYTES: Final = SLOTS * _SLOT_BYTES


class LoggedRequest(NamedTuple):
    """One request that was logged."""

    received_s: float
    """When it came in, in seconds of the clock that the node counts by."""
    seconds: float | None
    """From then until its reply was handed over to be sent; None where it was not answered."""
    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str | None
    """Cut to `CLIENT_BYTES`; None where it is empty, too."""
    peer_host: str
    size_bytes: int
    reply_bytes: int

    @property
    def request_id(self) -> str:
        """See `request_id`."""
        return request_id(self.connection, self.correlation_id)


def request_id(connection: int, correlation_id: int) -> str:
    """By what the log and the flight recorder name a request."""
    return f"{connection}-{correlation_id}"


def client_bytes(client_id: str | None, peer_host: str) -> bytes:
    """Who client, as slots have it."""
    client = (client_id or "").encode()[:CLIENT_BYTES]
    return client.ljust(CLIENT_BYTES, b"\0") + peer_host.encode()[:PEER_BYTES]


class RequestLog:
    """Those of a node that runs."""

    __slots__ = ("_at", "_count", "_slots")

    def __init__(self) -> None:
        self._count = 0
        self._slots: bytearray | mmap = bytearray(SLOTS_BYTES)
        self._at = 0

    def move_to(self, slots: bytearray | mmap, at: int) -> None:
        """Have them there from now on, from byte `at` on, where `SLOTS_BYTES` are taken."""
        slots[at : at + SLOTS_BYTES] = self._slots[self._at : self._at + SLOTS_BYTES]
        self._slots, self._at = slots, at

    def move_to_memory(self) -> None:
        """Have them in the memory of this process from now on."""
        self.move_to(bytearray(SLOTS_BYTES), 0)

    def begin(
        self, header: RequestHeader, client: bytes, connection: int, size_bytes: int, received_s: float
    ) -> int:
        """Note a request that is about to be handled. Its number. `client`: see `client_bytes`."""
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

    def finish(self, number: int, reply_bytes: int, seconds: float) -> bool:
        """Note how a request was answered; False where its slot is another's by now."""
        if self._count - number >= SLOTS:
            return False
        at = self._at + number % SLOTS * _SLOT_BYTES + _RESPONSE_OFFSET
        _RESPONSE.pack_into(self._slots, at, reply_bytes, seconds)
        return True

    def has_requests_of_others(self, client_id: str, since: float) -> bool:
        """Whether anybody but this client has asked since then, of the requests that are kept."""
        ours = client_bytes(client_id, "")
        for number in range(self._count, max(0, self._count - SLOTS), -1):
            _, _, _, received_s, _, _, _, _, _, client = _SLOT.unpack_from(
                self._slots, self._at + number % SLOTS * _SLOT_BYTES
            )
            # Not in their order: one that has waited is logged anew where its slot has gone to another.
            if received_s > since and not client.startswith(ours):
                return True
        return False

    def all(self) -> list[LoggedRequest]:
        """The newest one last."""
        return read_slots(self._slots[self._at : self._at + SLOTS_BYTES])


def read_slots(slots: Buffer) -> list[LoggedRequest]:
    """What is in `SLOTS_BYTES`, the newest one last."""
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
