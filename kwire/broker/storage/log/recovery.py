"""Loading a log and log recovery, as in Kafka's LogLoader.

After a clean shutdown the files are trusted, and only missing or invalid indexes are rebuilt. Otherwise log
recovery reads every segment from the recovery point on, batch by batch. It truncates the log at the first
batch that is incomplete, has a wrong CRC, or does not follow the previous batch, and deletes all later
segments. Indexes, leader epochs and producer state are rebuilt from the batches that were read.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from kwire.broker.storage.checkpoints import (
    PARTITION_METADATA,
    read_topic_id,
    write_temporary_partition_metadata,
)
from kwire.broker.storage.disk import TEMPORARY_SUFFIX, Disk, FileMissing, StorageError, join
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.flush import Durability
from kwire.broker.storage.log.flush_metrics import FlushMetrics
from kwire.broker.storage.log.index import MAX_RELATIVE_OFFSET, CorruptIndex
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_snapshot import BATCHES_KEPT, BatchMetadata
from kwire.broker.storage.log.producer_state import PRODUCER_ID_EXPIRATION_MS, ProducerStateManager
from kwire.broker.storage.log.recovery_fast_path import RecoveryFastPath
from kwire.broker.storage.log.scan import InvalidBatch, LegacyFormat, WholeBatch, scan_batches, scan_headers
from kwire.broker.storage.log.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    LogSegment,
)
from kwire.broker.storage.log.segments import LogSegments
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger
from kwire.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, crc_is_valid, read_header
from kwire.wire.plural import plural
from kwire.wire.primitives import ZERO_UUID, Uuid

_LEFTOVER_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX, DELETED_SUFFIX)
_RAFT_SNAPSHOT_DELETED = ".checkpoint" + DELETED_SUFFIX
"""The suffix of deleted metadata snapshots. The metadata log removes them."""
_IN_FLIGHT_BYTES = 16 << 20
"""The size of the part of the log before a producer state snapshot that is searched for recent batches."""


def open_log(
    disk: Disk,
    directory: str,
    topic: str,
    partition: int,
    config: LogConfig,
    *,
    clean: bool,
    delayed_deletion: DelayedDeletion,
    rng: random.Random,
    now_ms: int,
    on_failure: Callable[[Log, StorageError], None],
    flush_metrics: FlushMetrics | None = None,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    topic_id: Uuid | None = None,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    logger: NodeLogger = STORAGE_LOGGER,
) -> Log:
    """Load the log in `directory`, or create it.

    `clean` is true after a clean shutdown and for a new log. `recovery_point` and `log_start_offset` come
    from the checkpoints. If the log has no `partition.metadata`, the file is written with `topic_id`, under
    its temporary name. Raises StorageError if the disk fails, the log has another topic id, or a segment has
    an unsupported format.
    """
    try:
        names = disk.names(directory)
    except FileMissing:
        disk.make_directory(directory)
        names = []
    stored_id = read_topic_id(disk, directory) if names else None
    if topic_id is None or topic_id == stored_id:
        topic_id = ZERO_UUID if stored_id is None else stored_id
    elif stored_id is not None:
        raise StorageError(f"{join(directory, PARTITION_METADATA)} has the id of another topic")

    loader = _LogLoader(
        disk, directory, f"{topic}-{partition}", config, delayed_deletion, now_ms, names, logger
    )
    loader.remove_leftovers()
    metadata_needs_sync = lacks_partition_metadata = stored_id is None and topic_id != ZERO_UUID
    if lacks_partition_metadata:
        write_temporary_partition_metadata(disk, directory, topic_id)
    loader.find_segments(log_start_offset)
    producers = ProducerStateManager(
        disk, directory, partition=loader.name, expiration_ms=producer_id_expiration_ms, logger=logger
    )
    producers.find_snapshots(loader.names)
    if clean:
        try:
            loader.load_clean()
            log_end_offset = loader.open_active_segment(log_start_offset)
        except InvalidBatch as error:
            logger.warning(
                "Running log recovery of %s, which is damaged after a clean shutdown: %s", loader.name, error
            )
            clean = False
    if not clean:
        loader.recover(producers, recovery_point, log_start_offset)
        log_end_offset = loader.open_active_segment(log_start_offset)
        loader.sync_truncation(log_end_offset)
    log_start_offset = max(log_start_offset, loader.segments[0].base_offset)

    epochs = loader.epochs
    epochs.restrict_to(log_start_offset, log_end_offset)
    if not clean:
        epochs.save()
        # It is unknown whether the last process has synced all its writes.
        if epochs.entries:
            epochs.version += 1
        metadata_needs_sync = metadata_needs_sync or stored_id is not None
    loader.remove_stray_snapshots(producers, log_end_offset)
    if clean or log_end_offset <= log_start_offset:
        producers.rebuild(loader.segments, log_start_offset, log_end_offset, now_ms)
    else:
        # A snapshot has only the last batch of each producer, but recovery may have read the last five. With
        # five, batches that were in flight at the crash are recognized as duplicates when they are sent
        # again.
        producers.end_offset = log_end_offset
        producers.expire(now_ms)
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    if jitter_ms > 0:
        loader.segments[-1].roll_jitter_ms = rng.randrange(jitter_ms)
    segments = LogSegments(loader.segments, log_end_offset)
    durability = Durability(
        disk,
        directory,
        segments,
        epochs,
        producers,
        flush_metrics or FlushMetrics(),
        # Recovered records after the checkpointed recovery point may not be durable yet.
        recovery_point=log_end_offset if clean else min(recovery_point, log_end_offset),
        lacks_partition_metadata=lacks_partition_metadata,
        metadata_needs_sync=metadata_needs_sync,
        names_are_synced=clean and not loader.is_changed,
        # The recovery point does not show that a flush is needed. But without a flush, a power loss could
        # bring back the end of a failed write, which was truncated here.
        tail_needs_sync=not clean and recovery_point >= log_end_offset,
    )
    return Log(
        disk,
        directory,
        topic,
        partition,
        topic_id,
        config,
        segments=segments,
        epochs=epochs,
        producers=producers,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        durability=durability,
        delayed_deletion=delayed_deletion,
        rng=rng,
        now_ms=now_ms,
        on_failure=on_failure,
    )


class _LogLoader:
    """The loading of one log from the files in its directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        config: LogConfig,
        delayed_deletion: DelayedDeletion,
        now_ms: int,
        names: list[str],
        logger: NodeLogger,
    ) -> None:
        self._logger = logger
        self._disk = disk
        self._directory = directory
        self._config = config
        self._delayed_deletion = delayed_deletion
        self._now_ms = now_ms
        self.name = name
        self.names = names
        """The names in the directory after `remove_leftovers`."""
        self.is_changed = False
        """Whether a file was created, rebuilt or removed."""
        self.segments: list[LogSegment] = []
        self.epochs = LeaderEpochFileCache(disk, directory, logger)
        self._highest_deleted_base = -1
        """The highest base offset of a segment that retention or a truncation has renamed to `.deleted`."""

    # --- interrupted truncation

    def sync_truncation(self, log_end_offset: int) -> None:
        """Make a truncation durable that a crash may have interrupted. Raises StorageError.

        Otherwise a power loss could bring deleted segments back after later appends.
        """
        if self._highest_deleted_base >= log_end_offset:
            self.segments[-1].file.sync()
            self._disk.sync_directory(self._directory)

    # --- temporary files

    def remove_leftovers(self) -> None:
        """Remove the temporary files of interrupted operations, and complete segment swaps."""
        disk, directory = self._disk, self._directory
        cleaned: list[str] = []
        swaps: list[str] = []
        if not any(name.endswith(_LEFTOVER_SUFFIXES) for name in self.names):
            return
        self.is_changed = True
        self._highest_deleted_base = max(
            (_base_offset(name) for name in self.names if name.endswith(LOG_SUFFIX + DELETED_SUFFIX)),
            default=-1,
        )
        for name in self.names:
            if name.endswith(CLEANED_SUFFIX):
                cleaned.append(name)
            elif name.endswith(SWAP_SUFFIX):
                swaps.append(name)
            elif name.endswith(TEMPORARY_SUFFIX) or (
                name.endswith(DELETED_SUFFIX) and not name.endswith(_RAFT_SNAPSHOT_DELETED)
            ):
                disk.remove(join(directory, name))
        # A swap file at or after a `.cleaned` file belongs to an incomplete swap of several segments.
        first_cleaned = min((_base_offset(name) for name in cleaned), default=None)
        complete = []
        for name in swaps:
            if first_cleaned is not None and _base_offset(name) >= first_cleaned:
                disk.remove(join(directory, name))
            else:
                complete.append(name)
        for name in cleaned:
            disk.remove(join(directory, name))
        if complete:
            self._complete_swap(complete)
        self.names = disk.names(directory)

    def _complete_swap(self, swaps: list[str]) -> None:
        disk, directory = self._disk, self._directory
        bases = [_base_offset(name) for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
        if bases:
            first = min(bases)
            end = max(self._end_of_swap(base) for base in bases)
            for name in disk.names(directory):
                replaced = name.endswith(SUFFIXES) and first <= _base_offset(name) < end
                if replaced:
                    disk.remove(join(directory, name))
        # Rename the log file last: only its `.swap` name shows that the swap has to be completed.
        for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
            disk.rename(join(directory, name), join(directory, name.removesuffix(SWAP_SUFFIX)))
        self._logger.warning(
            "Completed an interrupted segment swap of %s (%s)", self.name, plural(len(swaps), "file")
        )

    def _end_of_swap(self, base_offset: int) -> int:
        path = join(self._directory, f"{base_offset:020d}{LOG_SUFFIX}{SWAP_SUFFIX}")
        end = base_offset
        try:
            for whole in scan_batches(self._disk.open(path), 0, self._disk.size(path)):
                end = whole.location.last_offset + 1
        except InvalidBatch as error:
            self._logger.warning("Invalid batch in %s %s", path, error)
        except LegacyFormat as error:
            raise StorageError(f"{path} has {error}, which is not supported") from error
        return end

    # --- segments

    def find_segments(self, log_start_offset: int) -> None:
        """Find the segments, or create one at `log_start_offset`. Delete indexes without a log file."""
        disk = self._disk
        names = [name for name in self.names if name.endswith(SUFFIXES)]
        bases = sorted({_base_offset(name) for name in names if name.endswith(LOG_SUFFIX)})
        for name in names:
            if _base_offset(name) not in bases:
                self._logger.warning(
                    "Deleting orphaned index file %s of %s, which has no log file", name, self.name
                )
                self.is_changed = True
                disk.remove(join(self._directory, name))
        self.segments = [self._existing_segment(base) for base in bases]
        if not self.segments:
            self._create_first_segment(log_start_offset)

    def _existing_segment(self, base_offset: int) -> LogSegment:
        path = join(self._directory, f"{base_offset:020d}{LOG_SUFFIX}")
        return LogSegment(
            self._disk,
            self._directory,
            base_offset,
            self._config,
            size_bytes=self._disk.size(path),
            created_ms=self._now_ms,
            roll_jitter_ms=0,
        )

    def _create_first_segment(self, offset: int) -> None:
        self.is_changed = True
        self.segments = [
            LogSegment.create(
                self._disk, self._directory, offset, self._config, now_ms=self._now_ms, roll_jitter_ms=0
            )
        ]

    def _check_indexes(self, segments: list[LogSegment], *, after_crash: bool) -> None:
        """Rebuild missing and invalid indexes. Raises StorageError.

        After a crash, an empty time index counts as invalid, because an earlier rebuild may have been
        interrupted.
        """
        for segment in segments:
            if not segment.size_bytes and not after_crash and self._has_indexes(segment):
                segment.index.mark_empty()
                segment.time_index.mark_empty()
                continue
            try:
                segment.index.load()
                segment.time_index.load()
                if after_crash and segment.size_bytes and not self._disk.size(segment.time_index.path):
                    raise CorruptIndex("the time index is empty, but the log is not")
                if after_crash and segment.index.last_position >= segment.size_bytes:
                    # A crash during a truncation may leave a truncated log file with an index that is too
                    # long.
                    raise CorruptIndex("the index has positions beyond the log")
            except (CorruptIndex, FileMissing) as error:
                self._logger.warning("Rebuilding the indexes of %s: %s", segment.log_path, error)
                self.is_changed = True
                _rebuild_indexes(segment)

    def _has_indexes(self, segment: LogSegment) -> bool:
        paths = (segment.index.path, segment.time_index.path)
        return all(path.rpartition("/")[2] in self.names for path in paths)

    def load_clean(self) -> None:
        """Load the files of a clean shutdown. Raises StorageError or InvalidBatch."""
        self._check_indexes(self.segments, after_crash=False)
        self.epochs.load()
        if self.epochs.is_corrupt:
            self._complete_epochs(self.segments, self.segments[0].base_offset)
            self.epochs.save()

    def recover(self, producers: ProducerStateManager, recovery_point: int, log_start_offset: int) -> None:
        """Read all segments that may not be durable, and truncate the log at the first invalid batch.

        The producer state is rebuilt up to the log end offset. Raises StorageError if the disk fails, or if a
        segment has an unsupported format.
        """
        bases = [segment.base_offset for segment in self.segments]
        checkpointed_start_offset = log_start_offset
        # The segment that ends at the recovery point is durable, but its indexes may not be durable.
        first = max(0, bisect_left(bases, recovery_point) - 1)
        doubtful = self.segments[first:]
        self._check_indexes(self.segments[:first], after_crash=True)
        start = doubtful[0].base_offset
        log_start_offset = max(log_start_offset, bases[0])
        # `rebuild` deletes all snapshots after `start`; recovery takes them again, segment by segment. The
        # snapshot at `start` is used even if the log starts at `start`, because it may have the only trace
        # of a transaction whose first segment was deleted. The snapshot is not used if the checkpointed log
        # start offset is at or after `start`.
        producers.rebuild(self.segments[:first], min(checkpointed_start_offset, start), start, self._now_ms)
        if first and producers.producers:
            _restore_in_flight_batches(self.segments[first - 1], producers)
        self.epochs.load()
        self.epochs.drop_from(start)
        self._complete_epochs(self.segments[:first], log_start_offset)
        for number, segment in enumerate(doubtful):
            if number:
                producers.end_offset = segment.base_offset
                producers.take_snapshot()
            next_base = doubtful[number + 1].base_offset if number + 1 < len(doubtful) else None
            # Replay producers from the first segment on, not from the log start offset. A power loss may
            # restore an older log start offset, and the snapshots that are taken here must be valid for it,
            # too.
            if not self._recover_segment(segment, next_base, producers, bases[0]):
                break

    def _complete_epochs(self, trusted: list[LogSegment], log_start_offset: int) -> None:
        """Read the epochs of trusted segments from their batches, if the epoch file lacks the first epochs.

        The epoch file is replaced without a sync, so a power loss may have emptied it. It may also lack
        epochs that were removed for a log start offset that was not checkpointed.
        """
        earliest = self.epochs.earliest
        if not trusted or (earliest is not None and earliest[1] <= log_start_offset):
            return
        known = self.epochs.entries
        self.epochs.drop_from(0)
        for segment in trusted:
            try:
                for location in scan_headers(segment.file, 0, segment.size_bytes):
                    self.epochs.assign_if_newer(location.leader_epoch, location.base_offset)
            except InvalidBatch as error:
                # The log stays online; a consumer of this batch gets CORRUPT_MESSAGE.
                self._logger.warning(
                    "Invalid batch in %s %s; a Fetch of the batch returns CORRUPT_MESSAGE",
                    *(segment.log_path, error),
                )
        for epoch, start_offset in known:
            self.epochs.assign_if_newer(epoch, start_offset)

    def _recover_segment(
        self,
        segment: LogSegment,
        next_base: int | None,
        producers: ProducerStateManager,
        log_start_offset: int,
    ) -> bool:
        """Read a segment and truncate it at the first invalid batch; return whether all batches were valid.

        If a batch is invalid, later segments are deleted. Raises StorageError.
        """
        rebuilding = segment.begin_rebuild()
        producers.take_aborted_txns()  # discard the transactions of earlier segments
        file = segment.file
        next_offset = segment.base_offset
        valid_bytes = 0
        problem = None
        fast_path = RecoveryFastPath(
            file,
            segment.size_bytes,
            rebuilding,
            self.epochs,
            producers,
            base_offset=segment.base_offset,
            next_base=next_base,
            log_start_offset=log_start_offset,
        )
        try:
            while True:
                valid_bytes, next_offset = fast_path.advance(valid_bytes, next_offset)
                whole = next(scan_batches(file, valid_bytes, segment.size_bytes), None)
                if whole is None:
                    break
                header = self._check_batch(whole, segment, next_offset, next_base)
                rebuilding.add(whole.location)
                self.epochs.assign_if_newer(header.leader_epoch, header.base_offset)
                if header.last_offset >= log_start_offset:
                    if header.is_control and header.has_producer_id:
                        producers.update_from_marker(header, whole.buffer, whole.at)
                    else:
                        producers.update(header)
                next_offset = header.next_offset
                valid_bytes = whole.location.next_position
        except InvalidBatch as error:
            problem = error
        except LegacyFormat as error:
            raise StorageError(f"{segment.log_path} has {error}, which is not supported") from error
        if problem is not None:
            self._logger.warning(
                "Found corruption in %s, truncating it to %d bytes, offset %d: %s",
                segment.log_path,
                valid_bytes,
                next_offset,
                problem,
            )
            # Delete later segments first. If a crash followed the truncation, the next log recovery would not
            # notice that records before these segments are missing.
            self._delete_segments(self.segments[self.segments.index(segment) + 1 :])
            file.truncate(valid_bytes)
            # Sync now: a later flush or clean shutdown may skip this file, because of the recovery point.
            file.sync()
            segment.size_bytes = valid_bytes
        rebuilding.finish()
        segment.set_aborted(producers.take_aborted_txns())
        return problem is None

    def _check_batch(
        self, whole: WholeBatch, segment: LogSegment, next_offset: int, next_base: int | None
    ) -> BatchHeader:
        """Return the header of a batch if the batch is valid at this position. Raises InvalidBatch."""
        location = whole.location
        try:
            header = read_header(whole.buffer, whole.at)
        except CorruptBatch as error:
            raise InvalidBatch(location.position, str(error)) from error
        if header.magic != MAGIC:
            raise InvalidBatch(location.position, f"unsupported magic {header.magic}")
        if not crc_is_valid(whole.buffer, whole.at, header):
            raise InvalidBatch(location.position, "wrong CRC")
        if header.base_offset < next_offset or header.last_offset < header.base_offset:
            raise InvalidBatch(
                location.position,
                f"batch with offsets {header.base_offset} to {header.last_offset}, expected {next_offset}",
            )
        if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            raise InvalidBatch(
                location.position, f"offset {header.last_offset} is too far from the base offset"
            )
        if next_base is not None and header.last_offset >= next_base:
            raise InvalidBatch(location.position, f"offset {header.last_offset} belongs to the next segment")
        return header

    def _delete_segments(self, segments: list[LogSegment]) -> None:
        """Delete segments, the last segment first so that a crash leaves no gap, and sync the directory."""
        for segment in reversed(segments):
            self._logger.warning(
                "Deleting segment %s, which follows corruption or is below the log start offset",
                segment.log_path,
            )
            self._delayed_deletion.rename_files(segment.paths, self._config.file_delete_delay_ms)
            self.segments.remove(segment)
        if segments:
            self._disk.sync_directory(self._directory)

    def open_active_segment(self, log_start_offset: int) -> int:
        """Make the last segment the active one, and return the log end offset.

        Replace all segments by an empty one if they end before the log start offset. Raises StorageError, or
        InvalidBatch if the last batch is incomplete.
        """
        active = self.segments[-1]
        active.open_for_appends(self._config)
        end_offset = active.next_offset()
        if end_offset < log_start_offset:
            self._logger.warning(
                "Deleting all segments of %s: log end offset %d is below log start offset %d",
                self.name,
                end_offset,
                log_start_offset,
            )
            self._delete_segments(self.segments[:])
            self._create_first_segment(log_start_offset)
            end_offset = log_start_offset
        return end_offset

    def remove_stray_snapshots(self, producers: ProducerStateManager, log_end_offset: int) -> None:
        """Remove snapshots up to the log end, except the newest one and those at a segment's base offset."""
        offsets = [offset for offset in producers.snapshots if offset <= log_end_offset]
        if not offsets:
            return
        kept = {segment.base_offset for segment in self.segments} | {max(offsets, default=-1)}
        for offset in offsets:
            if offset not in kept:
                path = producers.forget_snapshot(offset)
                if path is not None:
                    self.is_changed = True
                    self._disk.remove(path)


def _base_offset(name: str) -> int:
    """Return the base offset in a segment's file name. Raises StorageError if the name is invalid."""
    digits = name.partition(".")[0]
    if not digits.isdigit():
        raise StorageError(f"{name} is not a valid name of a segment file")
    return int(digits)


def _restore_in_flight_batches(segment: LogSegment, producers: ProducerStateManager) -> None:
    """Restore the last five batches of each producer from the segment before the loaded snapshot.

    The snapshot has only the last batch. After a crash, a producer sends up to five unacknowledged batches
    again, and the next segment may contain fewer. Nothing is restored if a batch is invalid.
    """
    found: dict[int, deque[BatchMetadata]] = {}
    try:
        offset = segment.index.offset_at(max(0, segment.size_bytes - _IN_FLIGHT_BYTES))
        position = segment.position_before(segment.base_offset if offset is None else offset)
        for location in scan_headers(segment.file, position, segment.size_bytes):
            header = read_header(segment.file.read_at(location.position, HEADER_BYTES))
            state = producers.producers.get(header.producer_id)
            if state is not None and header.producer_epoch == state.epoch and not header.is_control:
                kept = found.setdefault(header.producer_id, deque(maxlen=BATCHES_KEPT))
                kept.append(BatchMetadata.of(header))
    except InvalidBatch:
        return
    for producer_id, kept in found.items():
        known = producers.producers[producer_id].batches
        if known and kept[-1] == known[-1] and len(kept) > len(known):
            known.clear()
            known.extend(kept)


def _rebuild_indexes(segment: LogSegment) -> None:
    try:
        segment.rebuild_indexes()
    except InvalidBatch as error:
        raise StorageError(f"{segment.log_path} is damaged {error}") from error
    # A flush would not sync these indexes, because most of the log file is already durable.
    for file in segment.index_files():
        file.sync()
