"""Compaction of an archive: records are unchanged, the commit is atomic, and crashes do no harm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.reading import RecordFilter, Row, by_partition, rows
from kwire.pipeline.archive.staging import check_file, clear_staging_path, describe_file, move, staged_files
from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.jobs import compact as module
from kwire.pipeline.jobs.compact import (
    CompactConfig,
    Compacted,
    CompactionRunning,
    compact,
    compaction_lock,
    plan,
    size_bytes,
    sweep,
)

NOW_MS = 1_700_000_000_000
YEAR_3000_MS = 32_503_680_000_000
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
STEPS = 3


def put(
    place: Path, day: int, partition: int, offsets: range, schema: pa.Schema = SCHEMA, *, int96: bool = True
) -> None:
    directory = place / f"topic=t/date=2023-11-{day}/partition={partition}"
    directory.mkdir(parents=True, exist_ok=True)
    content = [
        {
            "offset": offset,
            "timestamp": (YEAR_3000_MS if offset % 9 == 0 else NOW_MS + offset) * 1000,
            "timestampType": 0,
            "key": b"k%d" % offset if offset % 5 else None,
            "value": b"v" * (offset % 40),
            "headers": [{"key": "h", "value": None}] if offset % 3 else None,
        }
        for offset in offsets
    ]
    table = pa.Table.from_pylist(content, schema)
    path = directory / f"{offsets.start}.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=int96, compression="zstd")


def step(archive: Archive, number: int, write: Callable[[Path], None], *, end: int) -> None:
    place = clear_staging_path(archive.directory, f"s{number}")
    write(place)
    files = [describe_file(str(place), path) for path in staged_files(place)]
    moved = move(archive.directory, place, f"s{number}", files)
    archive.add(Commit(-1, "job", number, {"t": {0: (0, end)}}, moved))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of three steps, each with two dates and two partitions. Writing it is slow."""
    archive = Archive(tmp_path_factory.mktemp("made") / "archive")
    for number in range(STEPS):
        at = 100 * number

        def write(place: Path, at: int = at) -> None:
            put(place, 14, 0, range(at, at + 50, 2))
            put(place, 15, 0, range(at + 50, at + 90))
            put(place, 14, 1, range(at, at + 100))

        step(archive, number, write, end=at + 100)
    return archive.directory


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Archive:
    shutil.copytree(made, tmp_path / "archive")
    return Archive(tmp_path / "archive")


def config(archive: Archive, **changes: Any) -> CompactConfig:
    return CompactConfig(archive.directory, 1 << 20, 4 << 20, "zstd")._replace(**changes)


def content(archive: Archive) -> dict[tuple[str, int], list[Row]]:
    """Read all records of an archive, and check its files against the manifests."""
    files = archive.files()
    assert [wrong for file in files if (wrong := check_file(archive.directory, file))] == []
    return {
        key: list(rows(archive.directory, inside, RecordFilter()))
        for key, inside in by_partition(files).items()
    }


def on_disk(archive: Archive) -> list[str]:
    return sorted(str(path.relative_to(archive.directory)) for path in archive.directory.rglob("*.parquet"))


def test_files_of_a_date_and_partition_become_one(archive: Archive) -> None:
    before = content(archive)
    ranges = archive.ranges()
    assert compact(config(archive)) == Compacted(3 * STEPS, 3)
    assert content(archive) == before
    assert archive.ranges() == ranges
    assert len(archive.files()) == 3
    assert on_disk(archive) == sorted(file.path for file in archive.files())
    *_, last = archive.commits()
    assert (last.batch_id, last.ranges, len(last.replaced)) == (-1, {}, 3 * STEPS)
    archive.check_owner("job")


def test_a_second_compaction_changes_nothing(archive: Archive) -> None:
    compact(config(archive))
    files = archive.files()
    assert compact(config(archive)) == Compacted(0, 0)
    assert archive.files() == files
    assert sum(1 for _ in archive.commits()) == STEPS + 1


def test_merged_files_keep_the_types_of_spark(archive: Archive) -> None:
    compact(config(archive))
    for file in archive.files():
        metadata = pq.read_metadata(archive.directory / file.path)
        columns = {
            metadata.schema.column(n).path: metadata.schema.column(n) for n in range(len(metadata.schema))
        }
        assert columns["timestamp"].physical_type == "INT96"
        assert "headers.list.element.key" in columns
        assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_later_files_are_merged_with_small_ones(archive: Archive) -> None:
    compact(config(archive))
    step(archive, STEPS, lambda place: put(place, 14, 0, range(1000, 1050)), end=1050)
    before = content(archive)
    assert compact(config(archive)) == Compacted(2, 1)
    assert content(archive) == before


def test_files_with_different_columns_are_not_merged_repeatedly(archive: Archive) -> None:
    compact(config(archive))
    step(archive, STEPS, lambda place: put(place, 14, 0, range(1000, 1050), int96=False), end=1050)
    assert compact(config(archive)) == Compacted(0, 0)
    step(archive, STEPS + 1, lambda place: put(place, 14, 0, range(1050, 1060), int96=False), end=1060)
    before = content(archive)
    assert compact(config(archive)) == Compacted(2, 1)
    assert content(archive) == before


def file(path: str, first: int, size: int, last: int | None = None) -> DataFile:
    return DataFile(path, "t", 0, "d", first, first + 9 if last is None else last, 10, size, "")


def test_only_small_neighbors_are_merged(archive: Archive) -> None:
    given = [file(f"d/{n}", 10 * n, size) for n, size in enumerate([1, 2, 99, 3, 4, 5, 100, 6])]
    given.append(file("other/0", 15, 1))
    found = plan(reversed(given), config(archive, below_bytes=50, target_bytes=9))
    assert [[one.path for one in group] for group in found] == [["d/0", "d/1"], ["d/3", "d/4"]]


def test_files_with_different_columns_are_not_merged(archive: Archive) -> None:
    more = SCHEMA.append(pa.field("parsed", pa.string()))
    for number in (STEPS, STEPS + 1):
        at = 100 * number
        step(archive, number, lambda place: put(place, 14, 0, range(at, at + 5), more), end=at + 5)  # noqa: B023
    before = content(archive)
    assert compact(config(archive)).before == 3 * STEPS + 2
    assert content(archive) == before
    first, second = (one for one in archive.files() if (one.date, one.partition) == ("2023-11-14", 0))
    assert [one.records for one in (first, second)] == [25 * STEPS, 10]


def test_overlapping_files_are_merged_in_order(archive: Archive) -> None:
    def write(place: Path) -> None:
        put(place, 16, 0, range(1000, 1100, 2))
        put(place, 16, 0, range(1001, 1100, 2))

    step(archive, STEPS, write, end=1100)
    compact(config(archive))
    [merged] = [one for one in archive.files() if one.date == "2023-11-16"]
    assert list(pq.ParquetFile(archive.directory / merged.path).read()["offset"].to_pylist()) == list(
        range(1000, 1100)
    )


def test_a_corrupt_file_is_not_merged(archive: Archive) -> None:
    hurt = archive.directory / archive.files()[0].path
    data = bytearray(hurt.read_bytes())
    data[20] ^= 1
    hurt.write_bytes(data)
    with pytest.raises(ArchiveError, match=f"{hurt} has a different SHA-256"):
        compact(config(archive))
    assert len(archive.files()) == 3 * STEPS


def test_a_concurrent_compaction_is_refused(archive: Archive) -> None:
    with (
        compaction_lock(archive.directory),
        pytest.raises(CompactionRunning, match="is being compacted by another job"),
    ):
        compact(config(archive))
    with pytest.raises(ArchiveError, match="does not exist"):
        compact(config(archive, directory=archive.directory / "no"))


class Killed(BaseException):
    """An exception that no code catches, as a crash."""


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Crash before the change of the disk with this number, and return the number of changes so far."""
    seen = [0]

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen[0] += 1
            if seen[0] == number:
                raise Killed
            return change(*arguments, **named)

        return call

    for owner, name in [
        (Path, "rename"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (os, "link"),
        (module, "describe_file"),
        (shutil, "rmtree"),
    ]:
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    return seen


def test_a_compaction_killed_at_any_change_does_no_harm(archive: Archive, tmp_path: Path) -> None:
    before = content(archive)
    number = 0
    while True:
        number += 1
        place = tmp_path / f"copy{number}"
        shutil.copytree(archive.directory, place)
        copy = Archive(place)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(number, patch)
            try:
                compact(config(copy))
            except Killed:
                pass
            else:
                break
        assert content(copy) == before
        compact(config(copy))
        assert content(copy) == before
        assert on_disk(copy) == sorted(one.path for one in copy.files())
        assert len(copy.files()) == 3
        shutil.rmtree(place)
    assert number > 15


def test_other_files_are_not_deleted(archive: Archive) -> None:
    stranger = (
        archive.directory / "data/topic=t/date=2023-11-14/partition=0/part-other-0000000001-00000.parquet"
    )
    stranger.touch()
    assert sweep(archive) == 0
    assert stranger.exists()


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("7 B", 7), ("3KiB", 3072), ("32 MiB", 32 << 20), (" 1 GiB ", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes("x", text) == size


@pytest.mark.parametrize("text", ["", "MiB", "5 MB", "-1", "1.5 GiB"])
def test_an_invalid_size_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"compact\.below must be a size like '32 MiB', not"):
        CompactConfig.of(JobConfig({"compact": {"directory": "a", "below": text}}))


def test_defaults() -> None:
    found = CompactConfig.of(JobConfig({"compact": {"directory": "a"}}))
    assert found == CompactConfig(Path("a"), 32 << 20, 128 << 20, "zstd")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the order of changes reproducible."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
