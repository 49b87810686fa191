"""Partitions on their way from one log directory to another, while they are written to. KIP-113, KIP-858.

Each goes through the same steps: its copy is filled, piece by piece, each read in a thread and appended in a
turn of the loop; rolled segments are synced on the way. Once it has caught up the cluster is told where the
partition will be, and when that is committed the copy gets what has come since, and serves in the log's place
from the next turn on, while it is on its way there (`LogReplacement`). Whoever dies before that
finds both, and the copy goes on being filled.
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
"""How long a move waits that may not go on now."""
_MAX_WAIT_MS = 1000
"""After how long at most a limit is looked at again: it may have been raised."""
_FINAL_COPY_BYTES = 256 * 1024
"""How much may be missing of a copy that takes the place of its log: the loop copies it."""
_MAX_CONCURRENT = 4
"""How many partitions move at a time; the others wait for their turn."""

OnAssigned = Callable[[ApiError | None], None]


class DirectoryMoves:
    """The moves of one broker."""

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
        """`assign` tells the cluster in which directory a log lies, and calls back when that is committed.

        `is_cleaned`: whether a log is being compacted; it does not begin once a copy is there.
        `bytes_per_second`: how fast all moves together may copy, now; None for as fast as they can.
        `on_moved` is called with the old log and the new.
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
        """Where those are to move next that have not come to their places yet."""

        self._excess_bytes = 0
        """What was copied beyond the limit."""
        self._excess_updated_ms = 0

    def start(self, partition: Partition, directory: LogDirectory) -> None:
        """Move a partition; nothing happens where it lies there, or is on its way there already.

        Its copy is there when this returns, unless it has just moved: it comes to its place first, so that
        a start never finds two copies. StorageError, ApiError: KAFKA_STORAGE_ERROR.
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
            # As Kafka: a copy may be there already, where nobody can see it.
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if partition in self._moves:
            return
        move = self._moves[partition] = _Move(self, partition, directory)
        self.logger.info("%s moves to %s", partition.log.name, directory.path)
        self.host.call_soon(move.advance)

    def _start_queued(self, partition: Partition) -> None:
        """It has come to its place, or has failed on the way."""
        directory = self._queued.pop(partition, None)
        if directory is not None and partition.log.failure is None:
            self._try_start(partition, directory)

    def cancel(self, partition: Partition) -> None:
        """Throw away the copy of a partition, if it is on its way. StorageError."""
        self._queued.pop(partition, None)
        move = self._moves.pop(partition, None)
        if move is not None:
            move.cancel()
        future = self.log_manager.future_log(partition.topic, partition.index)
        if future is not None:
            self.logger.info(
                "%s stays where it is, the copy in %s goes", partition.log.name, future.directory
            )
            directory = self.log_manager.directory_of(future)
            self.log_manager.delete(future, self.host.now_ms(), sync=False)
            # In vain after a loss of power: then the copy is there again, and goes on where it was.
            self.host.run_in_worker(directory.sync, partial(self.log_manager.handle_sync_result, directory))

    def source_truncated(self, partition: Partition) -> None:
        """The log of a follower was cut, or has started anew: so is the copy, if it is on its way."""
        move = self._moves.get(partition)
        if move is not None:
            move.source_truncated()

    def resume(self, partition: Partition) -> None:
        """Go on with what a restart has interrupted, if there is anything. Never raises."""
        future = self.log_manager.future_log(partition.topic, partition.index)
        if future is None or future.topic_id != partition.topic_id:
            return
        self._try_start(partition, self.log_manager.directory_of(future))

    def _try_start(self, partition: Partition, directory: LogDirectory) -> None:
        try:
            self.start(partition, directory)
        except (StorageError, ApiError) as error:
            self.logger.error("%s cannot go on moving: %s", partition.log.name, error)

    def stop(self) -> None:
        """Do nothing more: the broker ends. What was copied stays for the next start."""
        for move in self._moves.values():
            move.is_ended = True
        self._moves.clear()
        self._queued.clear()

    # --- for the moves

    def move_ended(self, move: _Move) -> None:
        """A move is over, one way or the other."""
        if self._moves.get(move.partition) is move:
            del self._moves[move.partition]

    def delay_ms(self, move: _Move) -> int:
        """How long a move has to wait before it may copy more; 0 for not at all."""
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
        """Count what was copied."""
        self._excess_bytes += size_bytes


class _Move:
    """One partition on its way. `go_on` decides each time anew what comes next."""

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
        """What was read of the log before may not be in it any more."""
        self._truncations += 1
        self._guarded(lambda: self._copy.truncate_to_source(self._moves.host.now_ms()))

    def cancel(self) -> None:
        """Go no further, and let the cluster know where the partition stays."""
        self.is_ended = True
        if self._assigning or self._is_assigned:
            self._moves.assign(self.partition.log, self._source_directory, lambda error: None)

    def advance(self) -> None:
        """The next step."""
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

    def _assigned(self, error: ApiError | None) -> None:
        self._assigning = False
        if self.is_ended:
            return
        if error is not None:
            self._moves.logger.warning(
                "%s: the cluster cannot be told of its move: %s", self.partition.log.name, error
            )
            self._moves.host.schedule(_MAX_WAIT_MS, self.advance)
            return
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
        self._moves.logger.info("%s has moved to %s", replacement.log.name, self._directory.path)

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
        """It cannot go on; the copy stays, for a restart or for another attempt."""
        if self.is_ended:
            return
        self._moves.logger.error(
            "%s cannot move to %s: %s", self.partition.log.name, self._directory.path, error
        )
        self.cancel()
        self._moves.move_ended(self)
