"""Flushing many logs at a time.

One flush of a log syncs up to seven files, and a sync waits for the disk. Several threads that sync at the
same time share one flush of the disk's write cache, and one commit of the file system's journal. Closing
5,000 logs one after the other takes 15 s or more, with eight threads a tenth of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kwire.broker.storage.disk import ResourceShortage, StorageError
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log

RunAll = Callable[[Iterable[Callable[[], None]]], None]
"""Run all functions, maybe in threads, and return when all have ended. `Host.run_all_in_workers` is one."""


def run_in_order(works: Iterable[Callable[[], None]]) -> None:
    """Run the functions one after the other, without threads."""
    for work in works:
        work()


def flush_each(
    logs: Iterable[Log], begin: Callable[[Log], FlushTicket | None], run_all: RunAll
) -> Iterator[tuple[Log, StorageError]]:
    """Flush the logs with the tickets that `begin` returns. Yield the logs that failed, with their errors.

    `begin` and the tickets' `finish` run in this thread. A log without a ticket is skipped.
    """
    failed: list[tuple[Log, StorageError]] = []
    left = deque(logs)

    def works(synced: list[tuple[Log, Callable[[], None]]]) -> Iterator[Callable[[], None]]:
        while left:
            try:
                ticket = begin(left[0])
            except ResourceShortage:
                return  # until the files of the tickets before are closed
            except StorageError as error:
                failed.append((left.popleft(), error))
                continue
            log = left.popleft()
            if ticket is not None:
                yield partial(_sync, log, ticket, synced, failed)

    while left:
        count = len(left)
        synced: list[tuple[Log, Callable[[], None]]] = []
        run_all(works(synced))
        for log, finish in synced:
            try:
                finish()
            except StorageError as error:
                failed.append((log, error))
        if len(left) == count:
            shortage = ResourceShortage("too few file descriptors: raise the limit (ulimit -n)")
            failed += [(log, shortage) for log in left]
            break
    yield from failed


def _sync(
    log: Log,
    ticket: FlushTicket,
    synced: list[tuple[Log, Callable[[], None]]],
    failed: list[tuple[Log, StorageError]],
) -> None:
    try:
        ticket.work()
    except StorageError as error:
        failed.append((log, error))
    else:
        synced.append((log, ticket.finish))  # without the ticket, so that its files can be closed
