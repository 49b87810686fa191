"""Moves of replicas between log directories while clients use the replicas. KIP-113, KIP-858.

Like Kafka's ReplicaAlterLogDirsThread, the broker fills a future log in the new directory, region by region:
a worker thread reads a region of the current log, and the event loop appends the region to the future log.
Rolled segments of the future log are synced during the copy. When the future log has nearly caught up, the
broker reports the new directory to the controller. After the controller has committed the new directory, the
event loop copies the remaining records, and the future log replaces the current log. The replacement takes
effect with the next turn of the event loop, while a worker still renames the directory. If the broker dies
before the replacement, it finds both logs at the next start, and the move continues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.dirs.future_log import FutureLog
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host, T
from kwire.wire.errors import ApiError, ErrorCode

_PAUSE_MS = 200
"""The pause of a move that may not copy now, in ms."""
_MAX_WAIT_MS = 1000
"""The longest wait before the rate limit is checked again, in ms: the limit may have been raised."""
_FINAL_COPY_BYTES = 256 * 1024
"""The lag, in bytes, at which the future log may replace the current log. The event loop copies the rest."""
_MAX_CONCURRENT = 4
"""The number of moves that copy at the same time. Further moves wait."""

OnAssigned = Callable[[], None]


class DirectoryMoves:
    """All moves between log directories on one broker."""

    def __init__(
        self,
        log_manager: LogManager,
        host: Host,
        *,
        assign: Callable[[Log, LogDirectory, OnAssigned], None],
        is_cleaned: Callable[[Log], bool],
        bytes_per_second: Callable[[], int | None],
        on_moved: Callable[[Log, Log], None],
    ) -> None:
        """`assign` reports the directory of a log until the controller has committed it, then calls back.

        `is_cleaned` returns whether a log is being compacted; the cleaner skips logs that have a future log.
        `bytes_per_second` returns the current limit for all moves together, or None for no limit. `on_moved`
        is called with the old log and the new log.
        """
        self.log_manager = log_manager
        self.host = host
        self.logger = host.logger("kwire.partition")
        self.assign = assign
        self.is_cleaned = is_cleaned
        self.on_moved = on_moved
        self._bytes_per_second = bytes_per_second
        self._moves: dict[Partition, _Move] = {}
        self._queued: dict[Partition, LogDirectory] = {}
        """The next move of each partition whose previous move is still replacing the log."""
        self._excess_bytes = 0
        """Copied bytes beyond the rate limit."""
        self._excess_updated_ms = 0

    def start(self, partition: Partition, directory: LogDirectory) -> None:
        """Start to move a partition, unless it is already in the directory or another move is in progress.

        The future log exists when this method returns. If the previous move is still replacing the log, the
        new move is queued instead, so that a broker never finds two future logs at its start. Raises
        StorageError, or ApiError KAFKA_STORAGE_ERROR if an offline directory may hold a future log.
        """
        log, pending_logs = partition.log, self.log_manager.pending_logs
        self._queued.pop(partition, None)
        if self.log_manager.directory_of(log) is directory:
            return
        if pending_logs.is_replacing(log):
            self._queued[partition] = directory
            pending_logs.when_recoverable(log, self.host, partial(self._start_queued, partition))
            return
        existing = self.log_manager.future_log(partition.topic, partition.index)
        if existing is None and self.log_manager.any_offline:
            # As in Kafka: the offline directory may already hold a future log of the partition.
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if partition in self._moves:
            return
        move = self._moves[partition] = _Move(self, partition, directory)
        self.logger.info("Moving %s to log directory %s", partition.log.name, directory.path)
        self.host.call_soon(move.advance)

    def _start_queued(self, partition: Partition) -> None:
        """Start the queued move of a partition after the log was replaced or the replacement failed."""
        directory = self._queued.pop(partition, None)
        if directory is not None and partition.log.failure is None:
            self._try_start(partition, directory)

    def cancel(self, partition: Partition) -> None:
        """Cancel the move of a partition, if there is one, and delete its future log. Raises StorageError."""
        self._queued.pop(partition, None)
        move = self._moves.pop(partition, None)
        if move is not None:
            move.cancel()
        future = self.log_manager.future_log(partition.topic, partition.index)
        if future is not None:
            self.logger.info(
                "Canceled moving %s: deleting future log %s", partition.log.name, future.directory
            )
            directory = self.log_manager.directory_of(future)
            self.log_manager.delete(future, self.host.now_ms(), sync=False)
            # If a power loss undoes the deletion, the broker finds the future log again, and the move
            # continues.
            self.host.run_in_worker(directory.sync, partial(self.log_manager.handle_sync_result, directory))

    def source_truncated(self, partition: Partition) -> None:
        """Truncate the future log, if there is one, after the current log was truncated or restarted."""
        move = self._moves.get(partition)
        if move is not None:
            move.source_truncated()

    def resume(self, partition: Partition) -> None:
        """Resume the move that a restart of the broker interrupted, if there was one. Never raises."""
        future = self.log_manager.future_log(partition.topic, partition.index)
        if future is None or future.topic_id != partition.topic_id:
            return
        self._try_start(partition, self.log_manager.directory_of(future))

    def _try_start(self, partition: Partition, directory: LogDirectory) -> None:
        try:
            self.start(partition, directory)
        except (StorageError, ApiError) as error:
            self.logger.error(
                "Cannot start to move %s to log directory %s, the next start of the broker tries again: %s",
                *(partition.log.name, directory.path, error),
            )

    def stop(self) -> None:
        """Stop all moves because the broker is shutting down. The next start of the broker resumes them."""
        for move in self._moves.values():
            move.is_ended = True
        self._moves.clear()
        self._queued.clear()

    # --- for the moves

    def move_ended(self, move: _Move) -> None:
        """Forget a move that has finished or failed."""
        if self._moves.get(move.partition) is move:
            del self._moves[move.partition]

    def delay_ms(self, move: _Move) -> int:
        """Return how many ms a move has to wait before it may copy more; 0 if it may copy now."""
        running = list(self._moves.values())[:_MAX_CONCURRENT]
        if move not in running or self.is_cleaned(move.partition.log):
            return _PAUSE_MS
        limit = self._bytes_per_second()
        if limit is None:
            self._excess_bytes = 0
            return 0
        now_ms = self.host.monotonic_ms()
        passed_ms = max(0, now_ms - self._excess_updated_ms)
        self._excess_bytes = max(0, self._excess_bytes - passed_ms * limit // 1000)
        self._excess_updated_ms = now_ms
        return min(_MAX_WAIT_MS, -(-self._excess_bytes * 1000 // max(1, limit)))

    def record_copied(self, size_bytes: int) -> None:
        """Count copied bytes against the rate limit."""
        self._excess_bytes += size_bytes


class _Move:
    """The move of one partition. Each call of `advance` does the next step of the move."""

    def __init__(self, moves: DirectoryMoves, partition: Partition, directory: LogDirectory) -> None:
        self.partition = partition
        self.is_ended = False
        self._moves = moves
        self._directory = directory
        self._source_directory = moves.log_manager.directory_of(partition.log)
        self._copy = FutureLog(moves.log_manager, partition.log, directory, moves.host.now_ms())
        moves.log_manager.pending_logs.flush_partition_metadata(moves.host)
        self._assigning = False
        self._is_assigned = False
        self._is_synced = False
        self._truncations = 0

    def source_truncated(self) -> None:
        """Truncate the future log, and discard a read in progress, which may have truncated records."""
        self._truncations += 1
        self._guarded(lambda: self._copy.truncate_to_source(self._moves.host.now_ms()))

    def cancel(self) -> None:
        """Stop the move.

        If the new directory was reported to the controller, report the old directory again.
        """
        self.is_ended = True
        if self._assigning or self._is_assigned:
            self._moves.assign(self.partition.log, self._source_directory, lambda: None)

    def advance(self) -> None:
        """Do the next step of the move, or schedule it for later."""
        if self.is_ended:
            return
        moves, copy = self._moves, self._copy
        if self.partition.role is Role.OFFLINE or self.partition.log is not copy.source:
            self._fail(StorageError("the partition is offline"))
            return
        delay_ms = moves.delay_ms(self)
        if delay_ms:
            moves.host.schedule(delay_ms, self.advance)
            return
        self._guarded(self._step)

    def _step(self) -> None:
        copy, host = self._copy, self._moves.host
        piece = copy.next_region(host.now_ms())
        for log in (copy.source, copy.log):
            if not log.is_recoverable:
                self._moves.log_manager.pending_logs.when_recoverable(log, host, self.advance)
                return
        if copy.log.has_unflushed_segments or copy.log.awaits_sync:
            self._flush()
        elif piece is not None and copy.lag_bytes > _FINAL_COPY_BYTES:
            self._in_worker(piece.read, partial(self._read, self._truncations))
        elif not self._is_synced:
            self._is_synced = True
            self._flush()
        elif self._is_assigned:
            self._finish()
        else:
            self._assigning = True
            self._moves.assign(copy.log, self._directory, self._assigned)

    def _flush(self) -> None:
        ticket = self._copy.log.begin_flush()

        def flushed(_: object) -> None:
            ticket.finish()
            self.advance()

        self._in_worker(ticket.work, flushed, self._copy.log)

    def _read(self, truncations: int, data: bytes) -> None:
        if self._copy.source is self.partition.log and truncations == self._truncations:
            self._moves.record_copied(self._copy.append(data, self._moves.host.now_ms()))
        self.advance()

    def _assigned(self) -> None:
        self._assigning = False
        self._is_assigned = True
        self.advance()

    def _finish(self) -> None:
        moves, partition, now_ms = self._moves, self.partition, self._moves.host.now_ms()
        old = partition.log
        old.commit()
        replacement = self._copy.replace_source(now_ms)
        partition.log = replacement.log
        self.is_ended = True
        moves.move_ended(self)
        moves.on_moved(old, replacement.log)
        moves.log_manager.pending_logs.start_replacement(replacement, moves.host)
        self._moves.logger.info("Moved %s to log directory %s", replacement.log.name, self._directory.path)

    def _in_worker(
        self, work: Callable[[], T], then: Callable[[T], None], concerned: Log | None = None
    ) -> None:
        log = concerned or self._copy.source

        def done(result: T | BaseException) -> None:
            if isinstance(result, BaseException):
                error = result if isinstance(result, StorageError) else StorageError(str(result))
                if log.failure is None:
                    self._moves.log_manager.handle_log_failure(log, error)
                self._fail(error)
            elif not self.is_ended:
                self._guarded(lambda: then(result))

        self._moves.host.run_in_worker(work, done)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (StorageError, ApiError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the move with an error. The future log is kept, for a later attempt or the next start."""
        if self.is_ended:
            return
        self._moves.logger.error(
            "Cannot move %s to log directory %s, the replica stays where it is: %s. Start the move again, "
            "or restart the broker",
            *(self.partition.log.name, self._directory.path, error),
        )
        self.cancel()
        self._moves.move_ended(self)
