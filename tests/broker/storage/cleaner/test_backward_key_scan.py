"""The backward key scan keeps the same records as an offset map, byte for byte."""

from __future__ import annotations

import random
import weakref
from itertools import pairwise

import pytest

from kwire.broker.storage.cleaner import log_rewriter
from kwire.broker.storage.cleaner.backward_key_scan import BackwardKeyScan
from kwire.broker.storage.cleaner.batch_reader import batches_in, plain_ranges
from kwire.broker.storage.cleaner.job import Done, Job
from kwire.broker.storage.cleaner.log_rewriter import LogRewriter
from kwire.broker.storage.disk import DiskFile
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import CorruptBatch, build, read_header
from kwire.wire.compression import Codec

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
DIRECTORY = "/data/t-0"
ROOM = 1 << 24


def key(draw: random.Random, keys: int) -> bytes | None:
    if draw.random() < 0.03:
        return None
    name = b"%d" % draw.randrange(keys)
    return name if draw.random() < 0.9 else name * 40


def random_batch(draw: random.Random, base_offset: int, keys: int) -> bytes:
    producer = {"producer_id": draw.randrange(3), "producer_epoch": 0, "base_sequence": base_offset}
    count = draw.choice([1, 1, 2, 7, 60])
    with_tombstones = draw.random() < 0.3
    alike = draw.random() < 0.5
    return bytes(
        build(
            [
                (
                    NOW_MS - draw.randrange(1000),
                    key(draw, keys),
                    None
                    if with_tombstones and draw.random() < 0.2
                    else bytes(20 if alike else draw.randrange(90)),
                    [],
                )
                for _ in range(count)
            ],
            base_offset=base_offset,
            codec=draw.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]),
            **(producer if draw.random() < 0.3 else {}),  # type: ignore[arg-type]
        )
    )


def random_segments(
    draw: random.Random, base_offset: int, batches: int, keys: int
) -> list[tuple[int, bytes]]:
    """Return segments of a few batches each: base offset and content."""
    segments: list[tuple[int, bytes]] = []
    for _ in range(batches):
        made = random_batch(draw, base_offset, keys)
        if not segments or draw.random() < 0.2:
            segments.append((base_offset, b""))
        segments[-1] = segments[-1][0], segments[-1][1] + made
        base_offset = int.from_bytes(made[:8], "big") + int.from_bytes(made[23:27], "big") + 1
        base_offset += draw.choice([0, 0, 0, 5])
    return segments


def job_for(segments: list[tuple[int, int]]) -> Job:
    """Build a job that cleans all segments except the last, given by base offset and size."""
    return Job(
        directory=DIRECTORY,
        segments=segments,
        log_start_offset=0,
        first_dirty_offset=0,
        upper_bound_offset=segments[-1][0],
        now_ms=NOW_MS,
        delete_retention_ms=DAY_MS,
        segment_bytes=4000,
        segment_index_bytes=1200,
        index_interval_bytes=100,
        map_bytes=ROOM,
        read_bytes=2000,
        bytes_per_second=1e300,
    )


def clean(
    segments: list[tuple[int, bytes]], *, map_bytes: int = ROOM, first_dirty: int = 0, now_ms: int = NOW_MS
) -> tuple[dict[str, bytes], Done]:
    """Return the files after cleaning all segments except the last."""
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for base_offset, content in segments:
        disk.write(f"{DIRECTORY}/{base_offset:020d}.log", content, sync=True)
    sizes = [(base_offset, len(content)) for base_offset, content in segments]
    job = job_for(sizes)._replace(
        first_dirty_offset=first_dirty,
        now_ms=now_ms,
        map_bytes=map_bytes,
        last_records=[(1, segments[-1][0] - 1, 0)],
    )
    *_, done = LogRewriter(job, disk).run()
    assert isinstance(done, Done)
    return disk.tree(DIRECTORY), done._replace(scan_backward=False)


def use_offset_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogRewriter, "_scan_backward", lambda self: None)


def swap_key_bytes(
    files: dict[str, bytes], segments: list[tuple[int, bytes]], done: Done
) -> list[tuple[int, bytes]]:
    """Return the log's segments after a cleaning: those in `files`, then those that were not cleaned."""
    suffix = ".log.clean"
    made = {int(name[-32:-12]): content for name, content in files.items() if name.endswith(suffix)}
    kept = [segment for segment in segments if segment[0] >= done.end_offset]
    return sorted(made.items()) + kept


@pytest.mark.parametrize("seed", range(60))
def test_backward_scan_and_offset_map_keep_the_same_records(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    keys = draw.choice([5, 40, 300])
    segments = random_segments(draw, 0, draw.randrange(2, 60), keys)
    segments.append((segments[-1][0] + 10_000, b""))
    with monkeypatch.context() as patched:
        patched.setattr(LogRewriter, "_build_offset_map", None)
        patched.setattr(log_rewriter, "MIN_RECORDS_PER_BATCH", 0)
        found, done = clean(segments)
    # Clean again, with the first result as clean or as dirty section, and with expired tombstones.
    after = swap_key_bytes(found, segments[:-1], done)
    assert all(first < second for (first, _), (second, _) in pairwise(after))
    more = random_segments(draw, segments[-1][0], 30, keys)
    whole = [*after, *more, (more[-1][0] + 10_000, b"")]
    first_dirty = draw.choice([0, segments[-1][0]])
    later = NOW_MS + draw.choice([1, 2]) * DAY_MS
    again, done_again = clean(whole, first_dirty=first_dirty, now_ms=later)
    with monkeypatch.context() as patched:
        use_offset_map(patched)
        assert clean(segments) == (found, done)
        assert clean(whole, first_dirty=first_dirty, now_ms=later) == (again, done_again)


def test_full_key_set_cleans_only_the_oldest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = random_segments(random.Random(1), 0, 80, 300)
    segments.append((segments[-1][0] + 10_000, b""))
    for map_bytes in (160 * 20, 160 * 100, 160 * 250):
        found, done = clean(segments, map_bytes=map_bytes)
        with monkeypatch.context() as patched:
            use_offset_map(patched)
            assert clean(segments, map_bytes=map_bytes) == (found, done)
        assert done.end_offset < segments[-1][0]


def test_number_of_remembered_keys_is_limited() -> None:
    newest = BackwardKeyScan(10_000)
    for offset in range(1000, 0, -1):
        batch = bytes(build([(NOW_MS, b"%d" % offset, b"", [])], base_offset=offset))
        newest.add_previous_batch(batch, 0, read_header(batch))
        if newest.is_too_large:
            break
    assert len(newest.keys) < 40


@pytest.mark.parametrize("damaged", ["first", "last"])
def test_damaged_batch_is_reported_by_the_forward_scan(damaged: str) -> None:
    segments = random_segments(random.Random(2), 0, 40, 20)
    segments.append((segments[-1][0] + 10_000, b""))
    place = 0 if damaged == "first" else len(segments) - 2
    base_offset, content = segments[place]
    segments[place] = base_offset, content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(CorruptBatch):
        clean(segments)


def batch(base_offset: int, *keys: bytes) -> bytes:
    return bytes(build([(NOW_MS, name, b"value", []) for name in keys], base_offset=base_offset))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("wrong", [0, 2, 1020, 1030, 1 << 40])
def test_flipped_offset_bit_loses_no_record(place: int, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CRC does not cover base offsets."""
    made = [batch(1000 + 10 * number, *(b"%d-%d" % (number, one) for one in range(5))) for number in range(4)]
    made[place] = wrong.to_bytes(8, "big") + made[place][8:]
    segments = [(1000, b"".join(made)), (1100, b"")]

    def outcome() -> object:
        try:
            return clean(segments, first_dirty=1000)
        except CorruptBatch as error:
            return str(error)

    found = outcome()
    with monkeypatch.context() as patched:
        use_offset_map(patched)
        assert outcome() == found


class _File:
    """A file that records when it is released."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_one_file_is_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, opened = MemoryDisk(), weakref.WeakSet[_File]()
    disk.make_directory(DIRECTORY)
    for number in range(50):
        disk.write(f"{DIRECTORY}/{number * 5:020d}.log", batch(number * 5, *[b"k"] * 5), sync=True)
    job = job_for(
        [(number * 5, disk.size(f"{DIRECTORY}/{number * 5:020d}.log")) for number in range(50)],
    )
    most = 0

    def open_file(path: str, *, create: bool = False) -> _File:
        nonlocal most
        file = _File(MemoryDisk.open(disk, path, create=create))
        opened.add(file)
        most = max(most, len(opened))
        return file

    monkeypatch.setattr(disk, "open", open_file)
    *_, done = LogRewriter(job, disk).run()
    assert isinstance(done, Done)
    assert done.scan_backward
    assert most < 10


def test_truncated_file_is_an_error() -> None:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.write(path, batch(0, b"a", b"b")[:-3], sync=True)
    file = disk.open(path)
    with pytest.raises(CorruptBatch):
        list(batches_in(file, file.size() + 3, 1 << 16))
    with pytest.raises(CorruptBatch):
        plain_ranges(file, 0, file.size() + 100, 1 << 16, 0)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("bit", range(6))
@pytest.mark.parametrize("first_dirty", [0, 15])
def test_offset_outside_its_segment_is_rejected(
    place: int, bit: int, first_dirty: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment has one batch and its own group, so that no other batch hides the offset."""
    made = [batch(5 * number, *[b"%d" % one for one in range(number, number + 5)]) for number in range(6)]
    wrong = 5 * place ^ 1 << bit
    made[place] = wrong.to_bytes(8, "big") + made[place][8:]
    segments = [(5 * number, content) for number, content in enumerate(made)] + [(30, b"")]
    monkeypatch.setattr(log_rewriter, "MIN_RECORDS_PER_BATCH", 0)

    def outcome() -> str:
        try:
            clean(segments, first_dirty=first_dirty)
        except CorruptBatch as error:
            return str(error)
        return "clean"

    found = outcome()
    assert found.startswith("a batch with offsets")
    use_offset_map(monkeypatch)
    assert outcome() == found
