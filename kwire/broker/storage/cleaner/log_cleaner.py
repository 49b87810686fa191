"""The log cleaner of a broker: it chooses logs, starts workers, and swaps in the cleaned segments.

It runs on the event loop. Threads wait for the workers and sync files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, CorruptCheckpoint, read_offsets
from kwire.broker.storage.cleaner.cleaner_metrics import CleanerMetrics
from kwire.broker.storage.cleaner.job import Cleaned, Done, Failed, Job, Report
from kwire.broker.storage.cleaner.log_to_clean import LogToClean, assess
from kwire.broker.storage.cleaner.segment_swap import SegmentSwap
from kwire.broker.storage.cleaner.worker_pool import Worker, WorkerPool, worker_pool_for
from kwire.broker.storage.dirs.checkpoint_files import CheckpointFiles, Offsets, OnWritten
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, ResourceShortage, StorageError, join
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.scan import InvalidBatch
from kwire.broker.storage.log.segment import CLEANED_SUFFIX, LogSegment
from kwire.host.host import Host, T, Timer
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicPartition

_MIN_READ_BYTES = 64 * 1024
_FORWARD_SCANS = 7
"""The number of forward scans of a log before another backward scan is tried."""
_RETRY_MS = 60_000
"""The delay before a failed cleaning is retried, in ms. For example, starting a process may fail."""


class CleanerSettings(Protocol):
    """The cleaner's configuration, which is read again for each cleaning."""

    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int


class LogCleaner:
    """The log cleaner of a broker. Kafka's LogCleaner."""

    def __init__(
        self,
        log_manager: LogManager,
        config: CleanerSettings,
        host: Host,
        disk: Disk,
        *,
        workers: WorkerPool | None = None,
    ) -> None:
        self.log_manager = log_manager
        self.config = config
        self.host = host
        self.logger = host.logger("kwire.cleaner")
        self.disk = disk
        self.workers = worker_pool_for(disk) if workers is None else workers
        self.stopped = False
        self._running: dict[Log, _CleaningTask] = {}
        self._cleaned_offsets: dict[Log, int] = {}
        self._has_read_checkpoints = False
        self._files: dict[str, CheckpointFiles] = {}
        """The cleaner checkpoint of each log directory."""
        self._uncleanable: dict[Log, int | None] = {}
        """Logs whose cleaning failed, with the monotonic time of the next attempt in ms. None: no attempt."""
        self._forward_scans_left: dict[Log, int] = {}
        """Logs for which a backward scan was not possible, with the number of forward scans before another
        backward scan is tried."""
        self._timer: Timer | None = None
        self.completed_cleanings = 0
        self.metrics = CleanerMetrics(host.monotonic_ms())

    # --- start and stop

    def start(self) -> None:
        """Start the periodic cleaning, if log.cleaner.enable is set. The caller must have loaded all logs."""
        if not self.config.log_cleaner_enable:
            return
        self._read_checkpoints()
        self._timer = self.host.schedule_check(self.config.log_cleaner_backoff_ms, self._tick)

    def stop(self) -> None:
        """Kill all workers, before the logs are closed. After a restart, unfinished cleanings begin again."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for cleaning in list(self._running.values()):
            cleaning.stop()
        self._running.clear()
        self.workers.close()

    def _tick(self) -> None:
        if self.stopped:
            return
        self._timer = self.host.schedule_check(self.config.log_cleaner_backoff_ms, self._tick)
        self._forget_logs()
        self.workers.reap_exited()
        self.start_due_cleanings()
        self._apply_retention()

    def start_due_cleanings(self) -> None:
        """Start to clean the logs that are due, with at most log.cleaner.threads cleanings at a time."""
        while not self.stopped and len(self._running) < self.config.log_cleaner_threads:
            log_to_clean = self._dirtiest()
            if log_to_clean is None:
                return
            cleaning = self._running[log_to_clean.log] = _CleaningTask(self, log_to_clean)
            self.metrics.began(log_to_clean.log, self.host.monotonic_ms())
            cleaning.begin()

    @property
    def cleaning(self) -> list[Log]:
        """The logs that are being cleaned."""
        return list(self._running)

    def uncleanable(self) -> Iterator[tuple[Log, int]]:
        """Yield each log whose cleaning failed, with the size of the part that should be cleaned in bytes."""
        for log in list(self._uncleanable):
            try:
                log_to_clean = assess(log, self._cleaned_offsets.get(log), self.host.now_ms())
            except (StorageError, InvalidBatch):
                log_to_clean = None  # the size of an unreadable log is unknown
            yield log, 0 if log_to_clean is None else log_to_clean.cleanable_bytes

    # --- choosing logs

    def _compacted(self) -> list[Log]:
        # A log that is being copied to another directory is not cleaned. If a tombstone were removed before
        # it is copied, the records that the tombstone deletes would remain in the copy.
        return [
            log
            for log in self.log_manager.logs()
            if log.failure is None
            and log.is_recoverable
            and log.config.compact
            and self.log_manager.future_log(log.topic, log.partition) is None
        ]

    def _dirtiest(self) -> LogToClean | None:
        now_ms = self.host.now_ms()
        found: LogToClean | None = None
        metrics = self.metrics
        metrics.last_run_ms, metrics.max_dirty_ratio = self.host.monotonic_ms(), 0.0
        for log in self._compacted():
            if log in self._running or self._is_uncleanable(log):
                continue
            try:
                log_to_clean = assess(log, self._cleaned_offsets.get(log), now_ms)
            except (StorageError, InvalidBatch) as error:
                is_permanent = not isinstance(error, ResourceShortage)
                self._mark_uncleanable(log, str(error), is_permanent=is_permanent)
                continue
            if log_to_clean is not None:
                metrics.max_dirty_ratio = max(metrics.max_dirty_ratio, log_to_clean.dirty_ratio)
            if log_to_clean is None or not log_to_clean.is_due:
                continue
            if found is None or log_to_clean.dirty_ratio > found.dirty_ratio:
                found = log_to_clean
        return found

    def _is_uncleanable(self, log: Log) -> bool:
        if log not in self._uncleanable:
            return False
        until_ms = self._uncleanable[log]
        if until_ms is None or self.host.monotonic_ms() < until_ms:
            return True
        del self._uncleanable[log]
        return False

    def _mark_uncleanable(self, log: Log, reason: str, *, is_permanent: bool) -> None:
        self.logger.warning(
            "Marking %s as uncleanable %s: %s",
            log.name,
            "until a restart" if is_permanent else f"for {_RETRY_MS // 1000} s",
            reason,
        )
        self._uncleanable[log] = None if is_permanent else self.host.monotonic_ms() + _RETRY_MS

    def _apply_retention(self) -> None:
        """Delete old segments of compacted logs by log start offset; if compact,delete also by time, size."""
        for log in self._compacted():
            if log not in self._running:
                try:
                    log.delete_old_segments(self.host.now_ms())
                except StorageError as error:
                    self.logger.error("Cannot delete old segments of %s: %s", log.name, error)

    # --- cleaner checkpoints

    def cleaned_offset(self, log: Log) -> int | None:
        """Return the offset up to which a log is cleaned, or None if the log was never cleaned."""
        return self._cleaned_offsets.get(log)

    def handle_log_replaced(self, old: Log, new: Log) -> None:
        """Move the cleaned offset of a log to the log that has replaced it in another directory."""
        offset = self._cleaned_offsets.pop(old, None)
        if offset is None:
            return
        directory = self.log_manager.directory_of(new)

        def gone(error: StorageError | None) -> None:
            if error is None and not directory.offline:
                self._cleaned_offsets.setdefault(new, offset)
                self._write_checkpoint(directory)

        # Remove the old entry first: Kafka's cleaner fails if a partition has entries in two directories.
        self._write_checkpoint(self.log_manager.directory_of(old), gone)

    def handle_logs_deleted(self) -> None:
        """Remove the checkpoint entries of deleted logs."""
        if self._has_read_checkpoints:
            self._forget_logs()

    def _read_checkpoints(self) -> None:
        """Read the cleaner checkpoints, and drop the entries of logs that are not in the directory."""
        self._has_read_checkpoints = True
        for directory in self.log_manager.directories():
            if directory.offline or directory.holds_only_metadata:
                continue
            path = join(directory.path, CLEANED_OFFSETS)
            files = self._files[directory.path] = CheckpointFiles(
                self.disk, directory.path, self._cleaned_offsets_in
            )
            offsets: dict[TopicPartition, int] = {}
            try:
                if not self.disk.exists(path):
                    # As in Kafka, the file exists from the first start on.
                    self.disk.write(path, b"", sync=False)
                offsets = read_offsets(self.disk, path)
                files.record_initial(CLEANED_OFFSETS, offsets)
            except CorruptCheckpoint as error:
                self.logger.warning("Treating the cleaner checkpoint as empty: %s", error)
            except StorageError as error:
                self.logger.warning("Treating the cleaner checkpoint as empty: %s", error)
                continue
            for log in self.log_manager.logs_in(directory.path):
                offset = offsets.get((log.topic, log.partition))
                if offset is not None and self.log_manager.get(log.topic, log.partition) is log:
                    self._cleaned_offsets[log] = offset
            try:
                files.write_now()
            except StorageError as error:
                self._handle_write_failure(directory, error)

    def _write_checkpoint(self, directory: LogDirectory, then: OnWritten = lambda error: None) -> None:
        """Write the cleaner checkpoint of a directory if it is outdated; pass the error or None to `then`."""

        def written(error: StorageError | None) -> None:
            if error is not None:
                self._handle_write_failure(directory, error)
            then(error)

        if directory.offline or directory.path not in self._files:
            then(None)
        else:
            self._files[directory.path].write(self.host, written)

    def _handle_write_failure(self, directory: LogDirectory, error: StorageError) -> None:
        self.logger.error("Cannot write %s of log directory %s: %s", CLEANED_OFFSETS, directory.path, error)
        self.log_manager.handle_log_dir_failure(directory, error)

    def _cleaned_offsets_in(self, path: str) -> Mapping[str, Offsets]:
        offsets = {
            (log.topic, log.partition): self._cleaned_offsets[log]
            for log in self.log_manager.logs_in(path)
            if log in self._cleaned_offsets
        }
        return {CLEANED_OFFSETS: offsets}

    def _forget_logs(self) -> None:
        """Forget logs that no longer exist, and write the checkpoints without them.

        Must be called before a new log with the same name is created.
        """
        present = set(self.log_manager.logs())
        gone = [log for log in self._cleaned_offsets if log not in present]
        for log in gone:
            del self._cleaned_offsets[log]
        for log in [log for log in self._uncleanable if log not in present]:
            del self._uncleanable[log]
        for log in [log for log in self._forward_scans_left if log not in present]:
            del self._forward_scans_left[log]
        if gone:
            for directory in self.log_manager.directories():
                self._write_checkpoint(directory)

    def scans_backward(self, log: Log) -> bool:
        """Return whether the next cleaning of the log tries a backward scan."""
        return not self._forward_scans_left.get(log)

    # --- results

    def handle_finished(self, log: Log, outcome: Done | Failed | None) -> None:
        """Record the result of a cleaning, or None if the log has changed or failed during the cleaning."""
        self._running.pop(log, None)
        self.metrics.ended(log, outcome, self.host.monotonic_ms())
        if isinstance(outcome, Done):
            self._cleaned_offsets[log] = outcome.end_offset
            self.completed_cleanings += 1
            if outcome.scan_backward:
                self._forward_scans_left.pop(log, None)
            elif not self.scans_backward(log):
                self._forward_scans_left[log] -= 1
            else:
                self._forward_scans_left[log] = _FORWARD_SCANS
            self.logger.info(
                "Cleaned %s up to offset %d: kept %d of %d bytes and %d of %s (unique keys: %d)",
                log.name,
                outcome.end_offset,
                outcome.bytes_kept,
                outcome.bytes_before,
                outcome.records_kept,
                plural(outcome.records_read, "record"),
                outcome.keys,
            )
            self._write_checkpoint(self.log_manager.directory_of(log))
        elif isinstance(outcome, Failed):
            self._mark_uncleanable(log, outcome.reason, is_permanent=outcome.is_permanent)
        if outcome is not None and not self.stopped:
            self.host.call_soon(self.start_due_cleanings)


class _CleaningTask:
    """The cleaning of one log by a worker."""

    def __init__(self, cleaner: LogCleaner, log_to_clean: LogToClean) -> None:
        self._cleaner = cleaner
        self._disk = cleaner.disk
        self._log = log_to_clean.log
        self._directory = log_to_clean.log.directory
        self._sources: dict[int, LogSegment] = {
            segment.base_offset: segment
            for segment in log_to_clean.log.segments
            if segment.base_offset < log_to_clean.upper_bound_offset
        }
        self._job = self._job_for(log_to_clean)
        self._worker: Worker | None = None
        self._swap: SegmentSwap | None = None
        """The swap whose new segment is in use, until the swap is complete; otherwise None."""
        self._ended = False

    def _job_for(self, log_to_clean: LogToClean) -> Job:
        log, settings = log_to_clean.log, self._cleaner.config
        config = log.config
        threads = max(1, settings.log_cleaner_threads)
        return Job(
            directory=log.directory,
            segments=[(segment.base_offset, segment.size_bytes) for segment in log.segments],
            log_start_offset=log.log_start_offset,
            first_dirty_offset=log_to_clean.first_dirty_offset,
            upper_bound_offset=log_to_clean.upper_bound_offset,
            now_ms=self._cleaner.host.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=int(
                settings.log_cleaner_dedupe_buffer_size / threads * settings.log_cleaner_io_buffer_load_factor
            ),
            read_bytes=max(_MIN_READ_BYTES, settings.log_cleaner_io_buffer_size // threads),
            bytes_per_second=max(1.0, settings.log_cleaner_io_max_bytes_per_second / threads),
            last_records=[
                (producer_id, state.batches[-1].last_offset if state.batches else None, state.epoch)
                for producer_id, state in log.producers.producers.items()
            ],
            scan_backward=self._cleaner.scans_backward(log),
        )

    def begin(self) -> None:
        self._in_thread(lambda: self._cleaner.workers.start(self._job), self._started)

    def stop(self) -> None:
        """Stop at once.

        A swap whose new segment is already in use is completed; any other swap is abandoned.
        """
        self._ended = True
        if self._worker is not None:
            self._worker.kill()
        if self._swap is not None:
            try:
                self._swap.complete()
            except StorageError as error:
                self._cleaner.log_manager.handle_log_failure(self._log, error)

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `work` in a thread and call `then` with its return value. An exception ends the cleaning."""

        def done(result: T | BaseException) -> None:
            if isinstance(result, StorageError) and not isinstance(result, ResourceShortage):
                self._handle_disk_failure(result)
            elif isinstance(result, BaseException):
                self._end(Failed(f"{type(result).__name__}: {result}", is_permanent=False))
            else:
                self._guarded(lambda: then(result))

        self._cleaner.host.run_in_worker(work, done)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except ResourceShortage as error:
            self._end(Failed(str(error), is_permanent=False))
        except StorageError as error:
            self._handle_disk_failure(error)

    def _handle_disk_failure(self, error: StorageError) -> None:
        """Take the log directory offline and end the cleaning."""
        self._cleaner.log_manager.handle_log_failure(self._log, error)
        self._end(None)

    # --- steps

    def _started(self, worker: Worker) -> None:
        if self._ended:
            worker.kill()
            return
        self._worker = worker
        self._in_thread(worker.next_report, self._reported)

    def _reported(self, report: Report) -> None:
        if self._ended:
            return
        if isinstance(report, Failed) and report.is_disk_error and self._log.failure is None:
            # As in Kafka, a failed write takes the log directory offline.
            self._handle_disk_failure(StorageError(f"cannot clean {self._log.name}: {report.reason}"))
            return
        if not isinstance(report, Cleaned):
            self._end(report)
            return
        old = [self._sources[base_offset] for base_offset in report.replaced]
        swap = SegmentSwap(self._disk, self._log, old, report, self._cleaner.host.now_ms())
        if not self._still_possible(swap):
            return
        swap.prepare()
        self._in_thread(swap.sync, lambda _: self._prepared(swap))

    def _prepared(self, swap: SegmentSwap) -> None:
        if self._ended or not self._still_possible(swap):
            return
        self._swap = swap
        swap.install()
        self._in_thread(swap.sync, lambda _: self._installed(swap))

    def _installed(self, swap: SegmentSwap) -> None:
        if self._ended:
            return
        swap.complete()
        self._swap = None
        assert self._worker is not None
        self._in_thread(self._worker.next_report, self._reported)

    def _still_possible(self, swap: SegmentSwap) -> bool:
        if swap.is_possible:
            return True
        if self._log.failure is None and self._log.directory == self._directory:
            swap.undo()
        self._end(None)
        return False

    def _end(self, outcome: Done | Failed | None) -> None:
        if self._ended:
            return
        self._ended = True
        if isinstance(outcome, Done):
            self._cleaner.handle_finished(self._log, outcome)
            return

        def dead(_: object) -> None:
            self._remove_leftovers()
            self._cleaner.handle_finished(self._log, outcome if self._log.failure is None else None)

        # Remove files only after the worker has exited, because until then it may write more files.
        self._cleaner.host.run_in_worker(
            self._worker.kill if self._worker is not None else lambda: None, dead
        )

    def _remove_leftovers(self) -> None:
        """Remove the worker's `.cleaned` files, unless the log has failed, or was deleted or moved."""
        if self._log.failure is not None or self._log.directory != self._directory:
            return
        try:
            for name in self._disk.names(self._directory):
                if name.endswith(CLEANED_SUFFIX):
                    self._disk.remove(join(self._directory, name))
        except StorageError as error:
            self._cleaner.logger.warning("Cannot remove .cleaned files of %s: %s", self._log.name, error)
