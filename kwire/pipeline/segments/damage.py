"""Getting past damage: what of a segment can still be read, and which offsets cannot.

With the option `onCorrupt` at `skip`, a batch whose CRC is wrong or whose header makes no sense is left out,
with what follows up to the next batch that checks out: the one behind it, or one that the offset index points
at. Which offsets that are is written down, so that nobody takes what is missing for what never was.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kwire.wire.batch import HEADER_BYTES, BatchHeader, crc_is_valid, read_header

if TYPE_CHECKING:
    from kwire.pipeline.segments.files import Segment
    from kwire.pipeline.segments.scan import Chunk, SegmentFile

logger = logging.getLogger("kwire.pipeline")


class Damage(NamedTuple):
    """Offsets of a partition that cannot be read any more, as far as they were ever there."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """Behind the last."""
    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: offsets from {self.start_offset} to {self.end_offset - 1} are "
            f"left out, {self.reason}"
        )


class Skipping(NamedTuple):
    """That damage is to be got past, and where that is written down: in files below a directory, if any."""

    directory: str = ""

    def record(self, damage: Damage) -> None:
        """Write it down. Whoever finds the same again writes the same file."""
        logger.warning("%s", damage)
        if not self.directory:
            return
        place = Path(self.directory)
        place.mkdir(parents=True, exist_ok=True)
        name = f"{damage.topic}-{damage.partition}-{damage.start_offset:020d}-{damage.end_offset:020d}.json"
        temporary = place / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(damage._asdict()), encoding="utf-8")
        temporary.replace(place / name)


def recorded(directory: Path) -> list[Damage]:
    """What was written down there."""
    return sorted(Damage(**json.loads(path.read_text(encoding="utf-8"))) for path in directory.glob("*.json"))


class Lost(NamedTuple):
    """Offsets of a segment that cannot be read."""

    start_offset: int
    end_offset: int | None
    """None where nothing sound follows in the segment."""
    reason: str


def sound_chunks(
    segment: Segment, file: SegmentFile, position: int, end: int, next_offset: int
) -> Iterator[Chunk | Lost]:
    """The batches from a position up to another that check out, and what lies between them that does not.

    `next_offset` is the least that the first batch may begin with. SegmentsError where the file cannot be
    read at all.
    """
    from kwire.pipeline.segments.scan import CorruptSegment  # which needs this module

    while position < end:
        reason = ""
        try:
            for chunk in file.chunks(position, end, is_active=False, next_offset=next_offset):
                sound = [(at, header) for at, header in _until_wrong(chunk)]
                if sound:
                    next_offset = sound[-1][1].last_offset + 1
                    yield chunk._replace(batches=sound)
                if len(sound) < len(chunk.batches):
                    at, header = chunk.batches[len(sound)]
                    position = chunk.position + at
                    reason = f"since the CRC of the batch at byte {position} of {file.path} is wrong"
                    break
            else:
                return
        except CorruptSegment as error:
            position, reason = error.position, f"since {error}"
        found = next_sound(segment, file, position, end, next_offset)
        if found is None:
            yield Lost(next_offset, None, reason)
            return
        position, header = found
        yield Lost(next_offset, header.base_offset, reason)
        next_offset = header.base_offset


def _until_wrong(chunk: Chunk) -> Iterator[tuple[int, BatchHeader]]:
    for at, header in chunk.batches:
        if not crc_is_valid(chunk.data, at, header):
            return
        yield at, header


def next_sound(
    segment: Segment, file: SegmentFile, wrong: int, end: int, next_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first batch behind a wrong one that checks out, of those that can be found."""
    positions = segment.offset_index()[:, 1]
    candidates = positions[positions.searchsorted(wrong, side="right") :].tolist()
    head = file.read_at(wrong, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        # Its length may still be right.
        candidates = sorted({wrong + max(1, read_header(head).size_bytes), *candidates})
    for position in candidates:
        header = _sound(file, position, end, next_offset)
        if header is not None:
            return position, header
    return None


def _sound(file: SegmentFile, position: int, end: int, next_offset: int) -> BatchHeader | None:
    from kwire.pipeline.segments.scan import SEGMENT_OFFSETS, fault

    if position + HEADER_BYTES > end:
        return None
    header = read_header(file.read_at(position, HEADER_BYTES))
    if fault(header, next_offset, file.base_offset + SEGMENT_OFFSETS) or position + header.size_bytes > end:
        return None
    data = file.read_at(position, header.size_bytes)
    return header if len(data) == header.size_bytes and crc_is_valid(data, 0, header) else None
