"""Logs on their way to their places: a start after a crash would not find yet what is in them.

A new log has to tell the id of its topic, which a worker syncs first. Where an earlier topic had its name the
checkpoints have to forget that one's offsets before: after a crash they would be taken for the new one's.
Hardly anybody waits for it. Who does has his log named beside the others, which take turns.

A copy that takes the place of a log (`Arrival`) goes there at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from kwire.broker.storage.dirs.arrival import Arrival
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.disk import StorageError, failure_in
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host

_AT_ONCE = 32
"""So many take a turn: each has a file open meanwhile."""
_HURRIED_AT_ONCE = 8
"""So many that somebody waits for, each in a worker of its own."""

Told = Callable[[], None]


class Placing:
    """The logs of a broker that are not in their places yet."""

    def __init__(
        self,
        on_failed: Callable[[Log, StorageError], None],
        checkpoint: Callable[[Host, Iterable[LogDirectory], Told], None],
    ) -> None:
        """`checkpoint` writes the checkpoints of directories, and tells when that is done, or has failed."""
        self._on_failed = on_failed
        self._checkpoint = checkpoint
        self._new: dict[Log, LogDirectory | None] = {}
        """In the order in which they were made; with where checkpoints tell of an earlier one of the name."""
        self._arriving: dict[Log, Arrival] = {}
        """With those that have failed on the way: what they were to replace is still there."""
        self._waiting: dict[Log, list[Told]] = {}
        self._to_hurry: deque[Log] = deque()
        self._hurried = 0
        self._is_naming = False

    def add(self, log: Log, told_in: LogDirectory | None) -> None:
        """One was made; `name` is to follow. `told_in`: where checkpoints have offsets for its name."""
        self._new[log] = told_in

    def name(self, host: Host) -> None:
        """Have the new ones tell their topics' ids, waiting for the disks in a worker, some at a time."""
        if self._new and not self._is_naming:
            self._is_naming = True
            self._place(host, list(islice(self._new, _AT_ONCE)), self._named)

    def _named(self, host: Host) -> None:
        self._is_naming = False
        self.name(host)

    def arrive(self, arrival: Arrival, host: Host) -> None:
        """Have a copy come to the place of its log."""
        log = arrival.log
        self._arriving[log] = arrival

        def go_on() -> None:
            if arrival.work is not None:
                host.run_in_worker(arrival.work, done)
                return
            if self._arriving.get(log) is arrival and log.failure is None:
                del self._arriving[log]
            self._tell(log)

        def done(result: object) -> None:
            arrival.done(failure_in(result))
            go_on()

        go_on()

    def is_arriving(self, log: Log) -> bool:
        """Whether it is on its way to the place of another."""
        return log in self._arriving and log.failure is None

    def gone(self, log: Log) -> None:
        """A log is set aside: so is what it was to replace."""
        arrival = self._arriving.pop(log, None)
        if arrival is not None:
            arrival.take_along()

    def finish_now(self) -> None:
        """Have what takes the place of a log come there before this returns: the broker ends."""
        for arrival in self._arriving.values():
            arrival.finish_now()

    def when_placed(self, log: Log, host: Host, tell: Told) -> None:
        """Tell when a log is in its place, or has failed or gone; see to it now."""
        waiting = self._waiting.setdefault(log, [])
        waiting.append(tell)
        if len(waiting) == 1:
            self._to_hurry.append(log)
            self._hurry(host)

    def _hurry(self, host: Host) -> None:
        while self._to_hurry and self._hurried < _HURRIED_AT_ONCE:
            log = self._to_hurry.popleft()
            if log in self._new:
                self._hurried += 1
                self._place(host, [log], self._has_hurried)

    def _has_hurried(self, host: Host) -> None:
        self._hurried -= 1
        self._hurry(host)

    def _place(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        """Some may be on their way already, which is no harm."""
        told_in = list(dict.fromkeys(directory for log in logs if (directory := self._new[log]) is not None))
        if not told_in:
            self._sync(host, logs, then)
            return
        before = [log for log, directory in self._new.items() if directory in told_in]

        def forgotten() -> None:
            for log in before:
                if log in self._new:
                    self._new[log] = None
            self._sync(host, logs, then)

        self._checkpoint(host, told_in, forgotten)

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
                self._tell(log)
            then(host)

        host.run_in_worker(work, done)

    def _tell(self, log: Log) -> None:
        for tell in self._waiting.pop(log, ()):
            tell()


def _failure(step: Callable[[], None]) -> StorageError | None:
    try:
        step()
    except StorageError as error:
        return error
    return None
