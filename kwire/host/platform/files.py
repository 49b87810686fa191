"""Operations on files that differ between Linux and macOS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.host.system_os import os

if TYPE_CHECKING:
    import fcntl
else:
    import fcntl as _fcntl
    from types import SimpleNamespace

    # A copy of the module's names, because pyfakefs replaces every attribute that is the module `fcntl`.
    _NAMES = ("F_FULLFSYNC", "F_OFD_SETLK", "F_WRLCK", "LOCK_EX", "LOCK_NB", "fcntl", "flock")
    fcntl = SimpleNamespace(**{name: getattr(_fcntl, name) for name in _NAMES if hasattr(_fcntl, name)})

if sys.platform == "darwin":
    import errno

    NOWAIT: Final = 0
    """The flag of preadv that fails instead of reading from the disk. macOS has none, so reads may block."""
    _NO_FULL_SYNC: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)

    def sync_file(descriptor: int) -> None:
        """Make a file or the names in a directory durable.

        On macOS, fsync only passes the data to the disk, which may keep it in a volatile cache.
        """
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            os.fsync(descriptor)  # network file systems do not support F_FULLFSYNC

    sync_data = sync_file

    def lock_file(descriptor: int) -> None:
        """Lock a file. Raises OSError with EAGAIN or EACCES if the file is already locked.

        The lock belongs to the open file, not to the process. On macOS, it also excludes the locks of fcntl,
        which Apache Kafka uses.
        """
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def allocate(descriptor: int, size: int) -> None:
        """Write zeros to an empty file, so that its blocks exist. Raises OSError."""
        position = 0
        while position < size:
            position += os.pwrite(descriptor, bytes(min(size - position, 1 << 20)), position)

    def read_ahead(descriptor: int, position: int, size: int) -> None:
        """Start to read a part of a file into the page cache, where the system supports that."""

    def anonymous_file(name: str, new_directory: Callable[[], str]) -> int:
        """Return the descriptor of a new file without a path.

        `new_directory` creates a directory, which this function removes.
        """
        directory = new_directory()
        try:
            path = f"{directory}/{name}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
        finally:
            os.rmdir(directory)
        return descriptor

elif sys.platform == "linux":
    from io import SEEK_SET
    from struct import pack

    NOWAIT: Final = os.RWF_NOWAIT
    """The flag of preadv that fails instead of reading from the disk."""
    _WHOLE_FILE: Final = pack("hhqqi0q", fcntl.F_WRLCK, SEEK_SET, 0, 0, 0)
    """The kernel's `struct flock` for a lock on the complete file."""

    # A function of its own, because pyfakefs would replace `sync_file` if it were `os.fsync`.
    def sync_file(descriptor: int) -> None:
        """Make a file or the names in a directory durable."""
        os.fsync(descriptor)

    def sync_data(descriptor: int) -> None:
        """Make the content of a file durable."""
        os.fdatasync(descriptor)

    def lock_file(descriptor: int) -> None:
        """Lock a file. Raises OSError with EAGAIN or EACCES if the file is already locked.

        The lock belongs to the open file, not to the process. It also excludes the locks of fcntl, which
        Apache Kafka uses.
        """
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)

    def allocate(descriptor: int, size: int) -> None:
        """Allocate the blocks of an empty file. Raises OSError."""
        os.posix_fallocate(descriptor, 0, size)

    def read_ahead(descriptor: int, position: int, size: int) -> None:
        """Start to read a part of a file into the page cache, where the system supports that."""
        os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_WILLNEED)

    def anonymous_file(name: str, new_directory: Callable[[], str]) -> int:
        """Return the descriptor of a new file in memory. Its name is only for debugging."""
        return os.memfd_create(name)
