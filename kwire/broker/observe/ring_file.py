"""The ring file: the request log in a mapped file, which the kernel keeps when the process is killed.

It is for a killed process, not for a failed machine. The next process on the same data directory reads it.
Logging a request needs no system call.

The file is in shared memory and not in the data directory. There the kernel would write its pages to disk
with those of the logs, and each page would fault in again. That took a fifth of the CPU time of a busy
broker.
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
"""Linux's in-memory file system."""
MAGIC: Final = b"kwirering4"
ANY_MAGIC: Final = MAGIC[:-1]
"""The magic of any version. The header is the same in all versions."""
DIRECTORY_BYTES: Final = 512
_HEAD: Final = Struct(f"<10sqd{DIRECTORY_BYTES}s")
"""Magic, wall-clock time, node clock, and the data directory if it fits."""
_BYTES: Final = _HEAD.size + SLOTS_BYTES


def ring_path(directory: str) -> str:
    """Return the path of a data directory's ring file. OSError: the directory does not exist."""
    found = os.stat(directory)
    if not os.path.isdir(MEMORY):
        return os.path.join(directory, "kwire-flight.ring")
    path_crc = crc32(os.path.realpath(directory).encode())
    return f"{MEMORY}/{PREFIX}{found.st_dev:x}-{found.st_ino:x}-{path_crc:08x}.ring"


def remove_orphans(memory: str = MEMORY) -> None:
    """Remove ring files of killed processes whose data directories are gone, as happens in tests."""
    with suppress(OSError):
        for name in os.listdir(memory):
            if name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_orphan(os.path.join(memory, name))


def _remove_orphan(path: str) -> None:
    """Remove a ring file whose data directory is gone.

    OSError: the file is locked. A directory that is missing here may exist in another container.
    """
    with _open_own(path) as file:
        head = file.read(_HEAD.size)
        if len(head) == _HEAD.size and head.startswith(ANY_MAGIC):
            directory = _HEAD.unpack(head)[-1].rstrip(b"\0")
            if directory and not os.path.isdir(directory):
                flock(file, LOCK_EX | LOCK_NB)
                os.unlink(path)


class RingFile:
    """The ring file of a running node."""

    def __init__(
        self, path: str, requests: RequestLog, *, now_ms: int, clock: float, directory: str = ""
    ) -> None:
        """Create the file and move the log into it. `clock` is the node's clock at `now_ms`. OSError."""
        self.path = path
        self._requests = requests
        # The directory is writable for everyone, so do not follow or take over another user's file.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            # Allocate all of it now: without space later, a write would kill the process with SIGBUS.
            os.posix_fallocate(fd, 0, _BYTES)
            self._map = mmap.mmap(fd, _BYTES)
        except OSError:
            os.unlink(path)
            os.close(fd)
            raise
        self._fd = fd  # open for the life of the node, because it has the lock
        home = os.path.realpath(directory).encode() if directory else b""
        _HEAD.pack_into(self._map, 0, MAGIC, now_ms, clock, home if len(home) <= DIRECTORY_BYTES else b"")
        requests.move_to(self._map, _HEAD.size)

    def remove(self) -> None:
        """Remove the file, because the node has reported its end or has not failed."""
        self._requests.move_to_memory()
        self._map.close()
        os.close(self._fd)
        with suppress(OSError):  # the disk may have failed
            Path(self.path).unlink()


def read_ring(path: str) -> list[tuple[float, LoggedRequest]]:
    """Return the requests of a dead process with their wall-clock times in ms, the newest one last.

    It is empty if the file is not a ring file. OSError.
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
    """Open a ring file of this user. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        yield file
