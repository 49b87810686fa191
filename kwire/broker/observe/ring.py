"""The last answers in a file that is mapped into memory, which the kernel keeps when the process is killed.

A note goes into the next of so many slots of equal size, over the oldest one, and costs no call of the
kernel. Nothing is synced: it is for the death of a process, not of a machine. Whoever starts next reads it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kwire.broker.api.answered import Fields

SLOTS: Final = 1_000
CLIENT_BYTES: Final = 64
PEER_BYTES: Final = 46
"""An IPv6 address has as many at most."""
MAGIC: Final = b"kwirering1"
_HEAD: Final = Struct("<10sqd")
_SLOT: Final = Struct(f"<qddqqqihh{CLIENT_BYTES}s{PEER_BYTES}s")
_BYTES: Final = _HEAD.size + SLOTS * _SLOT.size


class Noted(NamedTuple):
    """One answer that was noted. What a client calls itself is cut to `CLIENT_BYTES`."""

    time_ms: float
    """When its request came in, in wall-clock time."""
    seconds: float
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

    def note(self, answer: Fields) -> None:
        """Note an answer, as `Answered` keeps it."""
        header, peer_host, connection, size_bytes, reply_bytes, began, seconds = answer
        count = self._count
        self._count = count + 1
        _SLOT.pack_into(
            self._map,
            _HEAD.size + count % SLOTS * _SLOT.size,
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
    found = []
    for count, began, seconds, connection, size, reply, correlation, key, version, client, peer in sorted(
        _SLOT.iter_unpack(content[_HEAD.size :])
    ):
        if count:
            client_id, peer_host = (text.rstrip(b"\0").decode(errors="replace") for text in (client, peer))
            time_ms = now_ms + 1000 * (began - clock)
            found.append(
                Noted(
                    time_ms, seconds, connection, correlation, key, version, client_id, peer_host, size, reply
                )
            )
    return found
