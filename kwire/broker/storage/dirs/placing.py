"""Logs that are not in their places yet: a start after a crash would not find what is in them.

A new one cannot tell the id of its topic before a worker has synced that. Where an earlier topic had its name
the checkpoints have to forget that one's offsets first: after a crash they would be taken for the new one's.
A log that moves leaves its place to a copy; whoever moves it says when that is there.

Hardly anybody waits for it. Who does has his log named beside the others, which take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice

from kwire.broker.host.host import Host
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log

_AT_ONCE = 32
"""Each has a file open meanwhile."""


class Placing:
    """The logs of a broker that are on their way to their places."""

    def __init__(
        self,
        on_failed: Callable[[Log, StorageError], None],
        checkpoint: Callable[[Host, Iterable[LogDirectory], Callable[[], None]], None],
    ) -> None:
        """`checkpoint` writes the checkpoints of directories, and tells when that is done, or has failed."""
        self._on_failed = on_failed
        self._checkpoint = checkpoint
        self._new: dict[Log, LogDirectory | None] = {}
        """In the order in which they were made; with the directory whose checkpoints tell of another one."""
        self._waiting: dict[Log, list[Callable[[], None]]] = {}
        self._is_naming = self._is_hurrying = False

    def add(self, log: Log, foretold: LogDirectory | None) -> None:
        """One was made; `name` is to follow. `foretold`: where checkpoints have offsets for its name."""
        self._new[log] = foretold

    def name(self, host: Host) -> None:
        """Have the new ones tell their topics' ids, waiting for the disks in a worker, some at a time."""
        if self._new and not self._is_naming:
            self._is_naming = True
            self._place(host, list(islice(self._new, _AT_ONCE)), self._named)

    def _named(self, host: Host) -> None:
        self._is_naming = False
        self.name(host)

    def when_placed(self, log: Log, host: Host, tell: Callable[[], None]) -> None:
        """Tell when a log is in its place, or has given way to another, or has failed; see to it now."""
        self._waiting.setdefault(log, []).append(tell)
        if not self._is_hurrying:
            self._hurry(host)

    def _hurry(self, host: Host) -> None:
        logs = list(islice((log for log in self._waiting if log in self._new), _AT_ONCE))
        self._is_hurrying = bool(logs)
        if logs:
            self._place(host, logs, self._hurry)

    def settled(self, log: Log) -> None:
        """It is so: tell who waits."""
        for tell in self._waiting.pop(log, ()):
            tell()

    def _place(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        """Some may be on their way already, which is no harm."""
        foretold = {directory for log in logs if (directory := self._new[log]) is not None}
        if foretold:
            self._checkpoint(host, foretold, partial(self._sync, host, logs, then))
        else:
            self._sync(host, logs, then)

    def _sync(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        tickets: list[tuple[Log, FlushTicket]] = []
        for log in logs:
            with suppress(StorageError):  # of which the log has told
                ticket = log.begin_naming()
                if ticket is not None:
                    tickets.append((log, ticket))

        def work() -> list[StorageError | None]:
            return [_failure(ticket.work) for _, ticket in tickets]

        def done(results: list[StorageError | None] | BaseException) -> None:
            assert not isinstance(results, BaseException), results
            for (log, ticket), error in zip(tickets, results, strict=True):
                if log.failure is not None:
                    continue  # the directory of its name may be another one's by now
                error = error or _failure(ticket.finish)
                if error is not None:
                    self._on_failed(log, error)
            for log in logs:
                self._new.pop(log, None)
                self.settled(log)
            then(host)

        host.run_in_worker(work, done)


def _failure(step: Callable[[], None]) -> StorageError | None:
    try:
        step()
    except StorageError as error:
        return error
    return None
