"""Staged appends: they have offsets, but are not in the segment file yet."""

from __future__ import annotations

from kwire.broker.storage.disk import DiskFile, ResourceShortage, StorageError
from kwire.broker.storage.log.segment import LogSegment
from kwire.broker.storage.log.validator import ValidatedBatch
from kwire.wire.batch import BatchHeader, CorruptBatch, batches, crc_is_valid, stamp
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple


class LogAppendInfo(NamedTuple):
    """The result of an append. Kafka's LogAppendInfo."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """The append time in ms if the topic uses LogAppendTime; otherwise -1. For a duplicate, the greatest
    timestamp of the batch."""
    log_start_offset: int
    is_duplicate: bool = False
    """Whether the batch is a duplicate. The offsets are then those of the first append of the batch."""


class IncomingBatches(NamedTuple):
    """The batches of one append."""

    data: bytearray | memoryview
    size_bytes: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    """The last offset of the first batch with the greatest timestamp, or -1 if there are no timestamps."""
    from_producers: list[tuple[int, BatchHeader]]
    """The position in `data` and the header of each batch that has a producer id."""
    epochs: list[tuple[int, int]]
    """The leader epochs of the batches, with the start offset of each epoch."""
    parts: list[tuple[int, int, int, int]] | None = None
    """For each batch: size in bytes, last offset, greatest timestamp, and last offset again. None if there is
    only one batch."""


class StagedAppends:
    """The appends of a log that are not in its active segment's file yet."""

    __slots__ = ("_incoming", "size_bytes")

    def __init__(self) -> None:
        self._incoming: list[IncomingBatches] = []
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._incoming)

    def add(self, incoming: IncomingBatches) -> None:
        self._incoming.append(incoming)
        self.size_bytes += incoming.size_bytes

    def clear(self) -> None:
        self._incoming = []
        self.size_bytes = 0

    def write_to(self, segment: LogSegment, file: DiskFile) -> None:
        """Write all staged appends to the file of a segment with one call; none if it raises StorageError.

        After a ResourceShortage, the appends are still staged.
        """
        incoming = self._incoming
        try:
            file.write_at(segment.size_bytes, [one.data for one in incoming])
        except StorageError as error:
            if not isinstance(error, ResourceShortage):
                self.clear()
            file.truncate(segment.size_bytes)
            raise
        self.clear()
        for one in incoming:
            if one.parts is None:
                segment.update_after_append(
                    one.size_bytes, one.last_offset, one.max_timestamp, one.offset_of_max_timestamp
                )
            else:  # as in Kafka since 4.0, a follower's indexes have the same entries as its leader's indexes
                for part in one.parts:
                    segment.update_after_append(*part)


def assign_offsets(validated: ValidatedBatch, first_offset: int, leader_epoch: int) -> IncomingBatches:
    """Write the offsets and the leader epoch into a validated batch, and return the batch to be staged."""
    data, header = validated
    stamp(data, 0, first_offset, leader_epoch)
    last_offset = first_offset + header.last_offset_delta
    from_producers: list[tuple[int, BatchHeader]] = []
    if header.producer_id >= 0:
        from_producers.append((0, BatchHeader(first_offset, header.batch_length, leader_epoch, *header[3:])))
    has_time = header.max_timestamp >= 0
    return IncomingBatches(
        data,
        len(data),
        first_offset,
        last_offset,
        header.max_timestamp if has_time else -1,
        last_offset if has_time else -1,
        from_producers,
        [(leader_epoch, first_offset)],
    )


def check_stored_batches(
    records: memoryview, next_offset: int, *, fetched_in_epoch: int | None = None
) -> IncomingBatches | None:
    """Check batches that already have offsets and leader epochs. Return None if no batch is to be appended.

    `fetched_in_epoch` is given for batches of a Fetch response: the leader epoch of the fetch. An incomplete
    last batch is then dropped, and so are the first batch of a later leader epoch and all batches after it.

    Raises ApiError CORRUPT_MESSAGE, or OFFSET_OUT_OF_RANGE for offsets before `next_offset`.
    """
    first_offset = -1
    max_timestamp, offset_of_max = -1, -1
    size_bytes = 0
    from_producers: list[tuple[int, BatchHeader]] = []
    epochs: list[tuple[int, int]] = []
    parts: list[tuple[int, int, int, int]] = []
    try:
        for position, header in batches(records, allow_partial=fetched_in_epoch is not None):
            if not crc_is_valid(records, position, header):
                raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
            if fetched_in_epoch is not None and header.leader_epoch > fetched_in_epoch:
                break
            last_offset = header.last_offset
            if header.base_offset < next_offset or last_offset < header.base_offset:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"A batch from {header.base_offset} to {last_offset} cannot follow {next_offset}.",
                )
            if first_offset < 0:
                first_offset = header.base_offset
            next_offset = last_offset + 1
            if header.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = header.max_timestamp, last_offset
            if header.producer_id >= 0:
                from_producers.append((position, header))
            if not epochs or epochs[-1][0] != header.leader_epoch:
                epochs.append((header.leader_epoch, header.base_offset))
            parts.append((header.size_bytes, last_offset, header.max_timestamp, last_offset))
            size_bytes = position + header.size_bytes
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not size_bytes:
        return None
    return IncomingBatches(
        records[:size_bytes],
        size_bytes,
        first_offset,
        next_offset - 1,
        max_timestamp,
        offset_of_max,
        from_producers,
        epochs,
        parts if len(parts) > 1 else None,
    )
