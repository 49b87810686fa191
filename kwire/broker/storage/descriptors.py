"""File descriptors of a disk: the cache of open files, and spare descriptors for the time when none is left.

A process may run out of descriptors: connections use them, too, and an embedded broker shares its process
with a test. The disk has not failed then. The disk first closes cached files that are not in use. If that is
not enough, it uses its spare descriptors, but only for operations that must not stop in the middle
(`Descriptors.reserved`). So such an operation either has the descriptors that it needs, or does not begin.
"""

from __future__ import annotations

import errno
import resource
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock, get_ident
from typing import Final, Generic, TypeVar

from kwire.host.system_os import os
from kwire.host.system_time import sleep

T = TypeVar("T")
F = TypeVar("F")

SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that mean that the process or the system is short of descriptors or memory."""

NULL_DEVICE: Final = "/dev/null"
SPARES: Final = 8
"""The number of spare descriptors. An operation opens few files at the same time."""
LENT: Final = 3
"""The number of spare descriptors that an import may use at the same time."""
MAX_CACHED_FILES: Final = 512
"""The largest number of cached files; half of the limit of descriptors (`ulimit -n`) if that is less."""
MIN_CACHED_FILES: Final = 16
"""The number of cached files that are not closed for the sake of connections."""
ADDED_PER_INCREASE: Final = 64
"""The number of opened files after which the cache may grow by one file again, after a shortage."""
WORKER_RETRY_SECONDS: Final = 0.05


def default_cached_files() -> int:
    """Return the number of files that a disk may keep open in this process."""
    return min(MAX_CACHED_FILES, max(SPARES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


def _count_references(files: Mapping[str, object], path: str) -> int:
    return sys.getrefcount(files[path])


_UNUSED_REFERENCES: Final = _count_references(OrderedDict({"": object()}), "")
"""The references to a file that only the cache refers to.

The number is measured, because releases of Python count different references during a function call.
"""


class HandleCache(Generic[F]):
    """A bounded LRU cache of open files by path. Dropping a directory looks only at its open files.

    A file is closed when the last reference to it is dropped.
    """

    def __init__(self, max_files: int) -> None:
        self._files: OrderedDict[str, F] = OrderedDict()
        """The open files by path, least recently used first."""
        self._below: dict[str, set[str]] = {}
        """For each directory, its entries that are open files or that contain open files."""
        self._limit = self._max_files = max_files
        self._added = 0

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> F | None:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
        return file

    def add(self, path: str, file: F) -> None:
        """Add a file that is not in the cache."""
        self._files[path] = file
        while path:
            directory = path.rpartition("/")[0]
            siblings = self._below.setdefault(directory, set())
            siblings.add(path)
            if len(siblings) > 1:
                break
            path = directory
        if self._max_files < self._limit:
            self._added += 1
            if self._added >= ADDED_PER_INCREASE:
                self._added = 0
                self._max_files += 1
        if len(self._files) > self._max_files:
            self.drop(next(iter(self._files)))

    def drop(self, path: str) -> None:
        """Drop a file, or all files below a directory, from the cache.

        If the path has no open files, any thread may call this; otherwise only the event loop's thread.
        """
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

    def give_back(self, *, keep: int = 0) -> bool:
        """Close the least recently used half of the files that are not in use. Return whether any was closed.

        The cache then stays small, and grows again as files are opened without a shortage. At least `keep`
        files stay in the cache.
        """
        unused = [path for path in self._files if self._is_unused(path)]
        count = min((len(unused) + 1) // 2, len(self._files) - keep)
        for path in unused[: max(0, count)]:
            self.drop(path)
        self._max_files = min(self._limit, max(SPARES, keep, len(self._files)))
        self._added = 0
        return count > 0

    def _is_unused(self, path: str) -> bool:
        return _count_references(self._files, path) <= _UNUSED_REFERENCES

    def clear(self) -> None:
        self._files.clear()
        self._below.clear()


class Descriptors(Generic[F]):
    """Operations that need a descriptor, with the spare descriptors for a shortage.

    The thread that creates the object owns the cache: the event loop's thread. The workers share one spare
    descriptor, and wait for it.
    """

    def __init__(self, cache: HandleCache[F]) -> None:
        self.on_shortage: Callable[[OSError], None] = lambda error: None
        """Called, in any thread, when an operation finds no free descriptor or no memory."""
        self.call_owner: Callable[[Callable[[], object]], None] = lambda function: None
        """Calls a function later, in the thread of the event loop."""
        self._cache = cache
        self._owner = get_ident()
        self._depth = 0
        self._spares: list[int] = []
        self._worker_lock = Lock()
        self._worker_spare: list[int] = []
        self._is_worker_waiting = False
        self._is_closed = False
        self._refill()

    @property
    def cached_count(self) -> int:
        """The number of files in the cache. Unused files are closed if other files need their descriptors."""
        return len(self._cache)

    def run(self, operation: Callable[[], T]) -> T:
        """Call an operation, again after each shortage as long as a descriptor can be given back for it.

        In the thread of the event loop, raises OSError if there is none. A worker waits.
        """
        try:
            return operation()
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            self.on_shortage(error)
        # Keep no error: through its frames, it would keep a file open.
        if get_ident() != self._owner:
            with self._as_waiting_worker(operation) as result:
                return result
        while self._cache.give_back() or self._close_spare():
            if not self._depth and not self._refill():
                continue  # the spare descriptors come first: a file in use could keep this one for long
            try:
                return operation()
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
        return operation()

    @contextmanager
    def opened(self, path: str, flags: int, mode: int = 0o777) -> Iterator[int]:
        """Open a file for the time of the block. A worker waits until it finds a descriptor."""
        open_file = partial(os.open, path, flags, mode)
        if get_ident() == self._owner:
            descriptor = self.run(open_file)
        else:
            try:
                descriptor = open_file()
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
                self.on_shortage(error)
                descriptor = -1
        if descriptor < 0:
            with self._as_waiting_worker(open_file) as descriptor:
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _close_spare(self) -> bool:
        if not self._depth or not self._spares:
            return False
        os.close(self._spares.pop())
        return True

    # --- workers

    @contextmanager
    def _as_waiting_worker(self, operation: Callable[[], T]) -> Iterator[T]:
        """Call an operation until it finds a descriptor, and run the block with its result."""
        with self._worker_lock:
            try:
                yield self._wait(operation)
            finally:
                if not self._is_closed:
                    self._fill(self._worker_spare, 1)  # before another thread takes the descriptor

    def _wait(self, operation: Callable[[], T]) -> T:
        while True:
            if self._worker_spare:
                os.close(self._worker_spare.pop())
            try:
                result = operation()
            except OSError as error:
                if error.errno not in SHORTAGE or self._is_closed:
                    raise
            else:
                self._is_worker_waiting = False
                return result
            self._is_worker_waiting = True
            self.call_owner(self.relieve_worker)
            sleep(WORKER_RETRY_SECONDS)

    def relieve_worker(self) -> None:
        """Free a descriptor for a worker that waits for one, in the thread of the event loop.

        If all files are in use, the worker gets a spare descriptor: the work that uses the files may wait
        behind this worker.
        """
        if self._is_worker_waiting and not self._cache.give_back() and self._spares:
            self._worker_spare.append(self._spares.pop())

    # --- operations that must not stop in the middle: `with descriptors:`

    def __enter__(self) -> None:
        """Let the block use the spare descriptors. Raises OSError if they are not available."""
        if not self._depth:
            while len(self._spares) < SPARES:
                if not self._fill(self._spares, SPARES) and not self._cache.give_back():
                    self._spares.append(_open_spare())
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and len(self._spares) < SPARES:
            self._refill()  # before another thread takes what the block has closed

    # --- spare descriptors

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free some spare descriptors for the block, which opens files without this object."""
        while len(self._spares) > SPARES - LENT:
            os.close(self._spares.pop())
        try:
            yield
        finally:
            self._refill()

    def give_back(self) -> bool:
        """Close cached files for a connection; return whether a descriptor may be free now.

        Some files stay in the cache, and the spare descriptors come first.
        """
        while self._cache.give_back(keep=MIN_CACHED_FILES):
            if self._refill():
                return True
        return False

    def _refill(self) -> bool:
        """Open the missing spare descriptors; return whether all exist now."""
        is_full = self._fill(self._spares, SPARES)
        if is_full and self._worker_lock.acquire(blocking=False):
            try:
                return self._fill(self._worker_spare, 1)
            finally:
                self._worker_lock.release()
        return is_full

    @staticmethod
    def _fill(spares: list[int], count: int) -> bool:
        """Open spare descriptors up to this number. Return whether there are so many now."""
        try:
            while len(spares) < count:
                spares.append(_open_spare())
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
        return len(spares) >= count

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the spare descriptors."""
        self._is_closed = True
        for spares in (self._spares, self._worker_spare):
            while spares:
                os.close(spares.pop())


def _open_spare() -> int:
    return os.open(NULL_DEVICE, os.O_RDONLY | os.O_CLOEXEC)


def shortage_text(error: OSError, text: str) -> str:
    """Return the text of an error with what to do about it."""
    if error.errno == errno.EMFILE:
        return f"{text}: raise the limit of file descriptors of this process (ulimit -n)"
    if error.errno == errno.ENFILE:
        return f"{text}: raise the limit of file descriptors of the system (fs.file-max)"
    return text
