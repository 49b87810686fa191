"""What a search passes over is read from the segments of the broker beside it, which is not asked for it.

A search reads much and shows little: asked for piece by piece, what it reads takes turns of the loop that
producers wait for. Only what lies below a high watermark that this broker has told as the leader is read so:
that stays as it is, but for what compaction and retention take away. Where a record may be wanted, or a file
is not as it should be, the broker is asked as ever, so that nothing here is an error.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

from kwire.broker.storage.disk import RealFile, StorageError
from kwire.broker.storage.log.scan import Invalid, LegacyFormat, Whole, whole_batches
from kwire.broker.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX
from kwire.console.reading import MAX_BATCH_BYTES
from kwire.desk.failure import Failure
from kwire.desk.segment_files import read_only
from kwire.wire.batch import CorruptBatch, payload_of, read_header, records

SEGMENT: Final = re.compile(r"(\d{20})\.log")
_ENTRY: Final = Struct(">ii")
_BEHIND_ALL: Final = 1 << 31
"""As the offset of an entry that is only room for one."""


def segment_bases(directory: str) -> list[int]:
    """The first offset of each segment, in order. OSError."""
    return sorted(int(found[1]) for name in os.listdir(directory) if (found := SEGMENT.fullmatch(name)))


def own_directory(log_dirs: Sequence[str], topic: str, partition: int) -> str | None:
    """Where this broker has a partition; None where it has none."""
    paths = (os.path.join(log_dir, f"{topic}-{partition}") for log_dir in log_dirs)
    return next(filter(os.path.isdir, paths), None)


def passed_over(
    directory: str, offset: int, end: int, key: bytes, most_bytes: int, is_time_over: Callable[[], bool]
) -> tuple[int, int]:
    """From which offset on to ask, and how many bytes were read up to there.

    Nothing between the two offsets has the key. `end` is a high watermark, and not passed.
    """
    read_bytes = 0
    try:
        for whole in _batches(directory, offset):
            is_over = read_bytes >= most_bytes or is_time_over()
            if is_over or whole.place.last_offset >= end or _has(whole, key):
                break
            read_bytes += whole.place.size_bytes
            offset = max(offset, whole.place.last_offset + 1)
    except (OSError, Failure, StorageError, StructError, Invalid, LegacyFormat, CorruptBatch):
        pass  # who is asked for it tells what there is
    return offset, read_bytes


def _batches(directory: str, offset: int) -> Iterator[Whole]:
    """Those from an offset on. OSError, Failure, StorageError, StructError, Invalid, LegacyFormat."""
    bases = segment_bases(directory)
    for base in bases[max(0, bisect_right(bases, offset) - 1) :]:
        if base > offset:
            return  # perhaps a segment is put in the place of others just now, and for a moment there is none
        path = os.path.join(directory, f"{base:020d}")
        begin = _position(read_only(path + INDEX_SUFFIX), offset - base)
        file = read_only(path + LOG_SUFFIX)
        for whole in whole_batches(file, begin, file.size()):
            place = whole.place
            if place.position == begin > 0 and place.base_offset > offset:
                return  # the index was that of another file, whose place this one has taken
            if place.last_offset >= offset:
                yield whole
                offset = place.last_offset + 1


def _position(index: RealFile, relative: int) -> int:
    """Where to begin in a segment to meet an offset of it. StorageError."""

    def offset_of(number: int) -> int:
        found, position = _ENTRY.unpack(index.read_at(number * _ENTRY.size, _ENTRY.size))
        return int(found) if found or position else _BEHIND_ALL

    numbers = range(index.size() // _ENTRY.size)
    number = bisect_right(numbers, relative, key=offset_of) - 1
    return int(_ENTRY.unpack(index.read_at(number * _ENTRY.size, _ENTRY.size))[1]) if number >= 0 else 0


def _has(whole: Whole, key: bytes) -> bool:
    """Whether the batch has a record of this key. CorruptBatch."""
    header = read_header(whole.buffer, whole.at)
    if key not in bytes(payload_of(whole.buffer, whole.at, header, MAX_BATCH_BYTES)):
        return False
    return any(
        record.key == key for record in records(whole.buffer, whole.at, header, max_bytes=MAX_BATCH_BYTES)
    )
