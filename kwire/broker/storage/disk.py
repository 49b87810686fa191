"""The file operations that storage needs, and their implementation on the operating system.

Storage accesses files only through `Disk`. Tests and the simulation replace `Disk` by a disk that tears
writes, runs full, or loses data that was not synced.

Logs keep no file descriptors: `open` returns handles from a bounded LRU cache. A handle stays open as long as
any object refers to it. So a file region in a send queue can be read even after its segment was deleted, or
after its handle was dropped from the cache. `descriptors` has the cache, and the spare descriptors for the
time when the process has no free descriptor.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from posixpath import dirname
from typing import Final, Protocol, TypeVar

from kwire.broker.storage.descriptors import (
    SHORTAGE,
    Descriptors,
    HandleCache,
    default_cached_files,
    shortage_text,
)
from kwire.host.platform.files import NOWAIT, lock_file, sync_data, sync_file
from kwire.host.system_os import exists, is_directory, make_directories, os, remove_tree
from kwire.host.system_time import perf_counter
from kwire.wire.primitives import Buffer

T = TypeVar("T")

IOV_MAX = 1024
"""The maximum number of buffers that Linux and macOS accept in one pwritev."""

_SMALL_FILE_BYTES = 4096

SHORTAGE_RETRY_MS = 100
"""The time after a ResourceShortage before the next attempt."""

TEMPORARY_SUFFIX = ".tmp"
"""The suffix of the file that `replace` writes before the rename. A leftover file may be deleted."""


READ_ONLY_MODE = 0o400


class StorageError(Exception):
    """A failed disk operation, or a file with unusable content."""


class FileMissing(StorageError):
    """A file or directory that does not exist."""


class ResourceShortage(StorageError):
    """Too few file descriptors, or too little memory. The disk has not failed, and a retry may succeed."""


def is_shortage(error: BaseException) -> bool:
    """Return whether an error means that the process is short of descriptors, memory or threads."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGE
    if isinstance(error, RuntimeError):
        return "new thread" in str(error)
    return isinstance(error, ResourceShortage | MemoryError)


def failure_in(result: object) -> StorageError | None:
    """Return the error of a disk operation in a worker as a StorageError, or None if it succeeded.

    `result` is what `Host.run_in_worker` passes to its callback.
    """
    if isinstance(result, BaseException) and is_shortage(result):
        return ResourceShortage(str(result) or "too little memory")
    if isinstance(result, BaseException):
        return result if isinstance(result, StorageError) else StorageError(str(result))
    return None


class DiskFile(Protocol):
    """An open file. Its descriptor is closed when the last reference to it is dropped."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile. Raises OSError if the disk has no descriptors."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at `position`. After a StorageError, some of the data may have been written."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`; fewer bytes only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Shorten or extend the file to `size` bytes. The added part reads as zeros."""

    def sync(self) -> float:
        """Make the content durable (fdatasync), and return the time that this took, in seconds.

        May be called in a worker thread.
        """


def is_cached(file: DiskFile, position: int) -> bool:
    """Return whether a byte is in the page cache. Without RWF_NOWAIT, the check reads from the disk."""
    try:
        os.preadv(file.fileno(), [bytearray(1)], position, NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file in memory has no descriptor, and the read itself reports an error
    return True


class DiskLock(Protocol):
    """A lock on a directory that excludes other processes."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """A file tree. Every method may raise StorageError, or FileMissing if the path does not exist.

    In the event loop's thread, a method that opens a file may raise ResourceShortage. In workers it waits.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes can open the files of this disk by path. False for a disk in memory."""

    def reserved(self) -> AbstractContextManager[None]:
        """Return a block for an operation that must not stop in the middle for lack of descriptors.

        Entering the block raises ResourceShortage if there are too few. Within the block, a shortage is
        possible only if another thread takes all of the spare descriptors. Blocks may be nested. Only the
        event loop's thread may call this.
        """

    def lent(self) -> AbstractContextManager[None]:
        """Return a block with some free descriptors for files that are opened elsewhere, as by an import."""

    def give_back_descriptors(self) -> bool:
        """Close cached files that are not in use, for a connection. Return whether any was closed."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open a file for reading and writing, or return its cached handle."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return a file's length in bytes without opening it."""

    def modified_ms(self, path: str) -> int:
        """Return a file's modification time in ms since the epoch."""

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Return `size` bytes of a file, which may be read-only; fewer bytes only at the end of the file."""

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        """Create or overwrite a small file in place. A crash may leave a part of the new content."""

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        """Replace a small file atomically: readers see either the old or the new content.

        With `sync`, the new content survives a power loss after this method has returned.
        """

    def make_read_only(self, path: str) -> None:
        """Remove the write permission of a file. A disk without file permissions ignores this."""

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory within the disk. Open handles stay valid."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its content if it exists."""

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""

    def subdirectories(self, path: str) -> list[str]:
        """Return the sorted names of the directories in a directory."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, unless it exists."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable. A missing directory is ignored."""

    def lock(self, path: str) -> DiskLock | None:
        """Create a lock file if it is missing, and lock it. Return None if it is already locked."""

    def close(self) -> None:
        """Close the cached handles and release the locks. The disk must not be used afterwards."""

    def volume_bytes(self, path: str) -> tuple[int, int]:
        """Return the total and the usable bytes of the volume that contains the directory."""


def _failure(error: OSError) -> StorageError:
    text = f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileMissing(text)
    if error.errno in SHORTAGE:
        return ResourceShortage(shortage_text(error, text))
    return StorageError(text)


@contextmanager
def _failing_at(path: str) -> Iterator[None]:
    """Turn an OSError into StorageError: after a failed write or sync, no shortage allows a retry."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.strerror or error} ({path})") from error


class RealFile:
    """A file of the operating system, read and written by position."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"RealFile({self.path!r})"

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise self._failure(error) from error

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            if len(buffers) <= IOV_MAX:
                written = os.pwritev(self._descriptor, buffers, position)
                left = sum(map(len, buffers)) - written
                if left == 0:
                    return
                self._write_rest(position + written, _remaining_buffers(buffers, written))
            else:
                self._write_rest(position, list(buffers))
        except (OSError, MemoryError) as error:
            raise self._failure(error) from error

    def _write_rest(self, position: int, buffers: list[Buffer]) -> None:
        # A write may be incomplete on a nearly full disk, after a signal, or beyond 2 GiB.
        while buffers:
            written = os.pwritev(self._descriptor, buffers[:IOV_MAX], position)
            if written == 0:
                raise OSError(errno.EIO, "the disk wrote no bytes")
            position += written
            buffers = _remaining_buffers(buffers, written)

    def read_at(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            if len(data) == size or not data:
                return data
            pieces = [data]
            got = len(data)
            while got < size:
                data = os.pread(self._descriptor, size - got, position + got)
                if not data:
                    break
                pieces.append(data)
                got += len(data)
            return b"".join(pieces)
        except (OSError, MemoryError) as error:
            raise self._failure(error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._failure(error) from error

    def sync(self) -> float:
        began = perf_counter()
        try:
            sync_data(self._descriptor)
        except OSError as error:
            raise StorageError(f"{error.strerror or error} ({self.path})") from error
        return perf_counter() - began

    def _failure(self, error: OSError | MemoryError) -> StorageError:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            return ResourceShortage(f"too little memory ({self.path})")
        return StorageError(f"{error.strerror or error} ({self.path})")


def _remaining_buffers(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """Return what remains of the buffers after their first `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


class RealLock:
    """A lock on the complete lock file. It excludes the lock of Apache Kafka (Java's FileChannel).

    The lock belongs to the open file and not to the process. So it also excludes a second broker in the same
    process.
    """

    def __init__(self, path: str, descriptor: int, on_release: Callable[[RealLock], None]) -> None:
        self._path = path
        self._descriptor = descriptor
        self._on_release = on_release

    def release(self) -> None:
        """Remove the file while it is locked, as Kafka does, then release the lock."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = -1
            self._on_release(self)


class RealDisk:
    """The file system of the operating system.

    Only the event loop's thread may call its methods, except for `sync_directory`, and `write` of a file that
    no other thread accesses. Any thread may read or sync a RealFile that is already open.
    """

    is_shared: Final = True
    _file_class: type[RealFile] = RealFile

    def __init__(self, *, max_open_files: int | None = None) -> None:
        """Create a disk for the event loop's thread, which must be the current thread."""
        self._handles: HandleCache[RealFile] = HandleCache(max_open_files or default_cached_files())
        self.descriptors = Descriptors(self._handles)
        self._locks: list[RealLock] = []

    def reserved(self) -> AbstractContextManager[None]:
        return _Reserved(self.descriptors)

    def lent(self) -> AbstractContextManager[None]:
        return self.descriptors.lent()

    def give_back_descriptors(self) -> bool:
        return self.descriptors.give_back()

    def _do(self, operation: Callable[[], T]) -> T:
        """Call an operation that opens a file. Raises StorageError."""
        try:
            return self.descriptors.run(operation)
        except OSError as error:
            raise _failure(error) from error

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = self._handles.get(path)
        if file is not None:
            return file
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = self._file_class(path, self._do(partial(os.open, path, flags, 0o644)))
        self._handles.add(path, file)
        return file

    def exists(self, path: str) -> bool:
        return exists(path)

    def is_directory(self, path: str) -> bool:
        return is_directory(path)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise _failure(error) from error

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise _failure(error) from error

    def read(self, path: str) -> bytes:
        try:
            with self.descriptors.opened(path, os.O_RDONLY | os.O_CLOEXEC) as descriptor:
                content = os.read(descriptor, _SMALL_FILE_BYTES)
                if len(content) < _SMALL_FILE_BYTES:
                    return content
                pieces = [content]
                while piece := os.read(descriptor, 1 << 20):
                    pieces.append(piece)
                return b"".join(pieces)
        except OSError as error:
            raise _failure(error) from error

    def read_part(self, path: str, position: int, size: int) -> bytes:
        try:
            with self.descriptors.opened(path, os.O_RDONLY | os.O_CLOEXEC) as descriptor:
                pieces = []
                while size > 0 and (piece := os.pread(descriptor, size, position)):
                    pieces.append(piece)
                    position, size = position + len(piece), size - len(piece)
                return b"".join(pieces)
        except OSError as error:
            raise _failure(error) from error

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        self._handles.drop(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            with self.descriptors.opened(path, flags, 0o666) as descriptor, _failing_at(path):
                left: Buffer = content
                while left:
                    left = memoryview(left)[os.write(descriptor, left) :]
                if sync:
                    sync_file(descriptor)
        except OSError as error:
            raise _failure(error) from error

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        temporary = path + TEMPORARY_SUFFIX
        self.write(temporary, content, sync=sync)
        try:
            os.rename(temporary, path)
        except OSError as error:
            raise _failure(error) from error
        self._handles.drop(path)
        if sync:
            self.sync_directory(dirname(path))

    def make_read_only(self, path: str) -> None:
        self._handles.drop(path)
        try:
            os.chmod(path, READ_ONLY_MODE)
        except OSError as error:
            raise _failure(error) from error

    def rename(self, old: str, new: str) -> None:
        try:
            os.rename(old, new)
        except OSError as error:
            raise _failure(error) from error
        self._handles.drop(new)
        self._handles.drop(old)

    def remove(self, path: str) -> None:
        self._handles.drop(path)
        try:
            os.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error) from error

    def remove_tree(self, path: str) -> None:
        self._handles.drop(path)
        try:
            self.descriptors.run(partial(remove_tree, path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error) from error

    def names(self, path: str) -> list[str]:
        return sorted(self._do(partial(os.listdir, path)))

    def subdirectories(self, path: str) -> list[str]:
        with self._do(partial(os.scandir, path)) as entries:
            try:
                return sorted(entry.name for entry in entries if entry.is_dir())
            except OSError as error:
                raise _failure(error) from error

    def make_directory(self, path: str) -> None:
        try:
            make_directories(path)
        except OSError as error:
            raise _failure(error) from error

    def sync_directory(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            with self.descriptors.opened(path or ".", flags) as descriptor, _failing_at(path):
                sync_file(descriptor)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error) from error

    def lock(self, path: str) -> RealLock | None:
        descriptor = self._do(partial(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            lock_file(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise _failure(error) from error
        lock = RealLock(path, descriptor, self._locks.remove)
        self._locks.append(lock)
        return lock

    def close(self) -> None:
        self._handles.clear()
        self.descriptors.close()
        for lock in list(self._locks):
            lock.release()

    def volume_bytes(self, path: str) -> tuple[int, int]:
        try:
            volume = os.statvfs(path)
        except OSError as error:
            raise _failure(error) from error
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


class _Reserved:
    """A block in which the spare descriptors of a disk may be used."""

    __slots__ = ("_descriptors",)

    def __init__(self, descriptors: Descriptors[RealFile]) -> None:
        self._descriptors = descriptors

    def __enter__(self) -> None:
        try:
            self._descriptors.__enter__()
        except OSError as error:
            raise _failure(error) from error

    def __exit__(self, *error: object) -> None:
        self._descriptors.__exit__(*error)


def join(directory: str, name: str) -> str:
    """Join a directory and a name with a slash. Storage uses POSIX paths on every disk."""
    return f"{directory}/{name}"
