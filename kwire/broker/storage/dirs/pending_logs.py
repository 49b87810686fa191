"""Logs on their way to their places: a start after a crash would not find yet what is in them.

A new log has to tell the id of its topic, which a worker syncs first. Where an earlier topic had its name the
checkpoints have to forget that one's offsets before: after a crash they would be taken for the new one's.
Hardly anybody waits for it. Who does has his log named beside the others, which take turns.

A copy that takes the place of a log (`LogReplacement`) goes there at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_replacement import LogReplacement
from kwire.broker.storage.disk import StorageError, failure_in
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host

_LOGS_PER_BATCH = 32
"""So many take a turn: each has a file open meanwhile."""
_URGENT_AT_ONCE = 8
"""So many that somebody waits for, each in a worker of its own."""

Callback = Callable[[], None]


class PendingLogs:
    """The logs of a broker that are not in their places yet."""

    def __init__(
        self,
        on_failed: Callable[[Log, StorageError], None],
        checkpoint: Callable[[Host, Iterable[LogDirectory], Callback], None],
    ) -> None:
        """`checkpoint` writes the checkpoints of directories, and tells when that is done, or has failed."""
        self._on_failed = on_failed
        self._checkpoint = checkpoint
        self._new: dict[Log, LogDirectory | None] = {}
        """In the order in which they were made; with where checkpoints tell of an earlier one of the name."""
        self._replacements: dict[Log, LogReplacement] = {}
        """With those that have failed on the way: what they were to replace is still there."""
        self._waiting: dict[Log, list[Callback]] = {}
        self._urgent: deque[Log] = deque()
        self._urgent_running = 0
        self._is_flushing = False

    def add(self, log: Log, checkpointed_in: LogDirectory | None) -> None:
        """One was made. `checkpointed_in`: where checkpoints have offsets for its name."""
        self._new[log] = checkpointed_in

    def flush_partition_metadata(self, host: Host) -> None:
        """Have the new ones tell their topics' ids, waiting for the disks in a worker, some at a time."""
        if self._new and not self._is_flushing:
            self._is_flushing = True
            self._flush_logs(host, list(islice(self._new, _LOGS_PER_BATCH)), self._batch_done)

    def _batch_done(self, host: Host) -> None:
        self._is_flushing = False
        self.flush_partition_metadata(host)

    def start_replacement(self, replacement: LogReplacement, host: Host) -> None:
        """Have a copy come to the place of its log."""
        log = replacement.log
        self._replacements[log] = replacement

        def go_on() -> None:
            if replacement.work is not None:
                host.run_in_worker(replacement.work, done)
                return
            if self._replacements.get(log) is replacement and log.failure is None:
                del self._replacements[log]
            self._notify(log)

        def done(result: object) -> None:
            replacement.done(failure_in(result))
            go_on()

        go_on()

    def is_replacing(self, log: Log) -> bool:
        """Whether it is on its way to the place of another."""
        return log in self._replacements and log.failure is None

    def discard(self, log: Log) -> None:
        """A log is set aside: so is what it was to replace."""
        replacement = self._replacements.pop(log, None)
        if replacement is not None:
            replacement.abandon()

    def finish_replacements(self) -> None:
        """Have what takes the place of a log come there before this returns: the broker ends."""
        for replacement in self._replacements.values():
            replacement.finish()

    def when_recoverable(self, log: Log, host: Host, callback: Callback) -> None:
        """Tell when a log is in its place, or has failed or gone; see to it now."""
        waiting = self._waiting.setdefault(log, [])
        waiting.append(callback)
        if len(waiting) == 1:
            self._urgent.append(log)
            self._flush_urgent(host)

    def _flush_urgent(self, host: Host) -> None:
        while self._urgent and self._urgent_running < _URGENT_AT_ONCE:
            log = self._urgent.popleft()
            if log in self._new:
                self._urgent_running += 1
                self._flush_logs(host, [log], self._urgent_done)

    def _urgent_done(self, host: Host) -> None:
        self._urgent_running -= 1
        self._flush_urgent(host)

    def _flush_logs(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        """Some may be on their way already, which is no harm."""
        checkpointed_in = list(
            dict.fromkeys(directory for log in logs if (directory := self._new[log]) is not None)
        )
        if not checkpointed_in:
            self._sync(host, logs, then)
            return
        before = [log for log, directory in self._new.items() if directory in checkpointed_in]

        def forgotten() -> None:
            for log in before:
                if log in self._new:
                    self._new[log] = None
            self._sync(host, logs, then)

        self._checkpoint(host, checkpointed_in, forgotten)

    def _sync(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        tickets: list[tuple[Log, FlushTicket]] = []
        for log in logs:
            with suppress(StorageError):  # of which the log has told
                ticket = log.begin_partition_metadata_flush()
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
                self._notify(log)
            then(host)

        host.run_in_worker(work, done)

    def _notify(self, log: Log) -> None:
        for callback in self._waiting.pop(log, ()):
            callback()


def _failure(step: Callable[[], None]) -> StorageError | None:
    try:
        step()
    except StorageError as error:
        return error
    return None
