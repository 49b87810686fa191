"""The ring file: the request log in a mapped file, which the kernel keeps when the process is killed.

The ring file survives the end of the process, but not of the machine. The next process with the same log
directory reads the file. Logging a request needs no system call.

The file is in shared memory and not in the log directory. In the log directory, the kernel would write the
file's pages to disk together with those of the logs, and each page would then cause another page fault. In a
busy broker, this took a fifth of the CPU time.
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
from kwire.host.platform.files import allocate
from kwire.host.platform.processes import SHARED_MEMORY

if TYPE_CHECKING:
    from kwire.broker.api.request.request_log import RequestLog

PREFIX: Final = "kwire-flight-"
MEMORY: Final = SHARED_MEMORY
"""The in-memory file system. Without one, the ring file is in the log directory."""
MAGIC: Final = b"kwirering4"
ANY_MAGIC: Final = MAGIC[:-1]
"""The magic without the version. The header has the same form in all versions."""
DIRECTORY_BYTES: Final = 512
_HEAD: Final = Struct(f"<10sqd{DIRECTORY_BYTES}s")
"""The header: magic, wall-clock time (ms), node clock (s), and the log directory if it is short enough."""
_BYTES: Final = _HEAD.size + SLOTS_BYTES


def ring_path(directory: str) -> str:
    """Return the path of a log directory's ring file. Raises OSError if the directory does not exist."""
    found = os.stat(directory)
    if not os.path.isdir(MEMORY):
        return os.path.join(os.path.realpath(directory), "kwire-flight.ring")
    path_crc = crc32(os.path.realpath(directory).encode())
    return f"{MEMORY}/{PREFIX}{found.st_dev:x}-{found.st_ino:x}-{path_crc:08x}.ring"


def remove_orphans(memory: str = MEMORY) -> None:
    """Remove ring files of killed processes whose log directories were deleted, for example after tests."""
    with suppress(OSError):
        for name in os.listdir(memory):
            if name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_orphan(os.path.join(memory, name))


def _remove_orphan(path: str) -> None:
    """Remove a ring file if its log directory no longer exists.

    Raises OSError if another process has locked the file: the directory may exist in another container.
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
        """Create the file and move the request log into it.

        `clock` is the time of the node's clock in seconds at the wall-clock time `now_ms`. `directory` is the
        log directory. Raises OSError if the file exists or memory is short.
        """
        self.path = path
        self._requests = requests
        # All users can write to shared memory, so do not follow or take over another user's file.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            # Allocate all blocks now: if a later write found no space, SIGBUS would kill the process.
            allocate(fd, _BYTES)
            self._map = mmap.mmap(fd, _BYTES)
        except OSError:
            os.unlink(path)
            os.close(fd)
            raise
        self._fd = fd  # stays open as long as the node runs, because it holds the lock
        home = os.path.realpath(directory).encode() if directory else b""
        _HEAD.pack_into(self._map, 0, MAGIC, now_ms, clock, home if len(home) <= DIRECTORY_BYTES else b"")
        requests.move_to(self._map, _HEAD.size)

    def remove(self) -> None:
        """Remove the file, because the node's failure was reported or the node has not failed."""
        self._requests.move_to_memory()
        self._map.close()
        os.close(self._fd)
        with suppress(OSError):  # the disk may have failed
            Path(self.path).unlink()


def read_ring(path: str) -> list[tuple[float, LoggedRequest]]:
    """Return a dead process's requests with their wall-clock times in ms, the newest one last.

    The result is empty if the file is not a ring file of this version. Raises OSError if it cannot be read.
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
    """Open a ring file. Raises OSError if the file does not belong to this user."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        yield file
