"""Opening a log: what its directory holds is cleaned of leftovers, and checked as far as it may be in doubt.

After a clean shutdown the files are trusted; only indexes that are missing or cannot be right are rebuilt.
After anything else every segment from the recovery point on is read batch by batch. The log ends before the
first batch that is not whole, not of its CRC or not after the one before it; what comes later is set aside.
Indexes, leader epochs and producers of what was read are made afresh from it.
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
from kwire.broker.storage.log.index import MAX_RELATIVE_OFFSET, CorruptIndex
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_state import (
    BATCHES_KEPT,
    PRODUCER_ID_EXPIRATION_MS,
    BatchMetadata,
    ProducerStateManager,
)
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
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger
from kwire.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, crc_is_valid, read_header
from kwire.wire.primitives import ZERO_UUID, Uuid

_LEFTOVER_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX, DELETED_SUFFIX)
_RAFT_SNAPSHOT_DELETED = ".checkpoint" + DELETED_SUFFIX
"""A snapshot of the metadata that is on its way out: the metadata log's to remove."""
_IN_FLIGHT_BYTES = 16 << 20
"""How much of what lies before a snapshot is looked at for what was in flight with its last batches."""


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
    recovery_point: int = 0,
    log_start_offset: int = 0,
    topic_id: Uuid | None = None,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    logger: NodeLogger = STORAGE_LOGGER,
) -> Log:
    """Open the log in `directory`, or make it there.

    `clean` says that the last shutdown left it complete. `recovery_point` and `log_start_offset` come from
    the checkpoints; `topic_id` is written down for a directory that tells none.
    Raises StorageError: the disk fails, the directory is another topic's, or holds a format not known here.
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
        raise StorageError(f"{join(directory, PARTITION_METADATA)} names another topic's id")

    opening = _LogLoader(
        disk, directory, f"{topic}-{partition}", config, delayed_deletion, now_ms, names, logger
    )
    opening.remove_leftovers()
    metadata_needs_sync = lacks_partition_metadata = stored_id is None and topic_id != ZERO_UUID
    if lacks_partition_metadata:
        write_temporary_partition_metadata(disk, directory, topic_id)
    opening.find_segments(log_start_offset)
    producers = ProducerStateManager(
        disk, directory, partition=opening.name, expiration_ms=producer_id_expiration_ms, logger=logger
    )
    producers.find_snapshots(opening.names)
    if clean:
        try:
            opening.load_clean()
            log_end_offset = opening.end(log_start_offset)
        except InvalidBatch as error:
            logger.warning("%s: damaged since it was shut down: %s", opening.name, error)
            clean = False
    if not clean:
        opening.recover(producers, recovery_point, log_start_offset)
        log_end_offset = opening.end(log_start_offset)
        opening.sync_truncation(log_end_offset)
    log_start_offset = max(log_start_offset, opening.segments[0].base_offset)

    epochs = opening.epochs
    epochs.restrict_to(log_start_offset, log_end_offset)
    if not clean:
        epochs.save()
        # Whether the last process had synced what it wrote nobody knows.
        epochs.needs_sync = epochs.needs_sync or bool(epochs.entries)
        metadata_needs_sync = metadata_needs_sync or stored_id is not None
    opening.remove_stray_snapshots(producers, log_end_offset)
    if clean or log_end_offset <= log_start_offset:
        producers.rebuild(opening.segments, log_start_offset, log_end_offset, now_ms)
    else:
        # A snapshot tells a producer's last batch alone. What recovery has read may tell all five, so that
        # what was in flight when the process died can be sent again and is known.
        producers.end_offset = log_end_offset
        producers.expire(now_ms)
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    if jitter_ms > 0:
        opening.segments[-1].roll_jitter_ms = rng.randrange(jitter_ms)
    return Log(
        disk,
        directory,
        topic,
        partition,
        topic_id,
        config,
        segments=opening.segments,
        epochs=epochs,
        producers=producers,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        # What was only found, and not synced since, is not durable yet.
        recovery_point=log_end_offset if clean else min(recovery_point, log_end_offset),
        delayed_deletion=delayed_deletion,
        rng=rng,
        now_ms=now_ms,
        lacks_partition_metadata=lacks_partition_metadata,
        metadata_needs_sync=metadata_needs_sync,
        names_are_synced=clean and not opening.is_changed,
        # No offset will tell a flush that there is something to sync, but the end of a write that failed may
        # still come back.
        tail_needs_sync=not clean and recovery_point >= log_end_offset,
        on_failure=on_failure,
    )


class _LogLoader:
    """One directory on its way to becoming a log."""

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
        """The names in the directory as it is after `remove_leftovers`."""
        self.is_changed = False
        """Whether a file came or went. A log in which none did is left without a wait for the disk."""
        self.segments: list[LogSegment] = []
        self.epochs = LeaderEpochFileCache(disk, directory, logger)
        self._highest_deleted_base = -1
        """The last segment that had been set aside, by retention or since the log was cut."""

    # --- what was cut

    def sync_truncation(self, log_end_offset: int) -> None:
        """Make it durable that the log was cut, where the last process has died over it. StorageError.

        A loss of power would bring segments back behind what is appended from here on.
        """
        if self._highest_deleted_base >= log_end_offset:
            self.segments[-1].file.sync()
            self._disk.sync_directory(self._directory)

    # --- leftovers

    def remove_leftovers(self) -> None:
        """Remove what an interruption left behind, and complete what was all but done. StorageError."""
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
        # A swap file beyond a segment still in the making is one of several that were to replace one segment.
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
        # The log comes last: its name alone decides whether the swap is still to be completed.
        for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
            disk.rename(join(directory, name), join(directory, name.removesuffix(SWAP_SUFFIX)))
        self._logger.warning("%s: %d files of an interrupted swap put in place", self.name, len(swaps))

    def _end_of_swap(self, base_offset: int) -> int:
        path = join(self._directory, f"{base_offset:020d}{LOG_SUFFIX}{SWAP_SUFFIX}")
        end = base_offset
        try:
            for whole in scan_batches(self._disk.open(path), 0, self._disk.size(path)):
                end = whole.location.last_offset + 1
        except InvalidBatch as error:
            self._logger.warning("%s: %s", path, error)
        except LegacyFormat as error:
            raise StorageError(f"{path} has {error}, which is not supported") from error
        return end

    # --- segments

    def find_segments(self, log_start_offset: int) -> None:
        """The segments that there are, or a first one. Indexes without a log are removed. StorageError."""
        disk = self._disk
        names = [name for name in self.names if name.endswith(SUFFIXES)]
        bases = sorted({_base_offset(name) for name in names if name.endswith(LOG_SUFFIX)})
        for name in names:
            if _base_offset(name) not in bases:
                self._logger.warning("%s: removing %s, which has no log", self.name, name)
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
        """Rebuild indexes that are missing or cannot be right.

        A sound but empty time index proves nothing after a crash: rebuilding it may have been interrupted.
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
                    raise CorruptIndex("the time index is empty, the log is not")
                if after_crash and segment.index.last_position >= segment.size_bytes:
                    # The log was cut, of which a loss of power has left no more than this.
                    raise CorruptIndex("the index goes beyond the log")
            except (CorruptIndex, FileMissing) as error:
                self._logger.warning("%s: rebuilding the indexes of %r: %s", self.name, segment, error)
                self.is_changed = True
                _rebuild_indexes(segment)

    def _has_indexes(self, segment: LogSegment) -> bool:
        paths = (segment.index.path, segment.time_index.path)
        return all(path.rpartition("/")[2] in self.names for path in paths)

    def load_clean(self) -> None:
        """Take the files for what they say. StorageError."""
        self._check_indexes(self.segments, after_crash=False)
        self.epochs.load()
        if self.epochs.is_corrupt:
            self._complete_epochs(self.segments, self.segments[0].base_offset)
            self.epochs.save()

    def recover(self, producers: ProducerStateManager, recovery_point: int, log_start_offset: int) -> None:
        """Read every segment that may not have been synced, and end the log where it stops making sense.

        The producers are brought to its end.
        StorageError: the disk fails, or a segment holds a format that is not known here.
        """
        bases = [segment.base_offset for segment in self.segments]
        checkpointed_start_offset = log_start_offset
        # A segment that ends at the recovery point is synced, but its indexes may not be.
        first = max(0, bisect_left(bases, recovery_point) - 1)
        doubtful = self.segments[first:]
        self._check_indexes(self.segments[:first], after_crash=True)
        start = doubtful[0].base_offset
        log_start_offset = max(log_start_offset, bases[0])
        # This removes every snapshot beyond the start as well: they are made again, segment by segment. The
        # one at the start is good unless the log is known to start there: it may be the only one to tell of
        # a transaction whose first segment was deleted.
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
            # Producers count from the first segment on, not from the log's start: the snapshots taken here
            # have to tell of what a loss of power may bring back, too.
            if not self._recover_segment(segment, next_base, producers, bases[0]):
                break

    def _complete_epochs(self, trusted: list[LogSegment], log_start_offset: int) -> None:
        """Read the epochs of what is trusted from its batches, where the file does not tell them all.

        The file is replaced without waiting for the disk, so that a loss of power may have emptied it; and it
        forgets what lies before a log start offset that the checkpoint has not heard of.
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
                # Whoever reads it is told; the log stays.
                self._logger.warning("%s: %s", segment.log_path, error)
        for epoch, start_offset in known:
            self.epochs.assign_if_newer(epoch, start_offset)

    def _recover_segment(
        self,
        segment: LogSegment,
        next_base: int | None,
        producers: ProducerStateManager,
        log_start_offset: int,
    ) -> bool:
        """Read a segment whole, and cut it where it is no longer sound. Whether all of it is."""
        rebuilding = segment.begin_rebuild()
        producers.take_aborted_txns()  # of what came before
        file = segment.file
        next_offset = segment.base_offset
        valid_bytes = 0
        problem = None
        run = RecoveryFastPath(
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
                valid_bytes, next_offset = run.advance(valid_bytes, next_offset)
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
                "%s: %r is cut to %d bytes, up to offset %d: %s",
                self.name,
                segment,
                valid_bytes,
                next_offset,
                problem,
            )
            # Later segments cannot follow a log that is cut. They go first: once it is cut, nothing tells the
            # next recovery that anything is missing.
            self._delete_segments(self.segments[self.segments.index(segment) + 1 :])
            file.truncate(valid_bytes)
            # No flush would see that there is something to sync, and a clean shutdown have it trusted.
            file.sync()
            segment.size_bytes = valid_bytes
        rebuilding.finish()
        segment.set_aborted(producers.take_aborted_txns())
        return problem is None

    def _check_batch(
        self, whole: WholeBatch, segment: LogSegment, next_offset: int, next_base: int | None
    ) -> BatchHeader:
        """The header of a batch that may stand here. Invalid."""
        location = whole.location
        try:
            header = read_header(whole.buffer, whole.at)
        except CorruptBatch as error:
            raise InvalidBatch(location.position, str(error)) from error
        if header.magic != MAGIC:
            raise InvalidBatch(location.position, f"a batch of format {header.magic}")
        if not crc_is_valid(whole.buffer, whole.at, header):
            raise InvalidBatch(location.position, "a batch with a wrong CRC")
        if header.base_offset < next_offset or header.last_offset < header.base_offset:
            raise InvalidBatch(
                location.position,
                f"a batch from {header.base_offset} to {header.last_offset} where {next_offset} was to come",
            )
        if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            raise InvalidBatch(
                location.position, f"offset {header.last_offset} is too far from the segment's first"
            )
        if next_base is not None and header.last_offset >= next_base:
            raise InvalidBatch(location.position, f"offset {header.last_offset} belongs to the next segment")
        return header

    def _delete_segments(self, segments: list[LogSegment]) -> None:
        """Take them out of the log, for good. The last goes first: a crash leaves no hole."""
        for segment in reversed(segments):
            self._logger.warning("%s: %r does not follow the end of the log: set aside", self.name, segment)
            self._delayed_deletion.rename_files(segment.paths, self._config.file_delete_delay_ms)
            self.segments.remove(segment)
        if segments:
            self._disk.sync_directory(self._directory)

    def end(self, log_start_offset: int) -> int:
        """Make the last segment the active one, and tell where the log ends. StorageError."""
        active = self.segments[-1]
        active.open_for_appends(self._config)
        end_offset = active.next_offset()
        if end_offset < log_start_offset:
            self._logger.warning(
                "%s: ends at %d, before its start at %d: emptied", self.name, end_offset, log_start_offset
            )
            self._delete_segments(self.segments[:])
            self._create_first_segment(log_start_offset)
            end_offset = log_start_offset
        return end_offset

    def remove_stray_snapshots(self, producers: ProducerStateManager, log_end_offset: int) -> None:
        """Keep the snapshots that stand at a segment's first offset, and the newest one; no others."""
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
    """The offset that a segment file's name begins with. StorageError."""
    digits = name.partition(".")[0]
    if not digits.isdigit():
        raise StorageError(f"{name} is not named as a segment's file is")
    return int(digits)


def _restore_in_flight_batches(segment: LogSegment, producers: ProducerStateManager) -> None:
    """Learn from the end of a segment what the snapshot behind it leaves out: what came before a last batch.

    A producer whose broker dies sends again all that had no answer, up to five batches, of which the segment
    that is read next may hold fewer. Only headers are read; what makes no sense there is nobody's loss.
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
    # The log file is durable already, for the most part: no flush would see to these.
    for file in segment.index_files():
        file.sync()
