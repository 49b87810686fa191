"""The last requests in a file that is mapped into memory, which the kernel keeps when the process is killed.

An answer's note goes into the next of so many slots of equal size, over the oldest one, and costs no call of
the kernel. It is made when the answer has left, so that nobody waits for it; so the request that was taken up
last has a place of its own, which is written before it is handled. Nothing is synced: it is for the death of
a process, not of a machine. Whoever starts next reads it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kwire.broker.api.answered import Fields
    from kwire.wire.registry import RequestHeader

SLOTS: Final = 1_000
CLIENT_BYTES: Final = 64
PEER_BYTES: Final = 46
"""An IPv6 address has as many at most."""
MAGIC: Final = b"kwirering2"
_HEAD: Final = Struct("<10sqd")
_TAKEN_UP: Final = Struct(f"<dqqihh{CLIENT_BYTES}s{PEER_BYTES}s")
_SLOT: Final = Struct(f"<qddqqqihh{CLIENT_BYTES}s{PEER_BYTES}s")
_FIRST_SLOT: Final = _HEAD.size + _TAKEN_UP.size
_BYTES: Final = _FIRST_SLOT + SLOTS * _SLOT.size


class Noted(NamedTuple):
    """One request that was noted. What a client calls itself is cut to `CLIENT_BYTES`."""

    time_ms: float
    """When its request came in, in wall-clock time."""
    seconds: float | None
    """Until its answer; None where none was noted."""
    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str
    peer_host: str
    size_bytes: int
    reply_bytes: int


class Ring:
    """The ring of a node that runs."""

    def __init__(self, path: str, *, now_ms: int, clock: float) -> None:
        """Make the file anew. `clock` is what the clock of the answers says at `now_ms`. OSError."""
        self.path = path
        self._count = 0
        with open(path, "w+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        _HEAD.pack_into(self._map, 0, MAGIC, now_ms, clock)

    def take_up(
        self, header: RequestHeader, peer_host: str, connection: int, size_bytes: int, began: float
    ) -> None:
        """Note the request that is handled next, over the one before."""
        _TAKEN_UP.pack_into(
            self._map,
            _HEAD.size,
            began,
            connection,
            size_bytes,
            header.correlation_id,
            header.api_key,
            header.api_version,
            (header.client_id or "").encode(),
            peer_host.encode(),
        )

    def note(self, answer: Fields) -> None:
        """Note an answer, as `Answered` keeps it."""
        header, peer_host, connection, size_bytes, reply_bytes, began, seconds = answer
        count = self._count
        self._count = count + 1
        _SLOT.pack_into(
            self._map,
            _FIRST_SLOT + count % SLOTS * _SLOT.size,
            count + 1,
            began,
            seconds,
            connection,
            size_bytes,
            reply_bytes,
            header.correlation_id,
            header.api_key,
            header.api_version,
            (header.client_id or "").encode(),
            peer_host.encode(),
        )

    def remove(self) -> None:
        """The node ends in a way of which it tells itself, or of which there is nothing to tell."""
        self._map.close()
        with suppress(OSError):  # its disk may be why
            Path(self.path).unlink()


def read_ring(path: str) -> list[Noted]:
    """What a process that has died noted there, the newest one last; nothing where it is no ring. OSError."""
    content = Path(path).read_bytes()
    if len(content) != _BYTES or not content.startswith(MAGIC):
        return []
    _, now_ms, clock = _HEAD.unpack_from(content)

    def noted(
        began: float,
        seconds: float | None,
        connection: int,
        size: int,
        reply: int,
        correlation: int,
        key: int,
        version: int,
        client: bytes,
        peer: bytes,
    ) -> Noted:
        client_id, peer_host = (text.rstrip(b"\0").decode(errors="replace") for text in (client, peer))
        time_ms = now_ms + 1000 * (began - clock)
        return Noted(
            time_ms, seconds, connection, correlation, key, version, client_id, peer_host, size, reply
        )

    found = [noted(*fields) for count, *fields in sorted(_SLOT.iter_unpack(content[_FIRST_SLOT:])) if count]
    began, connection, size, *about = _TAKEN_UP.unpack_from(content, _HEAD.size)
    last = noted(began, None, connection, size, 0, *about)
    answered = {(one.connection, one.correlation_id, one.time_ms) for one in found}
    if connection and (last.connection, last.correlation_id, last.time_ms) not in answered:
        found.append(last)
    return found
