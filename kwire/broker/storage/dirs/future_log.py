"""A copy of a log in another directory, filled until it can take the log's place.

It is filled piece by piece: the caller reads a piece of the source (in a thread, if it likes), and `append`
appends what is whole of it. So the copy is at every moment a log like any other, and a restart goes on with
it. What only the source's memory tells, the producers whose batches are gone by now, is handed over in the
end.
"""

from __future__ import annotations

from struct import Struct

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.log_replacement import LogReplacement
from kwire.broker.storage.disk import FileRegion
from kwire.broker.storage.log.log import Log
from kwire.wire.errors import ApiError, ErrorCode

_BASE_AND_LENGTH = Struct(">qi")
_MIN_READ_BYTES = 16 * 1024
_MAX_READ_BYTES = 1024 * 1024
_MAX_BATCHES = 256
"""How many batches are taken at once: each costs the loop some microseconds."""


class FutureLog:
    """The copy of one log. Every method runs on the loop, and may raise StorageError where a disk fails.

    ApiError CORRUPT_MESSAGE: the source is damaged, and cannot be copied beyond.
    """

    def __init__(self, log_manager: LogManager, source: Log, directory: LogDirectory, now_ms: int) -> None:
        """Go on with the copy that is there, or begin one."""
        self.source = source
        self.directory = directory
        self._log_manager = log_manager
        self._read_bytes = _MIN_READ_BYTES
        found = log_manager.future_log(source.topic, source.partition)
        self.log = found if found is not None else self._create(now_ms)
        if found is not None:
            self.truncate_to_source(now_ms)

    def __repr__(self) -> str:
        return f"FutureLog({self.source.name} to {self.directory.path}, {self.offset_lag} offsets missing)"

    @property
    def offset_lag(self) -> int:
        """How many offsets it is behind."""
        return self.source.written_end_offset - self.log.log_end_offset

    @property
    def lag_bytes(self) -> int:
        """How many bytes it is behind."""
        return self.source.size_between(self.log.log_end_offset, self.source.written_end_offset)

    def _create(self, now_ms: int) -> Log:
        return self._log_manager.create_future_log(self.source, self.directory, self._first_offset(), now_ms)

    def _first_offset(self) -> int:
        """Where a copy begins: a batch is copied whole, also where the log begins within it."""
        start_offset = self.source.log_start_offset
        if start_offset >= self.source.written_end_offset:
            return start_offset
        head = self._read_source(start_offset, 1).read()[: _BASE_AND_LENGTH.size]
        return min(start_offset, int(_BASE_AND_LENGTH.unpack(head)[0]))

    def _recreate(self, now_ms: int) -> None:
        self._log_manager.delete(self.log, now_ms, sync=False)
        self.log = self._create(now_ms)

    def truncate_to_source(self, now_ms: int) -> None:
        """Where the source was cut, or after a restart: it may have lost what was copied from it.

        It has gone on with something else then. KIP-101: two copies of a log are the same up to where they
        agree on the leader epochs.
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

    # --- filling

    def next_region(self, now_ms: int) -> FileRegion | None:
        """What is to be read next of the source; None where it is copied as far as it is written."""
        self._raise_if_failed()
        source = self.source
        if self.log.log_end_offset < source.log_start_offset and (
            self.log.log_end_offset < self._first_offset()
        ):
            # The source has forgotten what comes next.
            self._recreate(now_ms)
        if self.offset_lag <= 0:
            self._follow_source()
            return None
        next_offset = max(self.log.log_end_offset, source.log_start_offset)
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
        """Append what is whole of the bytes that were read; how many bytes that is."""
        self._raise_if_failed()
        view = memoryview(data)
        position = batches = 0
        while batches < _MAX_BATCHES and position + _BASE_AND_LENGTH.size <= len(data):
            _, length = _BASE_AND_LENGTH.unpack_from(data, position)
            end = position + _BASE_AND_LENGTH.size + length
            if length <= 0 or end > len(data):
                break
            # An entry of the index is for one append, and tells the end and the place of one batch.
            self.log.append_stored(view[position:end], now_ms=now_ms)
            position = end
            batches += 1
        if not position:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.source.name} holds no whole batch there")
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

    # --- taking the place of the source

    def replace_source(self, now_ms: int) -> LogReplacement:
        """Copy the rest, and let the copy serve as the log from here on; on its way it is told to go.

        Both are in their places, and nothing is staged. A StorageError leaves the source in its place.
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
    # Of an open transaction the copy tells: it begins with the first of its batches that are still there.
    for producer_id in list(theirs.ongoing):
        first_offset = theirs.producers[producer_id].txn_first_offset = ours.ongoing.get(producer_id)
        if first_offset is None:
            del theirs.ongoing[producer_id]
        else:
            theirs.ongoing[producer_id] = first_offset
    ours.producers, ours.ongoing, ours.unreplicated = theirs.producers, theirs.ongoing, theirs.unreplicated
    ours.expiration_ms, ours.verifications = theirs.expiration_ms, theirs.verifications
