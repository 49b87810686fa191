"""The last requests in a file that is mapped into memory, which the kernel keeps when the process is killed.

A request goes into the next of so many slots of equal size, over the oldest one, before it is handled; how it
was answered is added when the answer has left, so that nobody waits for that. Neither costs a call of the
kernel. It is for the death of a process, not of a machine: who starts next on the same directory reads it.

So it lies in memory, and not in the data directory. There the kernel writes its pages back with those of the
logs and has each be faulted in again, which took a fifth of a busy broker's processor time.
"""

from __future__ import annotations

import mmap
import os
import stat
from binascii import crc32
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
PREFIX: Final = "kwire-flight-"
MEMORY: Final = "/dev/shm"
"""A file system of Linux that no disk is behind."""
MAGIC: Final = b"kwirering3"
UNANSWERED: Final = -1.0
DIRECTORY_BYTES: Final = 512
_HEAD: Final = Struct(f"<10sqd{DIRECTORY_BYTES}s")
"""With the data directory, where it fits."""
_SLOT: Final = Struct(f"<qdqdqqihh{CLIENT_BYTES}s{PEER_BYTES}s")
_ANSWER: Final = Struct("<qd")
"""Of a slot, behind its number and its beginning: bytes of the reply, and seconds."""
_ANSWER_AT: Final = _HEAD.size + 16
_BYTES: Final = _HEAD.size + SLOTS * _SLOT.size


def ring_of(directory: str) -> str:
    """The path of the ring of whoever runs on this data directory. OSError: there is no such directory."""
    found = os.stat(directory)
    if not os.path.isdir(MEMORY):
        return os.path.join(directory, "kwire-flight.ring")
    told = crc32(os.path.realpath(directory).encode())
    return f"{MEMORY}/{PREFIX}{found.st_dev:x}-{found.st_ino:x}-{told:08x}.ring"


def forget_orphans(memory: str = MEMORY) -> None:
    """Remove the rings of processes that were killed and whose data directories are gone, as in tests."""
    with suppress(OSError):
        for name in os.listdir(memory):
            path = os.path.join(memory, name)
            if name.startswith(PREFIX):
                with suppress(OSError):
                    head = _content(path, _HEAD.size)
                    if len(head) == _HEAD.size and head.startswith(MAGIC):
                        directory = _HEAD.unpack(head)[-1].rstrip(b"\0")
                        if directory and not os.path.isdir(directory):
                            os.unlink(path)


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

    def __init__(self, path: str, *, now_ms: int, clock: float, directory: str = "") -> None:
        """Make the file. `clock` is what the clock of the answers says at `now_ms`. OSError."""
        self.path = path
        self._count = 0
        # Where everybody may make files nobody else's is followed or taken over.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # All of it now: where there is no room later, a note would end the process by SIGBUS.
            os.posix_fallocate(fd, 0, _BYTES)
            self._map = mmap.mmap(fd, _BYTES)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        home = os.path.realpath(directory).encode() if directory else b""
        _HEAD.pack_into(self._map, 0, MAGIC, now_ms, clock, home if len(home) <= DIRECTORY_BYTES else b"")

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
    content = _content(path)
    if len(content) != _BYTES or not content.startswith(MAGIC):
        return []
    _, now_ms, clock, _ = _HEAD.unpack_from(content)
    noted = []
    for number, began, reply, seconds, connection, size, correlation, key, version, client, peer in sorted(
        _SLOT.iter_unpack(content[_HEAD.size :])
    ):
        if number:
            client_id, peer_host = (text.rstrip(b"\0").decode(errors="replace") for text in (client, peer))
            time_ms = now_ms + 1000 * (began - clock)
            took = None if seconds == UNANSWERED else seconds
            noted.append(
                Noted(time_ms, took, connection, correlation, key, version, client_id, peer_host, size, reply)
            )
    return noted


def _content(path: str, most_bytes: int = _BYTES + 1) -> bytes:
    """Of a ring that this user has written. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} is somebody else's")
        return file.read(most_bytes)
