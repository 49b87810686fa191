"""The few operations that storage needs of a disk, and the real one.

Everything else in storage goes through `Disk`, so that tests and the simulator can put a disk in its place
that tears writes, runs full or forgets what was never synced.

Descriptors are not a log's to hold: `open` answers from a bounded cache of handles, least recently used out
first. A handle lives as long as somebody refers to it, so a region that waits in a send queue can still be
read after its segment was deleted or its handle left the cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import pack
from typing import Final, Protocol

from kwire.wire.primitives import Buffer

IOV_MAX = 1024
"""The most buffers Linux takes in one pwritev."""

_SMALL_FILE_BYTES = 4096

TEMPORARY_SUFFIX = ".tmp"
"""What `replace` writes into before it renames; a leftover one is worthless."""


READ_ONLY_MODE = 0o400


class StorageError(Exception):
    """The disk failed, or holds what cannot be used. What was being written is not acknowledged."""


class FileMissing(StorageError):
    """There is no such file or directory."""


def failure_in(result: object) -> StorageError | None:
    """The failure with which a worker has come back from a disk; None where there is none."""
    if isinstance(result, BaseException):
        return result if isinstance(result, StorageError) else StorageError(str(result))
    return None


class DiskFile(Protocol):
    """An open file. Its descriptor closes when the last reference goes."""

    def fileno(self) -> int:
        """The descriptor, for sendfile. A disk without descriptors raises OSError."""

    def size(self) -> int:
        """The file's length in bytes."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers from `position` on. StorageError: any part may have been written."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with a hole that reads as zeros."""

    def sync(self) -> None:
        """Return when the content is durable. May be called in a worker thread."""


class DiskLock(Protocol):
    """A lock on a directory against other processes."""

    def release(self) -> None:
        """Give the lock up."""


class Disk(Protocol):
    """A tree of files. Every method raises StorageError, or FileMissing where that is the reason."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same files by the same paths."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """The file for reading and writing, from the cache of handles where it is there already."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """A file's length in bytes, without opening it."""

    def modified_ms(self, path: str) -> int:
        """When a file was last written to."""

    def read(self, path: str) -> bytes:
        """A small file, whole."""

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Up to `size` bytes of a file that may be read-only; fewer only at its end."""

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        """Create or overwrite a small file in place, so that a crash may leave it torn."""

    def replace(self, path: str, content: bytes, *, sync: bool) -> None:
        """Put a small file in place, whole: whoever reads it sees the old content or the new.

        With `sync` the new content survives a loss of power once this returns.
        """

    def make_read_only(self, path: str) -> None:
        """Let nobody write to a file any more, as far as the disk knows of such."""

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory within the disk; open handles stay usable."""

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it; one that is not there is no error."""

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory."""

    def subdirectories(self, path: str) -> list[str]:
        """Those of them that are directories."""

    def make_directory(self, path: str) -> None:
        """Make the directory and those above it that are missing; one that exists is no error."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; one that is not there is no error."""

    def lock(self, path: str) -> DiskLock | None:
        """Lock through a lock file, None when another process holds it."""

    def close(self) -> None:
        """Give back what is open, and locks that are still held: nobody uses the disk any more."""

    def volume_bytes(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume that the directory lies on."""


def _failure(error: OSError) -> StorageError:
    text = f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileMissing(text)
    return StorageError(text)


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
        except OSError as error:
            raise self._failure(error) from error

    def _write_rest(self, position: int, buffers: list[Buffer]) -> None:
        # A write stops short of the whole on a nearly full disk, at a signal, or at 2 GiB.
        while buffers:
            written = os.pwritev(self._descriptor, buffers[:IOV_MAX], position)
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
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
        except OSError as error:
            raise self._failure(error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._failure(error) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"{error.strerror or error} ({self.path})")


def _remaining_buffers(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What is left of the buffers when their first `written` bytes are gone."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


_WHOLE_FILE: Final = pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""The kernel's `struct flock` for a lock of the whole file."""


class RealLock:
    """A record lock over the whole lock file, which keeps out the one that the JVM's FileChannel takes.

    It belongs to the open file and not to the process, so that it also keeps out another broker in this one.
    """

    def __init__(self, path: str, descriptor: int, on_release: Callable[[RealLock], None]) -> None:
        self._path = path
        self._descriptor = descriptor
        self._on_release = on_release

    def release(self) -> None:
        """Remove the file while it is still locked, as Kafka does, then give the lock up."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = -1
            self._on_release(self)


class _HandleCache:
    """Open files by path, so many at most. To drop a directory's costs what is dropped."""

    def __init__(self, most: int) -> None:
        self._files: OrderedDict[str, RealFile] = OrderedDict()
        """The least recently used come first."""
        self._below: dict[str, set[str]] = {}
        """By directory: the files and directories in it that are open, or have something open below them."""
        self._most = most

    def get(self, path: str) -> RealFile | None:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
        return file

    def add(self, path: str, file: RealFile) -> None:
        """One that is not there yet."""
        self._files[path] = file
        while path:
            directory = path.rpartition("/")[0]
            siblings = self._below.setdefault(directory, set())
            siblings.add(path)
            if len(siblings) > 1:
                break
            path = directory
        if len(self._files) > self._most:
            self.drop(next(iter(self._files)))

    def drop(self, path: str) -> None:
        """Forget a file, or all below a directory. In any thread for what is not here."""
        if path not in self._files and path not in self._below:
            return
        gone = [path]
        while gone:
            one = gone.pop()
            self._files.pop(one, None)
            gone += self._below.pop(one, ())
        while path:
            directory = path.rpartition("/")[0]
            siblings = self._below[directory]
            siblings.discard(path)
            if siblings:
                break
            del self._below[directory]
            path = directory

    def clear(self) -> None:
        self._files.clear()
        self._below.clear()


class RealDisk:
    """The disk of this machine.

    Single-threaded, but for `sync`, `sync_directory`, and `write` of a file that nobody else looks at.
    """

    is_shared: Final = True
    _file_class: type[RealFile] = RealFile

    def __init__(self, *, max_open_files: int = 512) -> None:
        self._handles = _HandleCache(max_open_files)
        self._locks: list[RealLock] = []

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = self._handles.get(path)
        if file is not None:
            return file
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            file = self._file_class(path, os.open(path, flags, 0o644))
        except OSError as error:
            raise _failure(error) from error
        self._handles.add(path, file)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

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
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _failure(error) from error
        try:
            content = os.read(descriptor, _SMALL_FILE_BYTES)
            if len(content) < _SMALL_FILE_BYTES:
                return content
            pieces = [content]
            while piece := os.read(descriptor, 1 << 20):
                pieces.append(piece)
            return b"".join(pieces)
        except OSError as error:
            raise _failure(error) from error
        finally:
            os.close(descriptor)

    def read_part(self, path: str, position: int, size: int) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                pieces = []
                while size > 0 and (piece := os.pread(descriptor, size, position)):
                    pieces.append(piece)
                    position, size = position + len(piece), size - len(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failure(error) from error

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        self._handles.drop(path)
        try:
            with open(path, "wb", buffering=0) as file:
                left: Buffer = content
                while left:
                    left = memoryview(left)[file.write(left) :]
                if sync:
                    os.fsync(file.fileno())
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
            self.sync_directory(os.path.dirname(path))

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
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error) from error

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise _failure(error) from error

    def subdirectories(self, path: str) -> list[str]:
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            raise _failure(error) from error

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise _failure(error) from error

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error) from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise _failure(error) from error
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> RealLock | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _failure(error) from error
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
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
        for lock in list(self._locks):
            lock.release()

    def volume_bytes(self, path: str) -> tuple[int, int]:
        try:
            volume = os.statvfs(path)
        except OSError as error:
            raise _failure(error) from error
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


class FileRegion:
    """A part of a file, as a read gives it: it goes from the file to the socket, not through Python."""

    __slots__ = ("file", "position", "size_bytes")

    def __init__(self, file: DiskFile, position: int, size_bytes: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def read(self) -> bytes:
        """The bytes themselves, for whoever cannot send from a descriptor."""
        return self.file.read_at(self.position, self.size_bytes)

    def __repr__(self) -> str:
        return f"FileRegion({self.file!r}, {self.position}, {self.size_bytes})"


def join(directory: str, name: str) -> str:
    """The path of a name in a directory. Storage's paths are POSIX paths on every disk."""
    return f"{directory}/{name}"
