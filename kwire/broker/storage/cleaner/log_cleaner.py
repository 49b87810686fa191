"""Has logs cleaned in the course of time: chooses them, starts workers, swaps in what these have written.

All of this is on the loop and short, but for waiting on workers and for syncs, which are done in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, CorruptCheckpoint, read_offsets
from kwire.broker.storage.cleaner.job import Cleaned, Done, Failed, Job, Report
from kwire.broker.storage.cleaner.log_to_clean import LogToClean, assess
from kwire.broker.storage.cleaner.segment_swap import SegmentSwap
from kwire.broker.storage.cleaner.worker_pool import Worker, WorkerPool, worker_pool_for
from kwire.broker.storage.dirs.checkpoint_files import CheckpointFiles, Offsets, OnWritten
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.scan import InvalidBatch
from kwire.broker.storage.log.segment import CLEANED_SUFFIX, LogSegment
from kwire.host.host import Host, T, Timer
from kwire.wire.primitives import TopicPartition

_MIN_READ_BYTES = 64 * 1024
_FORWARD_SCANS = 7
"""For so many cleanings a log is read from its beginning that could not be read from its end."""
_RETRY_MS = 60_000
"""When a log is tried again that could not be cleaned, for lack of a process say."""


class CleanerSettings(Protocol):
    """What a broker's configuration says of cleaning; read anew for each log."""

    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int


class LogCleaner:
    """The cleaner of a broker."""

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
        """Whether it is known what the checkpoints say."""
        self._files: dict[str, CheckpointFiles] = {}
        """How far logs are clean, on the disk: by directory."""
        self._uncleanable: dict[Log, int | None] = {}
        """Logs that could not be cleaned, and when to try again; None for never."""
        self._forward_scans_left: dict[Log, int] = {}
        """Logs that could not be read from their ends, and how often that is not to be tried now."""
        self._timer: Timer | None = None
        self.completed_cleanings = 0
        """How many logs were cleaned, as far as they were to be."""

    # --- life

    def start(self) -> None:
        """Begin, when all logs are open. What may be dynamic in the configuration may change later."""
        if not self.config.log_cleaner_enable:
            return
        self._read_checkpoints()
        self._timer = self.host.schedule_check(self.config.log_cleaner_backoff_ms, self._tick)

    def stop(self) -> None:
        """End every worker, before the logs are closed. What was not put in place is done again some day."""
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
        """Start cleaning what is due, as far as there are threads."""
        while not self.stopped and len(self._running) < self.config.log_cleaner_threads:
            log_to_clean = self._dirtiest()
            if log_to_clean is None:
                return
            cleaning = self._running[log_to_clean.log] = _CleaningTask(self, log_to_clean)
            cleaning.begin()

    @property
    def cleaning(self) -> list[Log]:
        """The logs that are being cleaned."""
        return list(self._running)

    # --- choosing

    def _compacted(self) -> list[Log]:
        # What is being copied to another directory must not change meanwhile: a tombstone that goes before it
        # is copied would leave what it deletes in the copy.
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
        for log in self._compacted():
            if log in self._running or self._is_uncleanable(log):
                continue
            try:
                log_to_clean = assess(log, self._cleaned_offsets.get(log), now_ms)
            except (StorageError, InvalidBatch) as error:
                self._mark_uncleanable(log, str(error), is_permanent=True)
                continue
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
            "%s cannot be cleaned%s: %s", log.name, " until a restart" if is_permanent else " for now", reason
        )
        self._uncleanable[log] = None if is_permanent else self.host.monotonic_ms() + _RETRY_MS

    def _apply_retention(self) -> None:
        """What lies before the start of a compacted log, and is too old where it is also to be deleted."""
        for log in self._compacted():
            if log not in self._running:
                try:
                    log.delete_old_segments(self.host.now_ms())
                except StorageError as error:
                    self.logger.error("%r: old segments cannot be deleted: %s", log, error)

    # --- how far logs are clean

    def cleaned_offset(self, log: Log) -> int | None:
        """Everything before it was cleaned; None for a log that never was."""
        return self._cleaned_offsets.get(log)

    def handle_log_replaced(self, old: Log, new: Log) -> None:
        """A log goes on as another one, in another directory, and is as clean as it was."""
        offset = self._cleaned_offsets.pop(old, None)
        if offset is None:
            return
        directory = self.log_manager.directory_of(new)

        def gone(error: StorageError | None) -> None:
            if error is None and not directory.offline:
                self._cleaned_offsets.setdefault(new, offset)
                self._write_checkpoint(directory)

        # Kafka's cleaner dies of an entry that two directories have: the old one goes first.
        self._write_checkpoint(self.log_manager.directory_of(old), gone)

    def handle_logs_deleted(self) -> None:
        """Logs were set aside for good: nothing is said of them from now on, should the broker end next."""
        if self._has_read_checkpoints:
            self._forget_logs()

    def _read_checkpoints(self) -> None:
        """Learn how far logs are clean; what is said of a log that is not in that directory goes."""
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
                    # As Kafka: it is there from the start.
                    self.disk.write(path, b"", sync=False)
                offsets = read_offsets(self.disk, path)
                files.read(CLEANED_OFFSETS, offsets)
            except CorruptCheckpoint as error:
                self.logger.warning("%s; it is taken as empty", error)
            except StorageError as error:
                self.logger.warning("%s; it is taken as empty", error)
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
        """Have a directory's file tell what is known of its logs, where it does not. Never raises."""

        def written(error: StorageError | None) -> None:
            if error is not None:
                self._handle_write_failure(directory, error)
            then(error)

        if directory.offline or directory.path not in self._files:
            then(None)
        else:
            self._files[directory.path].write(self.host, written)

    def _handle_write_failure(self, directory: LogDirectory, error: StorageError) -> None:
        self.logger.error("%s of %s cannot be written: %s", CLEANED_OFFSETS, directory.path, error)
        self.log_manager.handle_log_dir_failure(directory, error)

    def _cleaned_offsets_in(self, path: str) -> Mapping[str, Offsets]:
        offsets = {
            (log.topic, log.partition): self._cleaned_offsets[log]
            for log in self.log_manager.logs_in(path)
            if log in self._cleaned_offsets
        }
        return {CLEANED_OFFSETS: offsets}

    def _forget_logs(self) -> None:
        """Drop what is remembered of logs that are gone, before another of that name is taken for them."""
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
        """Whether that is worth trying with its keys."""
        return not self._forward_scans_left.get(log)

    # --- the end of a cleaning

    def handle_finished(self, log: Log, outcome: Done | Failed | None) -> None:
        """A cleaning has ended; None where it was given up because the log has changed under it."""
        self._running.pop(log, None)
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
                "%s is clean up to offset %d: %d of %d bytes and %d of %d records stay, %d keys",
                log.name,
                outcome.end_offset,
                outcome.bytes_kept,
                outcome.bytes_before,
                outcome.records_kept,
                outcome.records_read,
                outcome.keys,
            )
            self._write_checkpoint(self.log_manager.directory_of(log))
        elif isinstance(outcome, Failed):
            self._mark_uncleanable(log, outcome.reason, is_permanent=outcome.is_permanent)
        if outcome is not None and not self.stopped:
            self.host.call_soon(self.start_due_cleanings)


class _CleaningTask:
    """One log on its way through a worker."""

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
        """What was prepared, and is not settled yet."""
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
        """End at once. A swap that readers see already is completed; any other is forgotten."""
        self._ended = True
        if self._worker is not None:
            self._worker.kill()
        if self._swap is not None:
            try:
                self._swap.complete()
            except StorageError as error:
                self._cleaner.log_manager.handle_log_failure(self._log, error)

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Go on with what `work` gives; what it raises ends the cleaning."""

        def done(result: T | BaseException) -> None:
            if isinstance(result, StorageError):
                self._handle_disk_failure(result)
            elif isinstance(result, BaseException):
                self._end(Failed(f"{type(result).__name__}: {result}", is_permanent=False))
            else:
                self._guarded(lambda: then(result))

        self._cleaner.host.run_in_worker(work, done)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StorageError as error:
            self._handle_disk_failure(error)

    def _handle_disk_failure(self, error: StorageError) -> None:
        """The disk failed: who knows what is there now."""
        self._cleaner.log_manager.handle_log_failure(self._log, error)
        self._end(None)

    # --- step by step

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
            # As any other write that fails, and as in Kafka: nothing in that directory is served any more.
            self._handle_disk_failure(StorageError(f"{self._log.name} cannot be cleaned: {report.reason}"))
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

        # Only a worker that is dead writes no more.
        self._cleaner.host.run_in_worker(
            self._worker.kill if self._worker is not None else lambda: None, dead
        )

    def _remove_leftovers(self) -> None:
        """What the worker left in the making. Not where the directory is not the log's any more."""
        if self._log.failure is not None or self._log.directory != self._directory:
            return
        try:
            for name in self._disk.names(self._directory):
                if name.endswith(CLEANED_SUFFIX):
                    self._disk.remove(join(self._directory, name))
        except StorageError as error:
            self._cleaner.logger.warning("%s: what was left of a cleaning stays: %s", self._log.name, error)
