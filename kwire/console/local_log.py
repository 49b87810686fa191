"""Search for a key in the segments of this broker, without requests to the broker.

A key search reads many batches and returns few records. With fetches, the search would delay producers in the
broker's event loop. This module reads files only below a high watermark that this broker returned as the
leader. Below that offset, only compaction and retention change the log. The console fetches the batches that
may contain the key, and the batches that cannot be read here, so no error of this module is reported.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import error as StructError
from typing import Final

from kwire.broker.storage.checkpoints import read_topic_id
from kwire.broker.storage.disk import RealDisk, RealFile, StorageError
from kwire.broker.storage.log.index import OFFSET_ENTRY
from kwire.broker.storage.log.scan import InvalidBatch, LegacyFormat, WholeBatch, scan_batches, scan_headers
from kwire.broker.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX
from kwire.cli.files.segment_files import open_read_only
from kwire.cli.shared.command_error import CommandError
from kwire.console.fetching import MAX_BATCH_BYTES, MAX_HEADERS, RECORDS_AT_ONCE
from kwire.wire.batch import CorruptBatch, crc_is_valid, decompress_records, read_header, records
from kwire.wire.primitives import Uuid

SEGMENT: Final = re.compile(r"(\d{20})\.log")
_PAST_ALL_OFFSETS: Final = 1 << 31
"""Offset for index entries that are preallocated and empty."""


def local_directory(log_dirs: Sequence[str], topic: str, partition: int, topic_id: Uuid) -> str | None:
    """Return this broker's directory of a partition.

    Returns None if there is not exactly one in the log directories, or if it has another topic id. A failed
    log directory can have an old copy of a partition that the broker has created again in another one.
    """
    paths = (os.path.join(log_dir, f"{topic}-{partition}") for log_dir in log_dirs)
    found = list(filter(os.path.isdir, paths))
    try:
        return found[0] if len(found) == 1 and read_topic_id(RealDisk(), found[0]) == topic_id else None
    except StorageError:
        return None


class LocalLog:
    """The segments of a partition during one search for a key."""

    def __init__(self, directory: str, key: bytes, is_out_of_time: Callable[[], bool]) -> None:
        self._directory = directory
        self._key = key
        self._is_time_over = is_out_of_time

    def skip(self, offset: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Skip batches from `offset` on that do not contain the key.

        Returns the offset to continue at, and the number of bytes read. The search does not pass `end`, the
        high watermark.
        """
        read_bytes = 0
        try:
            for whole in self._batches(offset):
                is_over = read_bytes >= max_bytes or self._is_time_over()
                if is_over or whole.location.last_offset >= end or self._may_contain_key(whole):
                    break
                read_bytes += whole.location.size_bytes
                offset = whole.location.last_offset + 1
        except (OSError, CommandError, StorageError, StructError, InvalidBatch, LegacyFormat, CorruptBatch):
            pass  # the console then fetches the batch, which reports the error
        return offset, read_bytes

    def _batches(self, offset: int) -> Iterator[WholeBatch]:
        """Yield the batches from an offset on, until the time is up.

        Raises OSError, CommandError, and the errors of damaged files.
        """
        names = filter(None, map(SEGMENT.fullmatch, os.listdir(self._directory)))
        bases = sorted(int(found[1]) for found in names)
        for base in bases[max(0, bisect_right(bases, offset) - 1) :]:
            if base > offset:
                return  # the cleaner may be replacing segments, which leaves a gap for a moment
            path = os.path.join(self._directory, f"{base:020d}")
            file = open_read_only(path + LOG_SUFFIX)
            end = file.size()
            begin = _position(open_read_only(path + INDEX_SUFFIX), offset - base)
            if begin and not _is_valid_entry(file, begin, end, base, offset):
                begin = 0
            for place in scan_headers(file, begin, end):
                if self._is_time_over():
                    return
                if place.last_offset >= offset:
                    begin = place.position
                    break
            else:
                continue
            for whole in scan_batches(file, begin, end):
                yield whole
                offset = whole.location.last_offset + 1

    def _may_contain_key(self, whole: WholeBatch) -> bool:
        """Return whether a record of the batch may have the key; True if unknown. Raises CorruptBatch."""
        header = read_header(whole.buffer, whole.at)
        if not crc_is_valid(whole.buffer, whole.at, header):
            return True
        if self._key not in bytes(decompress_records(whole.buffer, whole.at, header, MAX_BATCH_BYTES)):
            return False
        found = records(whole.buffer, whole.at, header, max_bytes=MAX_BATCH_BYTES, max_headers=MAX_HEADERS)
        return any(
            record.key == self._key or (number % RECORDS_AT_ONCE == 0 and self._is_time_over())
            for number, record in enumerate(found)
        )


def _is_valid_entry(file: RealFile, begin: int, end: int, base: int, offset: int) -> bool:
    """Return whether a valid batch with a base offset from `base` to `offset` starts at byte `begin`.

    No such batch starts there if the index entry with that position belongs to a segment that was replaced,
    or if the log was truncated. Raises StorageError, LegacyFormat.
    """
    try:
        whole = next(scan_batches(file, begin, end), None)
    except InvalidBatch:
        return False
    return (
        whole is not None
        and base <= whole.location.base_offset <= offset
        and crc_is_valid(whole.buffer, whole.at, read_header(whole.buffer, whole.at))
    )


def _position(index: RealFile, relative: int) -> int:
    """Return the position of the last index entry up to a relative offset; 0 if there is no such entry.

    Raises StorageError, StructError.
    """

    def entry(number: int) -> tuple[int, int]:
        offset, position = OFFSET_ENTRY.unpack(index.read_at(number * OFFSET_ENTRY.size, OFFSET_ENTRY.size))
        return offset, position

    def offset_of(number: int) -> int:
        found, position = entry(number)
        return found if found or position else _PAST_ALL_OFFSETS

    numbers = range(index.size() // OFFSET_ENTRY.size)
    number = bisect_right(numbers, relative, key=offset_of) - 1
    return entry(number)[1] if number >= 0 else 0
