"""Reads of a log that workers do, because they would block the event loop.

A read has three outcomes: data, an error, or `ReadPending`. After `ReadPending`, the request lets workers do
the pending reads, and then repeats everything, including its checks. Meanwhile the replica may have another
leader epoch, or the log may be truncated or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from kwire.broker.storage.disk import DiskFile, StorageError, is_cached
from kwire.host.host import Host
from kwire.wire.errors import ApiError, ErrorCode

T = TypeVar("T")

MAX_PENDING: Final = 8
"""The maximum number of reads that workers do for a request at the same time. Syncs use the same workers."""


def _read_ahead(file: DiskFile, position: int, size: int) -> None:
    """Read a part of a file into the page cache. The request does not keep the bytes."""
    file.read_at(position, size)


class ReadPending(Exception):
    """A read that a worker has to do first."""


class WorkerReads:
    """The reads that workers do for one request, and their results."""

    # Most requests need no worker, so the dictionaries are created on demand.
    _results: dict[Hashable, Any] | None = None
    _pending: dict[Hashable, Callable[[], Any]] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the request has to `run` reads, and then to repeat its own."""
        return bool(self._pending)

    def result(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of a read, or raise ReadPending if no worker has done it yet.

        `key` identifies the read among the reads of this request. Raises ApiError KAFKA_STORAGE_ERROR if the
        worker raised StorageError.
        """
        results = self._results
        if results is None or key not in results:
            self._add(key, work)
        result: T | BaseException = results[key]
        if isinstance(result, StorageError):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(result)) from result
        if isinstance(result, BaseException):
            raise result
        return result

    def warm(self, path: str, file: DiskFile, position: int, size: int) -> None:
        """Raise ReadPending if this part of a file is probably not in the page cache, and no worker read it.

        Only the byte in the middle is checked.
        """
        key = (path, position)
        if self._results is not None and key in self._results:
            return
        if not is_cached(file, position + size // 2):
            self._add(key, partial(_read_ahead, file, position, size))

    def _add(self, key: Hashable, work: Callable[[], Any]) -> NoReturn:
        if self._pending is None:
            self._pending = {}
        if len(self._pending) < MAX_PENDING:
            self._pending.setdefault(key, work)
        raise ReadPending

    def run(self, host: Host, then: Callable[[], None]) -> None:
        """Let workers do the pending reads, then call `then`."""
        pending, self._pending = self._pending or {}, None
        results = self._results = self._results or {}
        left = len(pending)

        def done(key: Hashable, result: Any) -> None:
            nonlocal left
            results[key] = result
            left -= 1
            if not left:
                then()

        for key, work in pending.items():
            host.run_in_worker(work, partial(done, key))
