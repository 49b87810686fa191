"""The log of a partition: Kafka's UnifiedLog.

`append` validates a batch, assigns its offsets and stages it. `commit` writes all staged batches with one
call, so that the Produce requests of one turn of the event loop share a write. A segment rolls when a batch
is staged, so only the active segment can lack batches in its file. Readers never see staged batches.

As in Kafka, a batch may be acknowledged when it is in the page cache. `begin_flush` syncs the log;
`needs_flush` reports when this is due. Log recovery after a crash starts at the recovery point, because all
batches before it were synced.

A StorageError takes the log offline until the next log recovery. A ResourceShortage does not, because the
disk has not failed: it is raised before anything is changed, and the caller may try again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kwire.broker.storage.disk import Disk, DiskFile, ResourceShortage, StorageError
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.flush import Durability, FlushTicket
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.log_config import AppendOrigin, LogConfig
from kwire.broker.storage.log.producer_state import MarkerContext, ProducerStateManager
from kwire.broker.storage.log.readable_log import ReadableLog
from kwire.broker.storage.log.remote_segment import RemoteSegment
from kwire.broker.storage.log.retention import deletable_segments
from kwire.broker.storage.log.scan import InvalidBatch
from kwire.broker.storage.log.segment import LogSegment, TimestampOffset
from kwire.broker.storage.log.segments import LogSegments
from kwire.broker.storage.log.staged_appends import (
    IncomingBatches,
    LogAppendInfo,
    StagedAppends,
    assign_offsets,
    check_stored_batches,
)
from kwire.broker.storage.log.validator import validate
from kwire.wire.batch import BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

__all__ = ["AppendOrigin", "LogAppendInfo", "Log", "TimestampOffset"]


class Log(ReadableLog):
    """The log of one partition, created by `recovery.open_log`. Only the event loop's thread may use it."""

    __slots__ = (
        "_batch_at_start",
        "_delayed_deletion",
        "_disk",
        "_durability",
        "_epochs",
        "_high_watermark",
        "_now_ms",
        "_on_failure",
        "_rng",
        "_segments",
        "config",
        "directory",
        "failure",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "name",
        "partition",
        "producers",
        "remote_segments",
        "staged",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: Uuid,
        config: LogConfig,
        *,
        segments: LogSegments,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        log_start_offset: int,
        log_end_offset: int,
        durability: Durability,
        delayed_deletion: DelayedDeletion,
        rng: random.Random,
        now_ms: int,
        on_failure: Callable[[Log, StorageError], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.log_start_offset = log_start_offset
        """The first offset that clients may read, on this disk or in remote storage."""
        self.local_log_start_offset = log_start_offset
        """The first offset that can be read from this disk. KIP-405."""
        self.remote_segments: Sequence[RemoteSegment] = ()
        """The segments before the local log start offset, in offset order."""
        self.log_end_offset = log_end_offset
        """The offset of the next append. Staged batches are before it."""
        self._high_watermark = log_start_offset
        self.producers = producers
        self.failure: StorageError | None = None
        """The error that took this log offline, or None."""
        self._disk = disk
        self._segments = segments
        self._epochs = epochs
        self._delayed_deletion = delayed_deletion
        self._rng = rng
        self._now_ms = now_ms
        self._durability = durability
        self._on_failure = on_failure
        self.staged = StagedAppends()
        """The appends that `commit` will write."""
        self._batch_at_start: int | None = None

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def written_end_offset(self) -> int:
        """The offset after the last batch in the segment files. Readers cannot read beyond it."""
        return self._segments.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record. The replica sets it, to at most the log end offset."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        # A read_committed consumer may read a transaction after its marker is committed.
        self.producers.on_high_watermark_updated(offset)

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed consumers may read. KIP-98.

        It is the first offset of the earliest transaction that is open or whose marker is not committed, or
        else the high watermark.
        """
        stable = self.producers.first_unstable_offset
        if stable is None:
            return self._high_watermark
        if stable < self.log_start_offset:
            # As in Kafka, use the base offset of the batch, which may be before the log start offset.
            if self._batch_at_start is None:
                try:
                    self._batch_at_start = self._segments.batch_base_offset(self.log_start_offset)
                except ResourceShortage:
                    return min(self.log_start_offset, self._high_watermark)
                except (StorageError, InvalidBatch):
                    self._batch_at_start = self.log_start_offset
            stable = self._batch_at_start
        return min(stable, self._high_watermark)

    # --- appending

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        marker: MarkerContext | None = None,
        header: BatchHeader | None = None,
    ) -> LogAppendInfo:
        """Validate the batch of a leader append, assign its offsets and stage it for `commit`.

        `records` must be writable, and the caller must not use it afterwards. `marker` is given if the batch
        is a transaction marker. `header` is the header of the batch, if already read. A duplicate is not
        staged. Raises ApiError with Kafka's error code if the batch is rejected, or KAFKA_STORAGE_ERROR.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        config = self.config
        validated = validate(
            records, config, now_ms=now_ms, origin=origin, partition=self.name, header=header
        )
        if len(validated.data) > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"The batch of {len(validated.data)} bytes exceeds segment.bytes ({config.segment_bytes}).",
            )
        incoming = assign_offsets(validated, self.log_end_offset, leader_epoch)
        # As in Kafka, the segment rolls even if the batch is a duplicate or is rejected below.
        segment = self._roll_if_due(incoming, now_ms)
        known = self.producers.check_batch(validated.header, origin, marker)
        if known is not None:
            first, last = known.first_offset, known.last_offset
            return LogAppendInfo(first, last, known.timestamp, self.log_start_offset, is_duplicate=True)
        self._stage(incoming, segment)
        append_ms = now_ms if config.uses_log_append_time else -1
        return LogAppendInfo(incoming.first_offset, incoming.last_offset, append_ms, self.log_start_offset)

    def append_stored(self, records: memoryview, *, now_ms: int | None = None) -> LogAppendInfo:
        """Stage batches that already have offsets and epochs: from another log or the metadata quorum.

        Raises ApiError CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE for offsets before the log end offset, or
        KAFKA_STORAGE_ERROR.
        """
        appended = self._append_stored(records, now_ms)
        if appended is None:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "There is no complete batch to append.")
        return appended

    def append_fetched(self, records: memoryview, *, leader_epoch: int, now_ms: int) -> LogAppendInfo | None:
        """Stage the batches of a Fetch response, up to the first batch with an epoch above `leader_epoch`.

        Return None if the first batch is incomplete or has such an epoch. Raises the same errors as
        `append_stored`.
        """
        return self._append_stored(records, now_ms, leader_epoch)

    def _append_stored(
        self, records: memoryview, now_ms: int | None, fetched_in_epoch: int | None = None
    ) -> LogAppendInfo | None:
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        incoming = check_stored_batches(records, self.log_end_offset, fetched_in_epoch=fetched_in_epoch)
        if incoming is None:
            return None
        segment = self._roll_if_due(incoming, self._now_ms if now_ms is None else now_ms)
        self._stage(incoming, segment)
        return LogAppendInfo(incoming.first_offset, incoming.last_offset, -1, self.log_start_offset)

    def begin_leader_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the log end offset. Raises StorageError."""
        if self.failure is not None:
            raise self.failure
        self._epochs.begin(epoch, self.log_end_offset)

    def _roll_if_due(self, incoming: IncomingBatches, now_ms: int) -> LogSegment:
        """Roll the active segment if it is due; return the active segment. Raises KAFKA_STORAGE_ERROR."""
        self._now_ms = now_ms
        segment = self._segments.active
        try:
            if segment.should_roll(
                self.config,
                incoming.size_bytes,
                incoming.max_timestamp,
                incoming.last_offset,
                self.staged.size_bytes,
                now_ms,
            ):
                with self._disk.reserved():
                    segment = self._roll(now_ms, incoming.first_offset)
        except StorageError as error:  # for each append, `_rejecting` would take too long
            raise self._rejection(error) from error
        return segment

    def _stage(self, incoming: IncomingBatches, segment: LogSegment) -> None:
        assert not self._durability.awaits_sync, f"{self.name} was truncated and has to be flushed first"
        epochs, producers = self._epochs, self.producers
        for epoch, start_offset in incoming.epochs:
            if epoch != epochs.latest:
                epochs.begin(epoch, start_offset)
        if epochs.needs_save:
            with self._rejecting(), self._disk.reserved():
                epochs.save()
        for position, header in incoming.from_producers:
            if header.is_control:
                producers.update_from_marker(header, incoming.data, position)
            else:
                producers.update(header)
        producers.end_offset = incoming.last_offset + 1
        if not segment.size_bytes and not self.staged:
            segment.set_first_timestamp(incoming.max_timestamp)
        self.staged.add(incoming)
        self.log_end_offset = incoming.last_offset + 1

    def commit(self) -> None:
        """Write all staged batches with one call. Raises StorageError after the log has gone offline.

        After a ResourceShortage the log is online, and the batches are still staged.
        """
        if self.failure is not None:
            raise self.failure
        if not self.staged:
            return
        segment = self._segments.active
        if self.producers.has_aborted_txns:
            with self._failing():
                self._segments.remember_write_position()
                self.staged.write_to(segment, segment.file)
                segment.add_aborted(self.producers.take_aborted_txns())
        else:
            file = self._open_for_write(segment)
            self._segments.remember_write_position()
            try:
                self.staged.write_to(segment, file)
            except StorageError as error:
                if not isinstance(error, ResourceShortage):
                    self._fail(error)
                raise
        self._segments.end_offset = self.log_end_offset

    def _open_for_write(self, segment: LogSegment) -> DiskFile:
        try:
            return segment.file
        except ResourceShortage:
            with self._failing(is_repeatable=True):
                return segment.file
        except StorageError as error:
            self._fail(error)
            raise

    def roll(self, now_ms: int) -> None:
        """Write all staged batches and roll the active segment, unless it is empty. Raises StorageError."""
        self.commit()
        with self._failing(is_repeatable=True):
            self._roll(now_ms, self.log_end_offset)

    def _roll(self, now_ms: int, base_offset: int) -> LogSegment:
        self.commit()
        active = self._segments.active
        if active.base_offset == base_offset:
            return active
        active.become_inactive()
        # Log recovery of the new segment starts from this snapshot at the segment's base offset.
        self.producers.end_offset = base_offset
        self.producers.take_snapshot()
        return self._add_segment(base_offset, now_ms)

    def _add_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        segment = LogSegment.create(
            self._disk,
            self.directory,
            base_offset,
            config,
            now_ms=now_ms,
            roll_jitter_ms=self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0,
        )
        self._segments.add(segment)
        return segment

    # --- durability

    @property
    def recovery_point(self) -> int:
        """The offset up to which the log is durable."""
        return self._durability.recovery_point

    def on_checkpointed(self, recovery_point: int) -> None:
        """Record that the checkpoint file has this recovery point, or an earlier one."""
        self._durability.on_checkpointed(recovery_point)

    def needs_flush(self, monotonic_ms: int) -> bool:
        """Return whether flush.messages, flush.ms or `has_unrecoverable_records` requires a flush."""
        return self._durability.is_due(self.config, monotonic_ms) or self.has_unrecoverable_records

    @property
    def is_recoverable(self) -> bool:
        """Whether log recovery would find this log after a crash, and check every record that may be torn."""
        return self._durability.is_recoverable and not self._durability.awaits_checkpoint

    @property
    def has_unrecoverable_records(self) -> bool:
        """Whether a crash would lose unflushed records, so that they must not count as replicated."""
        durability = self._durability
        return (
            durability.lacks_partition_metadata or durability.is_replacing
        ) and durability.recovery_point < self._segments.end_offset

    @property
    def awaits_sync(self) -> bool:
        """Whether the log was truncated and has to be flushed before the next append."""
        return self._durability.awaits_sync

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether an inactive segment is not durable yet."""
        return self._durability.recovery_point < self._segments.active.base_offset

    def snapshot_producers(self) -> None:
        """Write a producer state snapshot at the log end offset, or replace it. Raises StorageError."""
        with self._failing(is_repeatable=True):
            self.producers.forget_snapshot(self.producers.end_offset)
            self.producers.take_snapshot()

    def begin_replacement(self) -> FlushTicket:
        """Return the ticket to flush this log, which begins to replace the partition's current log.

        The replacement ends with the ticket's `finish`. Raises StorageError.
        """
        with self._failing(is_repeatable=True):
            return self._durability.begin_replacement()

    def update_directory(self, directory: str) -> None:
        """Update the paths after the log's directory was renamed."""
        self._delayed_deletion.update_directory(self.directory, directory)
        self.directory = self.producers.directory = directory
        self._durability.update_directory(directory)
        self._epochs.update_directory(directory)
        for segment in self._segments:
            segment.update_directory(directory)

    def begin_partition_metadata_flush(self) -> FlushTicket | None:
        """Return the ticket that makes `partition.metadata` durable. Raises StorageError.

        Return None if it already has its final name, or if the log is offline.
        """
        if self.failure is not None or not self._durability.lacks_partition_metadata:
            return None
        with self._failing(is_repeatable=True):
            return self._durability.begin_partition_metadata_flush()

    def begin_flush(self) -> FlushTicket:
        """Return the ticket that makes all written batches durable. Raises StorageError.

        Run its `work` in any thread, then its `finish` on the event loop. If `work` raises StorageError, call
        `fail` instead of `finish`.
        """
        with self._failing(is_repeatable=True):
            return self._durability.begin_flush()

    def flush(self) -> None:
        """Make all written batches durable before returning. Raises StorageError."""
        if self.failure is not None:
            raise self.failure
        with self._failing(is_repeatable=True):
            self._durability.flush_partition_metadata()
            ticket = self.begin_flush()
            ticket.work()
        ticket.finish()

    # --- truncation, retention and compaction

    def truncate_to(self, offset: int) -> bool:
        """Truncate the log to `offset`; return False if the log end offset was not above `offset`.

        Raises StorageError. The caller must flush the log before the next append (`awaits_sync`). Otherwise a
        power loss could bring the truncated batches back after new batches.
        """
        self.commit()
        with self._failing():
            if offset >= self.log_end_offset:
                self._epochs.truncate_from_end(self.log_end_offset)
                return False
            if offset < self._segments.bases[0]:
                self.truncate_fully_and_start_at(offset)
            else:
                # Delete the last segment first, so that a crash leaves no gap between segments.
                beyond = [segment for segment in self._segments if segment.base_offset > offset]
                self._drop_segments(beyond[::-1])
                active = self._segments.active
                active.truncate_to(offset, self.config, self._now_ms)
                self._set_log_end_offset(offset)
                self._epochs.truncate_from_end(offset)
                self.log_start_offset = min(offset, self.log_start_offset)
                self.local_log_start_offset = min(offset, self.local_log_start_offset)
                self.producers.rebuild(list(self._segments), self.log_start_offset, offset, self._now_ms)
                # Forget replicated transactions now: the high watermark may not advance for a long time.
                self.producers.on_high_watermark_updated(self._high_watermark)
        return True

    def _set_log_end_offset(self, offset: int) -> None:
        self.log_end_offset = self._segments.end_offset = offset
        self._batch_at_start = None
        self._segments.forget_positions()
        self._durability.on_truncated(offset)
        self.high_watermark = min(self.high_watermark, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all records and continue at `offset`. Raises StorageError.

        The caller must flush the log before the next append.
        """
        with self._failing():
            self._drop_segments(list(self._segments)[::-1])
            self._add_segment(offset, self._now_ms)
            self._set_log_end_offset(offset)
            self.log_start_offset = self.local_log_start_offset = offset
            self.high_watermark = offset
            self._epochs.clear()
            self.producers.truncate_fully_and_start_at(offset)

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start offset. The next `delete_old_segments` deletes the segments below it.

        Do nothing if `offset` is not above the log start offset. Raises ApiError OFFSET_OUT_OF_RANGE if it is
        above the high watermark, or KAFKA_STORAGE_ERROR.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is beyond the high watermark {self.high_watermark}.",
            )
        with self._rejecting(), self._failing():
            self._increment_log_start_offset(offset)

    def _increment_log_start_offset(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.local_log_start_offset = max(offset, self.local_log_start_offset)
        self._batch_at_start = None
        self._segments.forget_positions()
        self._epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset_incremented(offset)

    def delete_old_segments(self, now_ms: int) -> int:
        """Delete segments by retention and log start offset; return their number. Raises StorageError.

        This method is called periodically, so it also frees the cached index blocks.
        """
        self.commit()
        self._segments.forget_lookups()
        self._now_ms = now_ms
        with self._failing():
            old = deletable_segments(
                list(self._segments),
                self.config,
                local_log_start_offset=self.local_log_start_offset,
                log_end_offset=self.log_end_offset,
                high_watermark=self.high_watermark,
                now_ms=now_ms,
            )
            if not old:
                return 0
            if len(old) == len(self._segments):
                self._roll(now_ms, self.log_end_offset)
            self._increment_log_start_offset(self._segments.bases[len(old)])
            self._drop_segments(old)
        return len(old)

    def replace_segments(self, old: list[LogSegment], new: LogSegment) -> None:
        """Replace segments by the segment that was compacted from them. Raises StorageError."""
        self._segments.replace(old, new)
        self._delete_files(old, kept_base_offset=new.base_offset)

    def _drop_segments(self, dropped: list[LogSegment]) -> None:
        self._segments.remove(dropped)
        self._delete_files(dropped)

    def _delete_files(self, segments: list[LogSegment], *, kept_base_offset: int = -1) -> None:
        self._durability.on_files_renamed()
        for segment in segments:
            delay_ms = self.config.file_delete_delay_ms
            self._delayed_deletion.rename_files(segment.paths, delay_ms)
            if segment.base_offset != kept_base_offset:
                snapshot = self.producers.forget_snapshot(segment.base_offset)
                if snapshot is not None:
                    self._delayed_deletion.rename_files([snapshot], delay_ms)

    # --- closing and failing

    def begin_close(self) -> FlushTicket:
        """Leave the files as after a clean shutdown, and return the ticket to flush them.

        The caller must then sync the parent directory, because the name of a new log may not be durable.
        Raises StorageError.
        """
        self.commit()
        with self._failing(is_repeatable=True):
            self.producers.take_snapshot()
            return self._durability.begin_close()

    def close(self) -> None:
        """Close the log before returning, with `begin_close`. Raises StorageError."""
        ticket = self.begin_close()
        with self._failing():
            ticket.work()
        ticket.finish()

    def fail(self, error: StorageError) -> None:
        """Take the log offline without calling `on_failure`, and discard the staged batches.

        The directory of the log has failed, or the log is being deleted or replaced.
        """
        if self.failure is None:
            self.failure = error
            self.staged.clear()
            self.log_end_offset = self.written_end_offset

    def _fail(self, error: StorageError) -> None:
        if self.failure is None:
            self.fail(error)
            self._on_failure(self, error)
