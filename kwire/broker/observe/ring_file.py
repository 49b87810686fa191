"""The last requests in a file that is mapped into memory, which the kernel keeps when the process is killed.

It is for the death of a process, not of a machine: who starts next on the same directory reads it. What is
logged there costs no call of the kernel.

So it lies in memory, and not in the data directory. There the kernel writes its pages back with those of the
logs and has each be faulted in again, which took a fifth of a busy broker's processor time.
"""

from __future__ import annotations

import mmap
import os
import stat
from binascii import crc32
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO, Final

from kwire.broker.api.request.request_log import SLOTS_BYTES, LoggedRequest, read_slots

if TYPE_CHECKING:
    from kwire.broker.api.request.request_log import RequestLog

PREFIX: Final = "kwire-flight-"
MEMORY: Final = "/dev/shm"
"""A file system of Linux that no disk is behind."""
MAGIC: Final = b"kwirering4"
ANY_MAGIC: Final = MAGIC[:-1]
"""That of any version; all begin with the same head."""
DIRECTORY_BYTES: Final = 512
_HEAD: Final = Struct(f"<10sqd{DIRECTORY_BYTES}s")
"""With the data directory, where it fits."""
_BYTES: Final = _HEAD.size + SLOTS_BYTES


def ring_path(directory: str) -> str:
    """The path of the ring of whoever runs on this data directory. OSError: there is no such directory."""
    found = os.stat(directory)
    if not os.path.isdir(MEMORY):
        return os.path.join(directory, "kwire-flight.ring")
    told = crc32(os.path.realpath(directory).encode())
    return f"{MEMORY}/{PREFIX}{found.st_dev:x}-{found.st_ino:x}-{told:08x}.ring"


def remove_orphans(memory: str = MEMORY) -> None:
    """Remove the rings of processes that were killed and whose data directories are gone, as in tests."""
    with suppress(OSError):
        for name in os.listdir(memory):
            if name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_orphan(os.path.join(memory, name))


def _remove_orphan(path: str) -> None:
    """OSError, for one that somebody holds as well: what is gone here may be there in another container."""
    with _open_own(path) as file:
        head = file.read(_HEAD.size)
        if len(head) == _HEAD.size and head.startswith(ANY_MAGIC):
            directory = _HEAD.unpack(head)[-1].rstrip(b"\0")
            if directory and not os.path.isdir(directory):
                flock(file, LOCK_EX | LOCK_NB)
                os.unlink(path)


class RingFile:
    """The ring of a node that runs."""

    def __init__(
        self, path: str, requests: RequestLog, *, now_ms: int, clock: float, directory: str = ""
    ) -> None:
        """Make the file, and have the requests in it. `clock`: what theirs says at `now_ms`. OSError."""
        self.path = path
        self._requests = requests
        # Where everybody may make files nobody else's is followed or taken over.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            # All of it now: where there is no room later, a note would end the process by SIGBUS.
            os.posix_fallocate(fd, 0, _BYTES)
            self._map = mmap.mmap(fd, _BYTES)
        except OSError:
            os.unlink(path)
            os.close(fd)
            raise
        self._fd = fd  # as long as it is open it is locked: somebody lives here
        home = os.path.realpath(directory).encode() if directory else b""
        _HEAD.pack_into(self._map, 0, MAGIC, now_ms, clock, home if len(home) <= DIRECTORY_BYTES else b"")
        requests.move_to(self._map, _HEAD.size)

    def remove(self) -> None:
        """The node ends in a way of which it tells itself, or of which there is nothing to tell."""
        self._requests.move_to_memory()
        self._map.close()
        os.close(self._fd)
        with suppress(OSError):  # its disk may be why
            Path(self.path).unlink()


def read_ring(path: str) -> list[tuple[float, LoggedRequest]]:
    """What a process that has died logged there, the newest one last, and when in ms of wall-clock time.

    Nothing where it is no ring. OSError.
    """
    with _open_own(path) as file:
        content = file.read(_BYTES + 1)
    if len(content) != _BYTES or not content.startswith(MAGIC):
        return []
    _, now_ms, clock, _ = _HEAD.unpack_from(content)
    return [
        (now_ms + 1000 * (logged.received_s - clock), logged) for logged in read_slots(content[_HEAD.size :])
    ]


@contextmanager
def _open_own(path: str) -> Iterator[BinaryIO]:
    """A ring that this user has written. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} is somebody else's")
        yield file
