"""A future log: a copy of a log in another directory, which replaces the log once it has caught up. KIP-113.

The caller reads regions of the source log, possibly in a worker thread, and `append` appends the complete
batches of a region to the copy. The copy is a valid log at any time, so copying continues after a restart.
The producer state of the source log may come from batches that the source log has already deleted, so it is
transferred in memory at the end.
"""

from __future__ import annotations

from struct import Struct

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.log_replacement import LogReplacement
from kwire.broker.storage.file_region import FileRegion
from kwire.broker.storage.log.log import Log
from kwire.wire.errors import ApiError, ErrorCode

_BASE_AND_LENGTH = Struct(">qi")
_MIN_READ_BYTES = 16 * 1024
_MAX_READ_BYTES = 1024 * 1024
_MAX_BATCHES = 256
"""The maximum number of batches per append. Each batch takes the event loop a few microseconds."""


class FutureLog:
    """A future log and its source log. The methods must run on the event loop.

    They raise StorageError if a disk fails, and ApiError CORRUPT_MESSAGE if the source log is corrupt.
    """

    def __init__(self, log_manager: LogManager, source: Log, directory: LogDirectory, now_ms: int) -> None:
        """Continue the existing copy, or create one if there is none."""
        self.source = source
        self.directory = directory
        self._log_manager = log_manager
        self._read_bytes = _MIN_READ_BYTES
        found = log_manager.future_log(source.topic, source.partition)
        self.log = found if found is not None else self._create(now_ms)
        if found is not None:
            self.truncate_to_source(now_ms)

    def __repr__(self) -> str:
        return f"FutureLog({self.source.name} to {self.directory.path}, offset lag {self.offset_lag})"

    @property
    def offset_lag(self) -> int:
        """The number of offsets by which the copy lags behind the source log."""
        return self.source.written_end_offset - self.log.log_end_offset

    @property
    def lag_bytes(self) -> int:
        """The number of bytes by which the copy lags behind the source log."""
        return self.source.size_between(self.log.log_end_offset, self.source.written_end_offset)

    def _create(self, now_ms: int) -> Log:
        return self._log_manager.create_future_log(self.source, self.directory, self._first_offset(), now_ms)

    def _first_offset(self) -> int:
        """Return the first offset to copy: the base offset of the batch with the local log start offset."""
        start_offset = self.source.local_log_start_offset
        if start_offset >= self.source.written_end_offset:
            return start_offset
        head = self._read_source(start_offset, 1).read()[: _BASE_AND_LENGTH.size]
        return min(start_offset, int(_BASE_AND_LENGTH.unpack(head)[0]))

    def _recreate(self, now_ms: int) -> None:
        self._log_manager.delete(self.log, now_ms, sync=False)
        self.log = self._create(now_ms)

    def truncate_to_source(self, now_ms: int) -> None:
        """Truncate the copy to the part that both logs share, or recreate the copy if they share no part.

        Must be called after each truncation of the source log; the constructor calls it for an existing copy.
        The source log may have lost records that were copied, and may have appended other records. KIP-101:
        two logs are equal up to the offset at which their leader epochs diverge.
        """
        source, log = self.source, self.log
        same_up_to = 0
        if log.latest_epoch is not None:
            epoch, end_offset = source.end_offset_for_epoch(log.latest_epoch)
            same_up_to = min(end_offset, log.end_offset_for_epoch(epoch)[1]) if epoch >= 0 else 0
        if log.log_end_offset <= same_up_to:
            return
        if same_up_to <= log.log_start_offset:
            self._recreate(now_ms)
        else:
            log.truncate_to(same_up_to)

    # --- copying

    def next_region(self, now_ms: int) -> FileRegion | None:
        """Return the next region of the source log to read, or None if the copy has caught up.

        Recreate the copy first if retention has deleted the records that would be copied next.
        """
        self._raise_if_failed()
        source = self.source
        if self.log.log_end_offset < source.local_log_start_offset and (
            self.log.log_end_offset < self._first_offset()
        ):
            self._recreate(now_ms)
        if self.offset_lag <= 0:
            self._follow_source()
            return None
        next_offset = max(self.log.log_end_offset, source.local_log_start_offset)
        return self._read_source(next_offset, min(self._read_bytes, source.config.segment_bytes))

    def _read_source(self, offset: int, max_bytes: int) -> FileRegion:
        source = self.source
        try:
            return source.read(offset, max_bytes=max_bytes, up_to_offset=source.written_end_offset)
        except ApiError as error:
            if source.failure is not None:
                raise source.failure from error
            raise

    def append(self, data: bytes, now_ms: int) -> int:
        """Append up to 256 complete batches from the start of `data`, and return their size in bytes.

        Raises ApiError CORRUPT_MESSAGE if `data` does not start with a complete batch.
        """
        self._raise_if_failed()
        view = memoryview(data)
        position = batches = 0
        while batches < _MAX_BATCHES and position + _BASE_AND_LENGTH.size <= len(data):
            _, length = _BASE_AND_LENGTH.unpack_from(data, position)
            end = position + _BASE_AND_LENGTH.size + length
            if length <= 0 or end > len(data):
                break
            # Append batches one by one, because each append adds at most one index entry for its last offset.
            self.log.append_stored(view[position:end], now_ms=now_ms)
            position = end
            batches += 1
        if not position:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"No complete batch was read from {self.source.name}")
        self.log.commit()
        self._follow_source()
        grown = self._read_bytes * 2 if batches < _MAX_BATCHES // 2 else position
        self._read_bytes = max(_MIN_READ_BYTES, min(grown, _MAX_READ_BYTES))
        return position

    def _follow_source(self) -> None:
        source, log = self.source, self.log
        log.high_watermark = max(log.log_start_offset, min(source.high_watermark, log.log_end_offset))
        if log.log_start_offset < source.log_start_offset <= log.high_watermark:
            log.delete_records_before(source.log_start_offset)

    def _raise_if_failed(self) -> None:
        for log in (self.source, self.log):
            if log.failure is not None:
                raise log.failure

    # --- replacing the source log

    def replace_source(self, now_ms: int) -> LogReplacement:
        """Copy the remaining records and begin to replace the source log by the copy.

        Both logs must be recoverable, and neither may have staged appends. After a StorageError, the source
        log stays in use.
        """
        source = self.source
        while (piece := self.next_region(now_ms)) is not None:
            self.append(piece.read(), now_ms)
        log = self.log
        theirs, ours = source.latest_epoch, log.latest_epoch
        if theirs is not None and (ours is None or theirs > ours):
            log.begin_leader_epoch(theirs)
        log.config = source.config
        _transfer_producers(source, log)
        log.high_watermark = max(log.log_start_offset, source.high_watermark)
        log.snapshot_producers()
        return self._log_manager.replace_current_with_future_log(log)


def _transfer_producers(source: Log, log: Log) -> None:
    theirs, ours = source.producers, log.producers
    # In the copy, an open transaction starts with the first of its batches that the source log still has.
    for producer_id in list(theirs.ongoing):
        first_offset = theirs.producers[producer_id].txn_first_offset = ours.ongoing.get(producer_id)
        if first_offset is None:
            del theirs.ongoing[producer_id]
        else:
            theirs.ongoing[producer_id] = first_offset
    ours.producers, ours.ongoing, ours.unreplicated = theirs.producers, theirs.ongoing, theirs.unreplicated
    ours.expiration_ms, ours.verifications = theirs.expiration_ms, theirs.verifications
