"""Reading of corrupt segments: an error by default; `onCorrupt` = `skip` reads all valid batches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.log import Log
from kwire.pipeline.segments.damage import Damage, read_damage
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.plan import Range, plan
from kwire.pipeline.segments.read import read
from kwire.pipeline.segments.scan import CorruptSegment
from kwire.wire.batch import BatchHeader, batches
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values

Row = tuple[int, bytes | None]


@pytest.fixture
def bench(tmp_path: Path) -> LogHarness:
    made = LogHarness(RealDisk(), str(tmp_path))
    made.config = made.config._replace(segment_bytes=2500, index_interval_bytes=400)
    return made


@pytest.fixture
def log(bench: LogHarness) -> Log:
    """About 300 records in several segments, with a large last one."""
    opened = bench.open()
    draw = random.Random(5)
    number = 0
    while number < 300 or opened.segments[-1].size_bytes < 1800:
        count = draw.choice([1, 2, 9])
        values = [b"%d" % (number + each) * draw.choice([1, 9]) for each in range(count)]
        bench.send(opened, batch(*values, timestamp=NOW_MS + number))
        number += count
    opened.flush()
    opened.close()  # which trims the indexes
    return opened


def ranges(bench: LogHarness, **given: str) -> list[Range]:
    told = {"path": str(Path(bench.directory).parent), "subscribe": "topic", **given}
    return plan(parse(told))


def rows(found: list[Range]) -> list[Row]:
    return [
        (offset, value)
        for range_ in found
        for table in read(range_)
        for offset, value in zip(
            table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True
        )
    ]


def path_of(log: Log, number: int) -> Path:
    return Path(log.directory) / f"{log.segment_base_offsets[number]:020d}.log"


def damage(path: Path, which: int, how: str) -> BatchHeader:
    """Corrupt one batch of a segment, and return its original header."""
    data = bytearray(path.read_bytes())
    position, header = list(batches(bytes(data)))[which]
    end = position + header.size_bytes
    match how:
        case "crc":
            data[end - 1] ^= 1
        case "offset":
            data[position : position + 8] = bytes(8)
        case "far offset":
            data[position] ^= 0x40
        case "length":
            data[position + 8] ^= 0x20
        case "last delta":
            data[position + 23] ^= 0x40
        case "magic":
            data[position + 16] = 9
        case "zeros":
            data[position:end] = bytes(end - position)
        case "cut":
            del data[position + 20 :]
    path.write_bytes(data)
    return header


KINDS = ["crc", "offset", "far offset", "length", "last delta", "magic", "zeros"]


@pytest.mark.parametrize("target", ["1", "100000000"])
@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("how", KINDS)
def test_valid_batches_are_read_and_skipped_offsets_recorded(
    bench: LogHarness, log: Log, tmp_path: Path, how: str, number: int, target: str
) -> None:
    everything = offsets_and_values(log)
    path = path_of(log, number)
    hurt = damage(path, 2, how)
    given = {"onCorrupt": "skip", "skippedRangesPath": str(tmp_path / "told"), "targetPartitionBytes": target}
    found = rows(ranges(bench, **given))
    told = read_damage(tmp_path / "told")
    gone = {offset for one in told for offset in range(one.start_offset, one.end_offset)}
    assert found == [row for row in everything if row[0] not in gone]
    assert {*range(hurt.base_offset, hurt.last_offset + 1)} <= gone
    assert len(gone) < 60
    for one in told:
        assert (one.topic, one.partition, one.file) == ("topic", 0, str(path))
        assert str(path) in one.reason


@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("how", KINDS)
def test_by_default_corruption_is_an_error_that_names_the_file(
    bench: LogHarness, log: Log, how: str, number: int
) -> None:
    hurt = damage(path_of(log, number), 2, how)
    pattern = rf"{path_of(log, number)} is corrupt at byte \d+, at or after offset \d+"
    with pytest.raises(CorruptSegment, match=pattern) as raised:
        rows(ranges(bench))
    assert raised.value.position > 0
    if how == "crc":
        assert raised.value.offset == hurt.base_offset


def test_only_the_batch_with_corrupt_content_is_skipped(bench: LogHarness, log: Log, tmp_path: Path) -> None:
    hurt = damage(path_of(log, 1), 3, "crc")
    rows(ranges(bench, onCorrupt="skip", skippedRangesPath=str(tmp_path / "told")))
    [told] = read_damage(tmp_path / "told")
    assert (told.start_offset, told.end_offset) == (hurt.base_offset, hurt.last_offset + 1)
    assert str(told).startswith(f"Skipped offsets {hurt.base_offset} to {hurt.last_offset} of topic-0: ")


def test_a_truncated_segment_continues_with_the_next_one(bench: LogHarness, log: Log, tmp_path: Path) -> None:
    everything = offsets_and_values(log)
    hurt = damage(path_of(log, 1), 1, "cut")
    found = rows(ranges(bench, onCorrupt="skip", skippedRangesPath=str(tmp_path / "told")))
    after = log.segment_base_offsets[2]
    assert found == [row for row in everything if not hurt.base_offset <= row[0] < after]
    told = read_damage(tmp_path / "told")
    assert told[0].start_offset == hurt.base_offset
    assert told[-1].end_offset == after


def test_repeated_damage_is_recorded_once(bench: LogHarness, log: Log, tmp_path: Path) -> None:
    damage(path_of(log, 0), 0, "crc")
    for _ in range(2):
        rows(ranges(bench, onCorrupt="skip", skippedRangesPath=str(tmp_path / "told")))
    assert len(read_damage(tmp_path / "told")) == 1
    assert read_damage(tmp_path / "nothing") == []
    assert isinstance(read_damage(tmp_path / "told")[0], Damage)
    assert len(rows(ranges(bench, onCorrupt="skip"))) > 200
