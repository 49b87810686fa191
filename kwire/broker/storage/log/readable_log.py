"""What is read of a partition's log, and what comes of a read that fails."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from kwire.broker.storage.disk import FileRegion, StorageError
from kwire.broker.storage.log.scan import InvalidBatch
from kwire.broker.storage.log.segment import TimestampOffset
from kwire.broker.storage.log.segments import LogSegments
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import CorruptBatch
from kwire.wire.errors import ApiError, ErrorCode

_Found = TypeVar("_Found")


class ReadableLog:
    """The half of a log that readers use."""

    __slots__ = ()

    _segments: LogSegments
    failure: StorageError | None
    log_end_offset: int
    log_start_offset: int
    name: str

    @property
    @abstractmethod
    def last_stable_offset(self) -> int:
        """Where readers of committed transactions stop."""

    @abstractmethod
    def _fail(self, error: StorageError) -> None:
        """Take the log offline."""

    def read(
        self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one: bool = True
    ) -> FileRegion:
        """The bytes from the batch that holds `offset`, up to `max_bytes`; the last batch may be cut short.

        None from `up_to_offset` on. The first batch comes whole, however large; without `at_least_one` it is
        INCOMPLETE if it is too large (KIP-74). ApiError: OFFSET_OUT_OF_RANGE, and those below.
        """
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}.",
            )
        try:
            return self._segments.region(offset, up_to_offset, max_bytes, at_least_one=at_least_one)
        except (StorageError, InvalidBatch) as error:
            raise self._read_error(error) from error

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTxn]:
        """What a read_committed reader of this region must leave out. ApiError: KAFKA_STORAGE_ERROR."""
        return self._look_up(lambda: self._segments.aborted(offset, region, self.last_stable_offset))

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """How many bytes lie between two offsets. ApiError: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE."""
        start_offset = max(offset, self.log_start_offset)
        return self._look_up(lambda: self._segments.size_between(start_offset, up_to_offset))

    def known_position(self, region: FileRegion, offset: int) -> tuple[int, int] | None:
        """Where a read from `offset` began that gave this region; None where that has to be looked for."""
        return self._segments.known_position(region, offset)

    def place(self, offset: int) -> tuple[int, int]:
        """Where a read from `offset` begins: a segment's base offset, and the position in it.."""
        return self._look_up(lambda: self._segments.place(offset))

    def bytes_from_position(self, base: int, position: int, up_to_offset: int) -> int | None:
        """How many bytes lie between such a place and an offset; None if it is in another one. ApiError."""
        return self._look_up(lambda: self._segments.bytes_from_position(base, position, up_to_offset))

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record that is not older than `timestamp`, in the first segment that ever had one.

        None if there is none. ApiError: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE.
        """
        return self._look_up(lambda: self._segments.find_timestamp(timestamp, self.log_start_offset))

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the greatest timestamp; None in an empty log. ApiError as above."""
        return self._look_up(self._segments.find_max_timestamp)

    def _look_up(self, find: Callable[[], _Found]) -> _Found:
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            return find()
        except (StorageError, InvalidBatch, CorruptBatch) as error:
            raise self._read_error(error) from error

    def _read_error(self, error: Exception) -> ApiError:
        """What to tell whoever reads. A disk that fails takes the log offline; a damaged batch does not."""
        if isinstance(error, StorageError):
            self._fail(error)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} is damaged: {error}")
