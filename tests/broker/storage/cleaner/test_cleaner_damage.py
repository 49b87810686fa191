"""A log with a flipped bit is rejected before any of it is rewritten."""

from __future__ import annotations

import pytest

from kwire.broker.storage.cleaner.job import Cleaned, Done, Job
from kwire.broker.storage.cleaner.log_rewriter import LogRewriter
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import ABORT, COMMIT, HEADER_BYTES, CorruptBatch, build, read_header

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/t-0"
LEADER_EPOCH = range(12, 16)
"""Header bytes that no checksum covers and no cleaning uses."""

LogSegment = tuple[int, list[bytearray]]


def data(base_offset: int, *keys: bytes, producer_id: int = -1) -> bytearray:
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (NOW_MS, key, b"%d" % base_offset, []) for key in keys
    ]
    if producer_id < 0:
        return build(records, base_offset=base_offset)
    return build(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(base_offset: int, kind: int, producer_id: int) -> bytearray:
    return build(
        [(NOW_MS, b"\0\0\0" + bytes([kind]), bytes(6), [])],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


PLAIN: list[LogSegment] = [
    (0, [data(0, b"a", b"b"), data(2, b"c", b"d")]),
    (4, [data(4, b"e"), data(5, b"a", b"f", b"g")]),
    (8, []),
]
# One bit lies between the two producers: what is committed_records could be taken for aborted.
WITH_TRANSACTIONS: list[LogSegment] = [
    (0, [data(0, b"k", b"x")]),
    (2, [data(2, b"y", producer_id=100), data(3, b"z"), data(4, b"u", producer_id=101)]),
    (5, [marker(5, ABORT, 100), data(6, b"k", producer_id=100), marker(7, ABORT, 100)]),
    (8, [marker(8, COMMIT, 101), data(9, b"x")]),
    (10, []),
]
ABORTED = {5: [AbortedTxn(100, 2, 5, 4), AbortedTxn(100, 6, 7, 4)]}


def run_job(segments: list[LogSegment], first_dirty_offset: int = 0) -> tuple[list[Cleaned | Done], str]:
    """Return the reports of cleaning all segments except the last, and the error."""
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for base_offset, batches in segments:
        disk.write(f"{DIRECTORY}/{base_offset:020d}.log", b"".join(batches), sync=True)
        aborted = [entry.encode() for entry in ABORTED.get(base_offset, ())]
        if aborted and segments[-1][0] == WITH_TRANSACTIONS[-1][0]:
            disk.write(f"{DIRECTORY}/{base_offset:020d}.txnindex", b"".join(aborted), sync=True)
    job = Job(
        directory=DIRECTORY,
        segments=[(base_offset, sum(map(len, batches))) for base_offset, batches in segments],
        log_start_offset=0,
        first_dirty_offset=first_dirty_offset,
        upper_bound_offset=segments[-1][0],
        now_ms=NOW_MS,
        delete_retention_ms=86_400_000,
        segment_bytes=100,
        segment_index_bytes=1200,
        index_interval_bytes=100,
        map_bytes=1 << 20,
        read_bytes=2000,
        bytes_per_second=1e300,
    )
    found: list[Cleaned | Done] = []
    try:
        found.extend(LogRewriter(job, disk).run())
    except CorruptBatch as error:
        return found, str(error)
    return found, ""


@pytest.mark.parametrize("segments", [PLAIN, WITH_TRANSACTIONS], ids=["plain", "transactions"])
def test_flipped_bit_leaves_the_log_unchanged(segments: list[LogSegment]) -> None:
    found, reason = run_job(segments)
    assert not reason
    assert isinstance(found[-1], Done)
    assert len(found) > 1  # there are records to lose
    for _, batches in segments:
        for batch in batches:
            for place in set(range(HEADER_BYTES)) - set(LEADER_EPOCH):
                for bit in range(8):
                    batch[place] ^= 1 << bit
                    found, reason = run_job(segments)
                    batch[place] ^= 1 << bit
                    assert reason, f"byte {place}, bit {bit} of the batch at {read_header(batch).base_offset}"
                    assert not found


@pytest.mark.parametrize("first_dirty_offset", [4, 6])
def test_flipped_bit_in_the_clean_section_leaves_the_log_unchanged(first_dirty_offset: int) -> None:
    """The cleaner reads the clean section only when it copies the section, here before its first report."""
    batch = PLAIN[0][1][1]
    for place in set(range(HEADER_BYTES)) - set(LEADER_EPOCH):
        for bit in range(8):
            batch[place] ^= 1 << bit
            found, reason = run_job(PLAIN, first_dirty_offset)
            batch[place] ^= 1 << bit
            assert reason
            assert not found
