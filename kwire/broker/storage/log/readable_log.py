"""Reads from a partition's log, and the Kafka errors of failed reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kwire.broker.storage.disk import Disk, ResourceShortage, StorageError
from kwire.broker.storage.file_region import CopiedRegion, FileRegion
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.remote_segment import RemoteRegion, RemoteSegment
from kwire.broker.storage.log.scan import InvalidBatch
from kwire.broker.storage.log.segment import LogSegment, TimestampOffset
from kwire.broker.storage.log.segments import EMPTY, LogSegments
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.broker.storage.log.worker_reads import WorkerReads
from kwire.wire.batch import CorruptBatch
from kwire.wire.errors import ApiError, ErrorCode

_Found = TypeVar("_Found")
MAX_COPIED_BYTES = 1 << 20
"""The largest region that is copied, unless its first batch is larger."""


class ReadableLog:
    """The read methods of a log. `Log` adds appends, truncation, retention and flushes.

    Reads of files raise ApiError KAFKA_STORAGE_ERROR if the log is offline or the disk fails, and
    CORRUPT_MESSAGE if they find an invalid batch.
    """

    __slots__ = ()

    _disk: Disk
    _epochs: LeaderEpochFileCache
    _segments: LogSegments
    failure: StorageError | None
    local_log_start_offset: int
    log_end_offset: int
    log_start_offset: int
    name: str
    remote_segments: Sequence[RemoteSegment]

    @property
    @abstractmethod
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed consumers may read."""

    @abstractmethod
    def _fail(self, error: StorageError) -> None:
        """Take the log offline."""

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        up_to_offset: int,
        at_least_one: bool = True,
        reads: WorkerReads | None = None,
    ) -> FileRegion:
        """Return the bytes from the batch that contains `offset` to `up_to_offset` or the end of its segment.

        They are limited to `max_bytes`, so the last batch may be incomplete. The first batch is complete even
        if it exceeds `max_bytes`; with `at_least_one=False`, the result is then `segments.INCOMPLETE`
        instead (KIP-74). Raises ApiError OFFSET_OUT_OF_RANGE if `offset` is before the log start offset or
        after the log end offset.

        With `reads`, raises ReadPending if a worker has to read first. Without it, reads wait for the disk,
        and an offset in a remote segment raises ApiError OFFSET_MOVED_TO_TIERED_STORAGE.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset < self.local_log_start_offset or offset > self.log_end_offset:
            return self._read_remote(offset, max_bytes, reads, at_least_one=at_least_one)
        try:
            is_inactive = offset < min(self._segments.active.base_offset, up_to_offset)
            if is_inactive and reads is not None and (max_bytes or at_least_one):
                self._segments.warm(offset, reads)
            return self._segments.region(offset, up_to_offset, max_bytes, at_least_one=at_least_one)
        except ResourceShortage:
            max_bytes = min(max_bytes, MAX_COPIED_BYTES)
            return self._look_up(
                lambda: self._copied_region(offset, up_to_offset, max_bytes, at_least_one=at_least_one)
            )
        except (StorageError, InvalidBatch) as error:
            raise self._read_error(error) from error

    def _copied_region(
        self, offset: int, up_to_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> FileRegion:
        """Read a region at once, with a spare descriptor, which a region in a send queue would keep."""
        with self._disk.reserved():
            region = self._segments.region(offset, up_to_offset, max_bytes, at_least_one=at_least_one)
            return CopiedRegion(region.read(), region.position) if region.size_bytes else region

    def _read_remote(
        self, offset: int, max_bytes: int, reads: WorkerReads | None, *, at_least_one: bool
    ) -> FileRegion:
        for segment in self.remote_segments:
            if self.log_start_offset <= offset < min(segment.end_offset, self.local_log_start_offset):
                if reads is None:
                    raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
                if not max_bytes and not at_least_one:
                    return EMPTY
                read = partial(segment.read, offset, max_bytes, at_least_one=at_least_one)
                return reads.result((segment, offset), read)
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}.",
        )

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTxn]:
        """Return the aborted transactions that a read_committed consumer has to skip in a region.

        `region` is the result of a read of `offset`.
        """
        if isinstance(region, RemoteRegion):
            return region.aborted
        return self._look_up(lambda: self._segments.aborted(offset, region, self.last_stable_offset))

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """Return the number of bytes between two offsets on this disk."""
        start_offset = max(offset, self.local_log_start_offset)
        return self._look_up(lambda: self._segments.size_between(start_offset, up_to_offset))

    def known_position(self, region: FileRegion, offset: int) -> tuple[int, int] | None:
        """Return the result of `find_position`, or None if that takes a search.

        `region` is the result of a read of `offset`.
        """
        return self._segments.known_position(region, offset)

    def find_position(self, offset: int) -> tuple[int, int]:
        """Return where a read of `offset` starts: the segment's base offset, and the position in its file."""
        return self._look_up(lambda: self._segments.find_position(offset))

    def bytes_from_position(self, base: int, position: int, up_to_offset: int) -> int | None:
        """Return the number of bytes from a position in the segment with base offset `base` to an offset.

        Return None if the offset is in another segment.
        """
        return self._look_up(lambda: self._segments.bytes_from_position(base, position, up_to_offset))

    def offset_for_timestamp(
        self, timestamp: int, reads: WorkerReads | None = None
    ) -> TimestampOffset | None:
        """Return the first record, in offset order, with this timestamp or a later one, or None.

        `reads` is used as in `read`.
        """
        start_offset = self.log_start_offset
        for segment in self.remote_segments:
            if start_offset < segment.end_offset and segment.max_timestamp >= timestamp:
                if reads is None:
                    raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
                find = partial(segment.find_timestamp, timestamp, start_offset)
                found = reads.result((segment, timestamp), find)
                if found is not None:
                    return found
        start_offset = self.local_log_start_offset
        return self._look_up(lambda: self._segments.find_timestamp(timestamp, start_offset, reads))

    def max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp, or None if the log is empty."""
        return self._look_up(self._segments.find_max_timestamp)

    @property
    def size_bytes(self) -> int:
        """The size of all segments in bytes, without their indexes."""
        return self._segments.size_bytes

    @property
    def segment_base_offsets(self) -> list[int]:
        return list(self._segments.bases)

    @property
    def segments(self) -> list[LogSegment]:  # the active segment is the last one
        return list(self._segments)

    @property
    def latest_epoch(self) -> int | None:
        """The latest leader epoch, even if it has no records yet; None if no epoch is known."""
        return self._epochs.latest

    @property
    def leader_epochs(self) -> list[tuple[int, int]]:
        """The leader epochs with their start offsets, oldest first."""
        return self._epochs.entries

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset, or None if it is unknown."""
        return max((epoch for epoch, start in self._epochs.entries if start <= offset), default=None)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` and its end offset; (-1, -1) if unknown. KIP-101."""
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def _look_up(self, find: Callable[[], _Found]) -> _Found:
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            try:
                return find()
            except ResourceShortage:
                with self._disk.reserved():
                    return find()
        except (StorageError, InvalidBatch, CorruptBatch) as error:
            raise self._read_error(error) from error

    @contextmanager
    def _failing(self, *, is_repeatable: bool = False) -> Iterator[None]:
        """Take the log offline and call `on_failure` if the block raises StorageError.

        The block runs only if the disk has descriptors for it: otherwise ResourceShortage is raised, and the
        log stays online. If the block `is_repeatable`, a shortage in the middle has the same effect.
        """
        with self._disk.reserved():
            try:
                yield
            except StorageError as error:
                if not (is_repeatable and isinstance(error, ResourceShortage)):
                    self._fail(error)
                raise

    @contextmanager
    def _rejecting(self) -> Iterator[None]:
        """Turn a StorageError into ApiError KAFKA_STORAGE_ERROR, which clients retry.

        The log goes offline unless the error is a ResourceShortage.
        """
        try:
            yield
        except StorageError as error:
            raise self._rejection(error) from error

    def _rejection(self, error: StorageError) -> ApiError:
        if not isinstance(error, ResourceShortage):
            self._fail(error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def _read_error(self, error: Exception) -> ApiError:
        """Return the error of a failed read. A disk error takes the log offline; a corrupt batch does not."""
        if isinstance(error, StorageError):
            if not isinstance(error, ResourceShortage):
                self._fail(error)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} is damaged: {error}")
