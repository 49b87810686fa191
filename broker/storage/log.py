"""A partition's log: segments of batches, appended at one end, read anywhere, forgotten at the other.

An append is checked, stamped and staged; `commit` writes everything staged with one call, so that a turn's
worth of Produce requests shares it. Offsets are given out when an append is staged, and a segment rolls then
too: only the active segment has bytes that are not in its file yet, and readers never see those.

Acknowledged means written to the page cache, as in Kafka; `needs_flush` and `begin_flush` ask for more. The
recovery point, checkpointed now and then, is where recovery starts after a crash: all before it was synced.

A StorageError puts the log offline for good: what is on disk is in doubt until recovery has looked at it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from broker.storage.checkpoints import PARTITION_METADATA
from broker.storage.disk import Buffer, Disk, DiskFile, FileRegion, StorageError, join
from broker.storage.flush import FlushTicket
from broker.storage.leader_epochs import LeaderEpochs
from broker.storage.log_config import AppendOrigin, LogConfig
from broker.storage.producer_state import ProducerStateManager
from broker.storage.retention import deletable_segments
from broker.storage.segment import Segment, TimestampOffset
from broker.storage.trash import Trash
from broker.storage.validator import validate
from kwire.batch import BatchHeader, CorruptBatch, batches, crc_is_valid, stamp
from kwire.errors import ApiError, ErrorCode
from kwire.primitives import Uuid

__all__ = ["AppendOrigin", "Appended", "Log", "TimestampOffset"]

_HINTS = 16
"""How many places of the log are remembered, so that reading at the tail needs no search."""
_LENGTH_FIELD_POSITION = 8
_BYTES_BEFORE_LENGTH_COUNTS = 12


class Appended(NamedTuple):
    """What an append has become."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic's timestamps are LogAppendTime."""
    log_start_offset: int
    is_duplicate: bool = False
    """The producer had sent this batch before: the offsets are those of the first time."""


class _Staged(NamedTuple):
    """An append that has its offsets, and is not in the file yet."""

    size_bytes: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int


class _NoFile:
    """Stands in for the file of a region of no bytes."""

    def fileno(self) -> int:
        raise OSError("an empty region has no file")

    def size(self) -> int:
        return 0

    def read_at(self, position: int, size: int) -> bytes:
        return b""

    def write_at(self, position: int, buffers: object) -> None:
        raise StorageError("an empty region has no file")

    def truncate(self, size: int) -> None:
        raise StorageError("an empty region has no file")

    def sync(self) -> None:
        return


_EMPTY = FileRegion(_NoFile(), 0, 0)


class Log:
    """One partition's log. Made by `recovery.open_log`; everything but a flush's work runs on the loop."""

    __slots__ = (
        "_bases",
        "_disk",
        "_epochs",
        "_high_watermark",
        "_hints",
        "_largest_rolled",
        "_last_flush_ms",
        "_metadata_needs_sync",
        "_now_ms",
        "_on_failure",
        "_rng",
        "_segments",
        "_staged",
        "_staged_buffers",
        "_staged_bytes",
        "_synced_base",
        "_trash",
        "config",
        "directory",
        "failure",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
        "written_end_offset",
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
        segments: list[Segment],
        epochs: LeaderEpochs,
        producers: ProducerStateManager,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        trash: Trash,
        rng: random.Random,
        now_ms: int,
        metadata_needs_sync: bool,
        on_failure: Callable[[Log, StorageError], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        """The offset that the next append gets; staged appends count."""
        self.written_end_offset = log_end_offset
        """The offset after the last batch in the file: what readers see ends here at the latest."""
        self._high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.producers = producers
        self.failure: StorageError | None = None
        """Why this log is offline."""
        self._disk = disk
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._epochs = epochs
        self._trash = trash
        self._rng = rng
        self._now_ms = now_ms
        self._last_flush_ms = now_ms
        self._metadata_needs_sync = metadata_needs_sync
        self._synced_base = -1
        self._on_failure = on_failure
        self._staged: list[_Staged] = []
        self._staged_buffers: list[Buffer] = []
        self._staged_bytes = 0
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._largest_rolled: Segment | None = None

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def high_watermark(self) -> int:
        """What is committed ends here. Moved by whoever replicates the log, never beyond its end."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        # A transaction is over for readers once its marker is committed.
        self.producers.replicated_up_to(offset)

    # --- appending

    @property
    def staged(self) -> bool:
        """Whether there is something for `commit` to write."""
        return bool(self._staged)

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Appended:
        """Check produced batches, give them offsets, and stage them; `commit` makes them part of the log.

        `records` has to be writable and belongs to the log from here on. Raises ApiError with Kafka's code
        when the batches are refused; nothing is staged then.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        config = self.config
        validated = validate(records, config, now_ms=now_ms, origin=origin)
        data = validated.data
        size_bytes = len(data)
        if size_bytes > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes of records do not fit into a segment of {config.segment_bytes}.",
            )
        producers = self.producers
        for _, header in validated.batches:
            if header.producer_id >= 0:
                duplicate = producers.check(header, origin=origin)
                if duplicate is not None:
                    return Appended(
                        duplicate.first_offset,
                        duplicate.last_offset,
                        duplicate.timestamp if config.uses_log_append_time else -1,
                        self.log_start_offset,
                        is_duplicate=True,
                    )
        first_offset = offset = self.log_end_offset
        max_timestamp, offset_of_max = -1, -1
        from_producers: list[BatchHeader] = []
        for position, header in validated.batches:
            stamp(data, position, offset, leader_epoch)
            if header.producer_id >= 0:
                from_producers.append(header._replace(base_offset=offset, leader_epoch=leader_epoch))
            offset += header.last_offset_delta + 1
            if header.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = header.max_timestamp, offset - 1
        staged = _Staged(size_bytes, offset - 1, max_timestamp, offset_of_max)
        segment = self._segment_for(staged, first_offset, now_ms)
        if leader_epoch != self._epochs.latest:
            self._assign_epoch(leader_epoch, first_offset)
        self._stage(segment, data, staged, from_producers)
        return Appended(
            first_offset,
            offset - 1,
            now_ms if config.uses_log_append_time else -1,
            self.log_start_offset,
        )

    def append_stored(self, records: memoryview, *, now_ms: int | None = None) -> Appended:
        """Stage batches that have their offsets and epochs: from a leader, or from the metadata quorum.

        Raises ApiError: CORRUPT_MESSAGE; OFFSET_OUT_OF_RANGE for offsets that do not follow the log's end.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        found: list[BatchHeader] = []
        next_offset = self.log_end_offset
        max_timestamp, offset_of_max = -1, -1
        end = 0
        try:
            for position, header in batches(records):
                if not crc_is_valid(records, position, header):
                    raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
                if header.base_offset < next_offset or header.last_offset < header.base_offset:
                    raise ApiError(
                        ErrorCode.OFFSET_OUT_OF_RANGE,
                        f"A batch from {header.base_offset} to {header.last_offset} cannot follow "
                        f"{next_offset}.",
                    )
                next_offset = header.next_offset
                if header.max_timestamp > max_timestamp:
                    max_timestamp, offset_of_max = header.max_timestamp, header.last_offset
                found.append(header)
                end = position + header.size_bytes
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if not found:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "There is no batch to append.")
        first_offset = found[0].base_offset
        staged = _Staged(end, next_offset - 1, max_timestamp, offset_of_max)
        segment = self._segment_for(staged, first_offset, self._now_ms if now_ms is None else now_ms)
        for header in found:
            if header.leader_epoch >= 0 and header.leader_epoch != self._epochs.latest:
                self._assign_epoch(header.leader_epoch, header.base_offset)
        self._stage(segment, records[:end], staged, [header for header in found if header.producer_id >= 0])
        return Appended(first_offset, next_offset - 1, -1, self.log_start_offset)

    def _segment_for(self, staged: _Staged, first_offset: int, now_ms: int) -> Segment:
        """The active segment, after a roll if the append asks for one."""
        self._now_ms = now_ms
        segment = self._segments[-1]
        try:
            if segment.should_roll(
                self.config,
                staged.size_bytes,
                staged.max_timestamp,
                staged.last_offset,
                self._staged_bytes,
                now_ms,
            ):
                return self._roll(now_ms, first_offset)
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return segment

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        try:
            self._epochs.assign(epoch, start_offset)
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _stage(
        self, segment: Segment, data: Buffer, staged: _Staged, from_producers: list[BatchHeader]
    ) -> None:
        producers = self.producers
        for header in from_producers:
            producers.update(header)
        producers.end_offset = staged.last_offset + 1
        if not segment.size_bytes and not self._staged_bytes:
            segment.starts_with(staged.max_timestamp)
        self._staged_buffers.append(data)
        self._staged.append(staged)
        self._staged_bytes += staged.size_bytes
        self.log_end_offset = staged.last_offset + 1

    def commit(self) -> None:
        """Write what is staged. StorageError: none of it is in the log, which is offline from here on."""
        if self.failure is not None:
            raise self.failure
        if not self._staged:
            return
        segment = self._segments[-1]
        buffers, self._staged_buffers = self._staged_buffers, []
        staged, self._staged = self._staged, []
        self._staged_bytes = 0
        hints = self._hints
        hints[self.written_end_offset] = (segment, segment.size_bytes)
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]
        try:
            file = segment.file
            try:
                file.write_at(segment.size_bytes, buffers)
            except StorageError:
                file.truncate(segment.size_bytes)
                raise
            for size_bytes, last_offset, max_timestamp, offset_of_max in staged:
                segment.appended(size_bytes, last_offset, max_timestamp, offset_of_max)
        except StorageError as error:
            self._fail(error)
            raise
        self.written_end_offset = self.log_end_offset

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty. StorageError."""
        self.commit()
        try:
            self._roll(now_ms, self.log_end_offset)
        except StorageError as error:
            self._fail(error)
            raise

    def _roll(self, now_ms: int, base_offset: int) -> Segment:
        self.commit()
        active = self._segments[-1]
        if active.base_offset == base_offset:
            return active
        active.become_inactive()
        # The snapshot has the new segment's base offset, so that recovering that segment can start from it.
        self.producers.end_offset = base_offset
        self.producers.take_snapshot()
        return self._add_segment(base_offset, now_ms)

    def _add_segment(self, base_offset: int, now_ms: int) -> Segment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        segment = Segment.create(
            self._disk,
            self.directory,
            base_offset,
            config,
            now_ms=now_ms,
            roll_jitter_ms=self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0,
        )
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._largest_rolled = None
        return segment

    # --- reading

    def read(
        self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one: bool = True
    ) -> FileRegion:
        """The bytes from the batch that holds `offset`, up to `max_bytes`; the last batch may be cut short.

        Nothing from `up_to_offset` on. With `at_least_one` the first batch comes whole, however large.
        Of no bytes at the end. Raises ApiError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}.",
            )
        up_to_offset = min(up_to_offset, self.written_end_offset)
        if offset >= up_to_offset:
            return _EMPTY
        try:
            found = self._locate(offset)
            if found is None:
                return _EMPTY
            segment, position = found
            size_bytes = self._position_within(segment, up_to_offset) - position
            if size_bytes <= 0:
                return _EMPTY
            file = segment.file
            if size_bytes > max_bytes:
                size_bytes = min(
                    size_bytes, max(max_bytes, _batch_bytes(file, position) if at_least_one else 0)
                )
                if size_bytes <= 0:
                    return _EMPTY
            return FileRegion(file, position, size_bytes)
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """Where the batch begins that holds `offset`, or the first one after it."""
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size_bytes:
            return hint
        segments = self._segments
        # A compacted log may have no batch at the end of a segment: the next one has it then.
        for number in range(max(0, bisect_right(self._bases, offset) - 1), len(segments)):
            place = segments[number].find(offset)
            if place is not None:
                return segments[number], place.position
        return None

    def _position_within(self, segment: Segment, up_to_offset: int) -> int:
        """Where in this segment the batches end that lie before `up_to_offset`."""
        if up_to_offset >= self.written_end_offset:
            return segment.size_bytes
        hint = self._hints.get(up_to_offset)
        if hint is not None and hint[0] is segment:
            return hint[1]
        place = segment.find(up_to_offset)
        return segment.size_bytes if place is None else place.position

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """About how many bytes lie between two offsets: exact within a segment. KAFKA_STORAGE_ERROR."""
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        up_to_offset = min(up_to_offset, self.written_end_offset)
        if offset >= up_to_offset:
            return 0
        try:
            found = self._locate(max(offset, self.log_start_offset))
            if found is None:
                return 0
            segment, position = found
            size_bytes = max(0, self._position_within(segment, up_to_offset) - position)
            first = bisect_right(self._bases, segment.base_offset)
            last = bisect_right(self._bases, up_to_offset - 1)
            for later in self._segments[first:last]:
                size_bytes += later.size_bytes
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without their indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_base_offsets(self) -> list[int]:
        return list(self._bases)

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed transactions stop: at the first open one, or the high watermark."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log_start_offset)

    @property
    def producer_id_count(self) -> int:
        return len(self.producers)

    # --- timestamps

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record that is not older than `timestamp`; None if there is none. KAFKA_STORAGE_ERROR."""
        return self._search(lambda: self._find_timestamp(timestamp))

    def _find_timestamp(self, timestamp: int) -> TimestampOffset | None:
        for segment in self._live_segments():
            if segment.size_bytes and segment.largest_timestamp() >= timestamp:
                return segment.find_timestamp(timestamp, self.log_start_offset)
        return None

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the greatest timestamp; None in an empty log. KAFKA_STORAGE_ERROR."""
        return self._search(self._find_max_timestamp)

    def _find_max_timestamp(self) -> TimestampOffset | None:
        active = self._segments[-1]
        largest = self._largest_rolled
        if largest is None:
            # Found once among the segments that do not change any more.
            largest = max(self._live_segments(), key=_max_timestamp_of)
            if largest is not active:
                self._largest_rolled = largest
        elif active.max_timestamp_entry()[0] > largest.max_timestamp_entry()[0]:
            largest = active
        return largest.find_max_timestamp() if largest.size_bytes else None

    def _live_segments(self) -> list[Segment]:
        """The segments that hold anything from the log start offset on."""
        return self._segments[max(0, bisect_right(self._bases, self.log_start_offset) - 1) :]

    def _search(self, find: Callable[[], TimestampOffset | None]) -> TimestampOffset | None:
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            return find()
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    # --- leader epochs

    @property
    def latest_epoch(self) -> int | None:
        """The newest leader epoch that the log has heard of."""
        return self._epochs.latest

    @property
    def leader_epochs(self) -> list[tuple[int, int]]:
        """Epochs with their start offsets, oldest first."""
        return self._epochs.entries

    def begin_leader_epoch(self, epoch: int) -> None:
        """A leader of this epoch appends from here on. StorageError."""
        if self.failure is not None:
            raise self.failure
        try:
            self._epochs.assign(epoch, self.log_end_offset)
        except StorageError as error:
            self._fail(error)
            raise

    def epoch_at_start(self) -> int | None:
        """The epoch of the record at the log start offset, where it is known."""
        earliest = self._epochs.earliest
        return earliest[0] if earliest is not None and earliest[1] <= self.log_start_offset else None

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to the one asked for, and where it ended; -1, -1 when it cannot be told."""
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # --- durability

    def needs_flush(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms asks for a flush of what is written."""
        self._now_ms = now_ms
        unflushed = self.written_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        config = self.config
        return unflushed >= config.flush_messages or now_ms - self._last_flush_ms >= config.flush_ms

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a segment that the log has rolled on from is not durable yet."""
        return self.recovery_point < self._bases[-1]

    def begin_flush(self) -> FlushTicket:
        """Make what is written so far durable: run `work` in any thread, then call `finish` on the loop.

        `work` raises StorageError; the caller then gives this log up with `fail`.
        """
        end_offset = self.written_end_offset
        active = self._segments[-1]
        files: list[DiskFile] = []
        has_new_names = self._metadata_needs_sync or self._epochs.needs_sync
        if end_offset > self.recovery_point:
            first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
            for segment in self._segments[first:]:
                files.append(segment.file)
                if segment is not active:
                    files += segment.index_files()
            files += [self._disk.open(path) for path in self.producers.take_unsynced_paths()]
            has_new_names = has_new_names or active.base_offset != self._synced_base
        if self._epochs.needs_sync:
            files.append(self._disk.open(self._epochs.path))
        if self._metadata_needs_sync:
            files.append(self._disk.open(join(self.directory, PARTITION_METADATA)))
        self._epochs.needs_sync = False
        self._metadata_needs_sync = False
        synced_base = active.base_offset

        def finish() -> None:
            self.recovery_point = max(self.recovery_point, min(end_offset, self.log_end_offset))
            self._last_flush_ms = self._now_ms
            self._synced_base = max(self._synced_base, synced_base)

        return FlushTicket(self._disk, files, self.directory if has_new_names else None, end_offset, finish)

    def flush(self) -> None:
        """Make everything written durable before this returns. StorageError."""
        if self.failure is not None:
            raise self.failure
        try:
            ticket = self.begin_flush()
            ticket.work()
        except StorageError as error:
            self._fail(error)
            raise
        ticket.finish()

    # --- changing what there is

    def truncate_to(self, offset: int) -> bool:
        """Forget every batch that reaches to `offset` or beyond. False if there is none. StorageError."""
        self.commit()
        try:
            if offset >= self.log_end_offset:
                self._epochs.truncate_from_end(self.log_end_offset)
                return False
            if offset < self._bases[0]:
                self._restart_at(offset)
            else:
                self._drop_segments([segment for segment in self._segments if segment.base_offset > offset])
                self._segments[-1].truncate_to(offset, self.config, self._now_ms)
                self._ends_at(offset)
                self._epochs.truncate_from_end(offset)
                self.log_start_offset = min(offset, self.log_start_offset)
                self.producers.rebuild(self._segments, self.log_start_offset, offset, self._now_ms)
        except StorageError as error:
            self._fail(error)
            raise
        return True

    def _ends_at(self, offset: int) -> None:
        self.log_end_offset = self.written_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self._hints.clear()

    def _restart_at(self, offset: int) -> None:
        """Forget everything, and go on at `offset`."""
        self._drop_segments(self._segments[:])
        self._add_segment(offset, self._now_ms)
        self._ends_at(offset)
        self.log_start_offset = offset
        self.high_watermark = offset
        self._epochs.clear()
        self.producers.restart_at(offset)

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start offset; segments wholly before it go with the next `delete_old_segments`.

        Raises ApiError: OFFSET_OUT_OF_RANGE beyond the high watermark, KAFKA_STORAGE_ERROR.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is beyond the high watermark {self.high_watermark}.",
            )
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self._largest_rolled = None
        try:
            self._epochs.truncate_from_start(offset)
        except StorageError as error:
            self._fail(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.producers.log_starts_at(offset)

    def delete_old_segments(self, now_ms: int) -> int:
        """Delete segments that retention or the log start offset has left behind; how many. StorageError."""
        self.commit()
        self._now_ms = now_ms
        try:
            old = deletable_segments(
                self._segments,
                self.config,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                high_watermark=self.high_watermark,
                now_ms=now_ms,
            )
            if not old:
                return 0
            if len(old) == len(self._segments):
                self._roll(now_ms, self.log_end_offset)
            start_offset = self._bases[len(old)]
            if start_offset > self.log_start_offset:
                self.delete_records_before(start_offset)
            self._drop_segments(old)
        except StorageError as error:
            self._fail(error)
            raise
        return len(old)

    def _drop_segments(self, dropped: list[Segment]) -> None:
        gone = {segment.base_offset for segment in dropped}
        self._segments = [segment for segment in self._segments if segment.base_offset not in gone]
        self._bases = [segment.base_offset for segment in self._segments]
        self._largest_rolled = None
        self._hints.clear()
        for segment in dropped:
            delay_ms = self.config.file_delete_delay_ms
            self._trash.rename_files(segment.paths, delay_ms)
            snapshot = self.producers.forget_snapshot(segment.base_offset)
            if snapshot is not None:
                self._trash.rename_files([snapshot], delay_ms)

    # --- the end

    def close(self) -> None:
        """Leave the files as a clean shutdown does: indexes cut, producers in a snapshot. StorageError.

        Flush before, so that there is nothing left for recovery to do.
        """
        self.commit()
        try:
            self.producers.take_snapshot()
            active = self._segments[-1]
            active.become_inactive()
            for file in active.index_files():
                file.sync()
            for path in self.producers.take_unsynced_paths():
                self._disk.open(path).sync()
            self._disk.sync_directory(self.directory)
        except StorageError as error:
            self._fail(error)
            raise

    def fail(self, error: StorageError) -> None:
        """Take the log offline: its directory has failed, or it is being deleted."""
        if self.failure is None:
            self.failure = error
            self._staged.clear()
            self._staged_buffers.clear()
            self._staged_bytes = 0
            self.log_end_offset = self.written_end_offset

    def _fail(self, error: StorageError) -> None:
        if self.failure is None:
            self.fail(error)
            self._on_failure(self, error)


def _batch_bytes(file: DiskFile, position: int) -> int:
    """The size of the batch at this position."""
    length = file.read_at(position + _LENGTH_FIELD_POSITION, 4)
    return _BYTES_BEFORE_LENGTH_COUNTS + int.from_bytes(length, "big")


def _max_timestamp_of(segment: Segment) -> int:
    return segment.max_timestamp_entry()[0]
