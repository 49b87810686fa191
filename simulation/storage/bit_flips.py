"""A bit that flips in a file while the broker is down.

The damage must be detected or harmless: no reader gets a wrong record, and no undamaged record is lost. A
reader detects damage by an error or by a wrong CRC. The damaged batch may be lost. So may the later batches
of its segment, because their positions follow from the lengths of earlier batches. After a crash, recovery
truncates the log before the damage, because recovery cannot distinguish the damage from a torn write.
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
    """Flip a bit in one of the log's files. Returns the file's name, or None if there is no suitable file."""
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
    """Read every expected offset, and return how many offsets cannot be read.

    `flipped` is the name of the damaged file, and `was_clean` whether the broker shut down cleanly. Raises
    Violation if a wrong record is read, or a record is lost that the damage does not affect.
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
            raise Violation(f"a bit of {flipped} was flipped, and the log went offline: {log.failure}")
        found = _read(log, offset)
        if found == record:
            continue
        # The CRC does not cover the base offset, so the batch may move to another offset, as in Kafka.
        is_shifted = is_log and damaged_base <= offset < damaged_end and found in expected.records.values()
        if found is not None and not is_shifted:
            raise Violation(
                f"a bit of {flipped} was flipped, and a read of offset {offset} returns {found}, not {record}"
            )
        lost += 1
        is_in_reach = is_log and offset >= damaged_base and (offset < damaged_end or not was_clean)
        if not is_in_reach:
            raise Violation(f"a bit of {flipped} was flipped, and offset {offset} is lost: {record}")
    return lost


def _read(log: Log, offset: int) -> RecordContent | None:
    """Return the record at an offset, or None if a reader would detect damage."""
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
        # The CRC does not cover the base offset, so the consumer may get a batch without the fetched offset.
        return None
    try:
        for record in records(data, 0, header):
            if record.offset == offset:
                return RecordContent(record.timestamp, record.key, record.value)
    except CorruptBatch:
        pass
    return None
