"""New logs, until each can tell the id of its topic should the process or the machine die.

Hardly anybody waits for that: an append that comes sooner sees to it itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kwire.broker.host.host import Host
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log

_AT_ONCE = 32
"""Each has a file open meanwhile."""


class NewLogs:
    """The new logs of a broker, in the order in which they were made."""

    def __init__(self, on_failed: Callable[[Log, StorageError], None]) -> None:
        self._on_failed = on_failed
        self._logs: deque[Log] = deque()
        self._under_way = False

    def add(self, log: Log) -> None:
        """One was made; `name` is to follow."""
        self._logs.append(log)

    def name(self, host: Host) -> None:
        """Have all of them tell, waiting for the disks in a worker, some at a time."""
        tickets: list[tuple[Log, FlushTicket]] = []
        while self._logs and len(tickets) < _AT_ONCE and not self._under_way:
            log = self._logs.popleft()
            with suppress(StorageError):  # of which the log has told
                ticket = log.begin_naming()
                if ticket is not None:
                    tickets.append((log, ticket))
        if not tickets:
            return
        self._under_way = True

        def work() -> list[StorageError | None]:
            return [_failure(ticket.work) for _, ticket in tickets]

        def done(results: list[StorageError | None] | BaseException) -> None:
            assert not isinstance(results, BaseException), results
            self._under_way = False
            for (log, ticket), error in zip(tickets, results, strict=True):
                if log.failure is not None:
                    continue  # the directory of its name may be another one's by now
                error = error or _failure(ticket.finish)
                if error is not None:
                    self._on_failed(log, error)
            self.name(host)

        host.run_in_worker(work, done)


def _failure(step: Callable[[], None]) -> StorageError | None:
    try:
        step()
    except StorageError as error:
        return error
    return None
