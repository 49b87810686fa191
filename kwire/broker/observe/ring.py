"""The last requests in a file that is mapped into memory, which the kernel keeps when the process is killed.

A request goes into the next of so many slots of equal size, over the oldest one, before it is handled; how it
was answered is added when the answer has left, so that nobody waits for that. Neither costs a call of the
kernel. Nothing is synced: it is for the death of a process, not of a machine. Whoever starts next reads it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kwire.wire.registry import RequestHeader

SLOTS: Final = 1_000
CLIENT_BYTES: Final = 64
PEER_BYTES: Final = 46
"""An IPv6 address has as many at most."""
MAGIC: Final = b"kwirering3"
UNANSWERED: Final = -1.0
_HEAD: Final = Struct("<10sqd")
_SLOT: Final = Struct(f"<qdqdqqihh{CLIENT_BYTES}s{PEER_BYTES}s")
_ANSWER: Final = Struct("<qd")
"""Of a slot, behind its number and its beginning: bytes of the reply, and seconds."""
_ANSWER_AT: Final = _HEAD.size + 16
_BYTES: Final = _HEAD.size + SLOTS * _SLOT.size


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
    ) -> int:
        """Note a request that is about to be handled. Its number."""
        count = self._count
        self._count = number = count + 1
        _SLOT.pack_into(
            self._map,
            _HEAD.size + count % SLOTS * _SLOT.size,
            number,
            began,
            0,
            UNANSWERED,
            connection,
            size_bytes,
            header.correlation_id,
            header.api_key,
            header.api_version,
            (header.client_id or "").encode(),
            peer_host.encode(),
        )
        return number

    def note(self, number: int, reply_bytes: int, seconds: float) -> None:
        """Note how a request was answered, unless it is none of the last ones any more."""
        if self._count - number < SLOTS:
            at = _ANSWER_AT + (number - 1) % SLOTS * _SLOT.size
            _ANSWER.pack_into(self._map, at, reply_bytes, seconds)

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
    found = []
    for number, began, reply, seconds, connection, size, correlation, key, version, client, peer in sorted(
        _SLOT.iter_unpack(content[_HEAD.size :])
    ):
        if number:
            client_id, peer_host = (text.rstrip(b"\0").decode(errors="replace") for text in (client, peer))
            time_ms = now_ms + 1000 * (began - clock)
            took = None if seconds == UNANSWERED else seconds
            found.append(
                Noted(time_ms, took, connection, correlation, key, version, client_id, peer_host, size, reply)
            )
    return found
