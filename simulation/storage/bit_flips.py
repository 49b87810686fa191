"""Bits that turn over at rest: what is damaged is noticed, never served as good, and nothing else is lost.

Noticed means that a reader is told so, or gets a batch with a CRC that does not match. Lost may be the batch
that was hit, and what lies in the same segment behind it, whose place only the lengths before it tell. Where
recovery reads the segment, after a crash, the log ends before the damage: nobody can tell it from a write
that was torn.
"""

from __future__ import annotations

import random

from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import HEADER_BYTES, CorruptBatch, crc_is_valid, read_header, records
from kwire.wire.errors import ApiError
from simulation.storage.expected_log import ExpectedLog, RecordContent

SUFFIXES = (".log", ".log", ".log", ".index", ".timeindex", ".snapshot")


def flip_random_bit(disk: MemoryDisk, directory: str, rng: random.Random) -> str | None:
    """Turn a bit over in one of a log's files, where there is one; the file's name."""
    suffix = rng.choice(SUFFIXES)
    files = {
        path: content for path, content in disk.tree(directory).items() if path.endswith(suffix) and content
    }
    if not files:
        return None
    name = rng.choice(sorted(files))
    byte, bit = divmod(rng.randrange(8 * len(files[name])), 8)
    disk.corrupt(f"{directory}/{name}", byte, 1 << bit)
    return name


def check_after_bit_flip(log: Log, expected: ExpectedLog, flipped: str, *, was_clean: bool) -> int:
    """Read every offset that was promised; how many cannot be read. Violation.

    `flipped` is the file's name.
    """
    lost = 0
    is_log = flipped.endswith(".log")
    damaged_base = int(flipped.partition(".")[0]) if is_log else -1
    bases = log.segment_base_offsets
    damaged_end = next((base for base in bases if base > damaged_base), expected.max_end)
    for offset, record in expected.records.items():
        if offset < log.log_start_offset:
            continue
        if log.failure is not None:
            raise Violation(f"{flipped} was damaged, and the log went offline: {log.failure}")
        found = _read(log, offset)
        if found == record:
            continue
        # The CRC leaves out the offset: a batch may stand at another one, as in Kafka.
        is_shifted = is_log and damaged_base <= offset < damaged_end and found in expected.records.values()
        if found is not None and not is_shifted:
            raise Violation(f"{flipped} was damaged, and offset {offset} is served as {found}, not {record}")
        lost += 1
        is_in_reach = is_log and offset >= damaged_base and (offset < damaged_end or not was_clean)
        if not is_in_reach:
            raise Violation(f"{flipped} was damaged, and offset {offset} is lost, which held {record}")
    return lost


def _read(log: Log, offset: int) -> RecordContent | None:
    """The record at an offset; None where a reader notices that it is not to be had."""
    try:
        data = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset).read()
    except ApiError:
        return None
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    if header.size_bytes != len(data) or not crc_is_valid(data, 0, header):
        return None
    if not header.base_offset <= offset <= header.last_offset:
        # The CRC does not cover the offset: a consumer is told a batch that does not hold what it asked for.
        return None
    try:
        for record in records(data, 0, header):
            if record.offset == offset:
                return RecordContent(record.timestamp, record.key, record.value)
    except CorruptBatch:
        pass
    return None
