"""Logs that log recovery would not find or not check after a crash: new, truncated and replacing logs.

A new log needs a durable `partition.metadata`. If an earlier topic had the same name, the offset checkpoints
may still have the offsets of its log. These offsets must be removed first, because a start after a crash
would apply them to the new log. New logs are processed in batches. If a request waits for a log, the log is
processed at once, concurrently with the current batch.

A truncated log may have a recovery point in the checkpoint file that is beyond its end. Log recovery would
not check the records that are appended before this offset. So the checkpoint file is written before the next
append, as in Kafka.

A future log that replaces a current log (`LogReplacement`) is processed at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_replacement import LogReplacement
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError, failure_in
from kwire.broker.storage.log.flush import FlushTicket
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host

_LOGS_PER_BATCH = 32
"""The number of logs in a batch. Each log has an open file during the flush."""
_URGENT_AT_ONCE = 8
"""The maximum number of logs with waiting requests that are processed at a time. Each log takes a worker."""

Callback = Callable[[], None]


class PendingLogs:
    """The logs of a broker that are not recoverable yet."""

    def __init__(
        self,
        on_failed: Callable[[Log, StorageError], None],
        checkpoint: Callable[[Host, Iterable[LogDirectory], Callback], None],
        directory_of: Callable[[Log], LogDirectory],
    ) -> None:
        """`checkpoint` writes the checkpoints of directories, then calls back, even after a disk failure."""
        self._on_failed = on_failed
        self._checkpoint = checkpoint
        self._directory_of = directory_of
        self._new: dict[Log, LogDirectory | None] = {}
        """New and truncated logs, oldest first. The value is the directory whose checkpoints have offsets of
        an earlier log, or from before the truncation."""
        self._replacements: dict[Log, LogReplacement] = {}
        """Replacements in progress, and failed replacements whose old log still exists."""
        self._waiting: dict[Log, list[Callback]] = {}
        self._urgent: deque[Log] = deque()
        self._urgent_running = 0
        self._is_flushing = False

    def add(self, log: Log, checkpointed_in: LogDirectory | None) -> None:
        """Add a new log.

        `checkpointed_in` is the directory whose checkpoints may have offsets of an earlier log with the same
        topic and partition; None if no checkpoints have any.
        """
        self._new[log] = checkpointed_in

    def flush_partition_metadata(self, host: Host) -> None:
        """Make the `partition.metadata` of the new logs durable in workers, batch by batch."""
        if self._new and not self._is_flushing:
            self._is_flushing = True
            self._flush_logs(host, list(islice(self._new, _LOGS_PER_BATCH)), self._batch_done)

    def _batch_done(self, host: Host) -> None:
        self._is_flushing = False
        self.flush_partition_metadata(host)

    def start_replacement(self, replacement: LogReplacement, host: Host) -> None:
        """Run the steps of a replacement; those that wait for a disk run in workers."""
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
        """Return whether the log is a future log that is replacing the current log."""
        return log in self._replacements and log.failure is None

    def discard(self, log: Log) -> None:
        """Abandon the replacement by a future log that is being deleted, and delete the old log, too.

        Do nothing for any other log.
        """
        replacement = self._replacements.pop(log, None)
        if replacement is not None:
            replacement.abandon()

    def finish_replacements(self) -> None:
        """Complete all replacements on the event loop, for a shutdown."""
        for replacement in self._replacements.values():
            replacement.finish()

    def when_recoverable(self, log: Log, host: Host, callback: Callback) -> None:
        """Call `callback` after a log has become recoverable, has failed or was deleted.

        A new or truncated log is processed at once. Must be called only for a log that is not recoverable
        yet. If the log is truncated meanwhile, it may still not be recoverable.
        """
        if log not in self._new and log not in self._replacements and log.failure is None:
            self._new[log] = self._directory_of(log)  # the log was truncated
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
        """Make checkpoints, then the `partition.metadata` of new logs durable.

        Concurrent calls may flush the same log.
        """
        checkpointed_in = list(
            dict.fromkeys(directory for log in logs if (directory := self._new[log]) is not None)
        )
        if not checkpointed_in:
            self._sync(host, logs, then)
            return
        before = {
            log: log.recovery_point
            for log, directory in self._new.items()
            if directory is not None and directory in checkpointed_in
        }

        def forgotten() -> None:
            for log, recovery_point in before.items():
                log.on_checkpointed(recovery_point)
                if log in self._new:
                    self._new[log] = None
            self._sync(host, logs, then)

        self._checkpoint(host, checkpointed_in, forgotten)

    def _sync(self, host: Host, logs: list[Log], then: Callable[[Host], None]) -> None:
        tickets: list[tuple[Log, FlushTicket]] = []
        later: list[Log] = []
        for number, log in enumerate(logs):
            try:
                ticket = log.begin_partition_metadata_flush()
            except ResourceShortage:
                logs, later = logs[:number], logs[number:]
                break
            except StorageError:
                continue  # the error has already taken the log offline
            if ticket is not None:
                tickets.append((log, ticket))
        if later and not logs:
            host.schedule(SHORTAGE_RETRY_MS, lambda: self._sync(host, later, then))
            return

        def work() -> list[StorageError | None]:
            return [_failure(ticket.work) for _, ticket in tickets]

        def done(results: list[StorageError | None] | BaseException) -> None:
            assert not isinstance(results, BaseException), results
            for (log, ticket), error in zip(tickets, results, strict=True):
                if log.failure is not None:
                    continue  # another log may already have the same directory name
                error = error or _failure(ticket.finish)
                if error is not None:
                    self._on_failed(log, error)
            for log in logs:
                self._new.pop(log, None)
                self._notify(log)
            if later:
                self._sync(host, later, then)
            else:
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
