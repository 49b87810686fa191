"""Segments written as the Parquet files of an archive, without Spark."""

from __future__ import annotations

import datetime
import os
import random
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire.broker.storage.disk import RealDisk
from kwire.pipeline.archive.direct import DateFiles, date_of, split_by_day, write_ranges
from kwire.pipeline.archive.manifest import DataFile
from kwire.pipeline.archive.staging import staged_files
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.plan import Range, plan
from kwire.pipeline.segments.read import SCHEMA_WITH_HEADERS, read
from kwire.wire.compression import Codec
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
SCHEMA = pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in COLUMNS])
HOUR_MS = 3_600_000
RECORDS = 300
US = 1_000_000


@pytest.fixture
def ranges(tmp_path: Path) -> list[Range]:
    """Create records of two weeks, some of which are late, in several segments and ranges."""
    made = LogHarness(RealDisk(), str(tmp_path / "logs"))
    made.config = made.config._replace(segment_bytes=1500, index_interval_bytes=300)
    log = made.open()
    draw = random.Random(3)
    number = 0
    while number < RECORDS:
        count = min(draw.choice([1, 5, 20]), RECORDS - number)
        time_ms = NOW_MS + (number - RECORDS) * HOUR_MS - draw.choice([0, 0, 30]) * HOUR_MS
        values = [b"%d" % (number + each) for each in range(count)]
        made.send(log, batch(*values, timestamp=time_ms, codec=draw.choice(list(Codec))))
        number += count
    options = {"path": str(Path(made.directory).parent), "subscribe": "topic"}
    return plan(parse(options))


def written(place: Path, ranges: list[Range], *, records_per_file: int = 1000) -> list[DataFile]:
    return write_ranges(str(place), ranges, COLUMNS, "zstd", records_per_file)


def content(place: Path, files: list[DataFile]) -> pa.Table:
    tables = [pq.ParquetFile(place / file.path, coerce_int96_timestamp_unit="us").read() for file in files]
    return pa.concat_tables(tables)


def truth(ranges: list[Range]) -> pa.Table:
    return pa.Table.from_batches([found for range_ in ranges for found in read(range_, columns=COLUMNS)])


def rows(table: pa.Table) -> list[dict[str, object]]:
    number = table.schema.get_field_index("timestamp")
    times = table.column("timestamp").cast(pa.int64())
    return list(table.set_column(number, "timestamp", times).sort_by("offset").to_pylist())


def test_each_record_is_in_one_file_of_its_date(ranges: list[Range], tmp_path: Path) -> None:
    files = written(tmp_path / "s", ranges)
    assert sorted(file.path for file in files) == staged_files(tmp_path / "s")
    assert rows(content(tmp_path / "s", files)) == rows(truth(ranges))
    for file in files:
        table = content(tmp_path / "s", [file])
        offsets = table.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        assert (file.first_offset, file.last_offset, file.records) == (offsets[0], offsets[-1], len(offsets))
        days = {time.date().isoformat() for time in table.column("timestamp").to_pylist()}
        assert days == {file.date}
        assert file.path.startswith(f"topic=topic/date={file.date}/partition=0/")


def test_columns_are_those_that_spark_writes(ranges: list[Range], tmp_path: Path) -> None:
    [first, *_] = written(tmp_path / "s", ranges)
    schema = pq.read_metadata(tmp_path / "s" / first.path).schema
    found = [(schema.column(at).path, schema.column(at).physical_type) for at in range(len(schema))]
    assert found == [
        ("offset", "INT64"),
        ("timestamp", "INT64"),
        ("timestampType", "INT32"),
        ("key", "BYTE_ARRAY"),
        ("value", "BYTE_ARRAY"),
        ("headers.list.element.key", "BYTE_ARRAY"),
        ("headers.list.element.value", "BYTE_ARRAY"),
    ]


def test_files_are_limited_to_records_per_file(ranges: list[Range], tmp_path: Path) -> None:
    files = written(tmp_path / "s", ranges, records_per_file=7)
    assert max(file.records for file in files) == 7
    assert rows(content(tmp_path / "s", files)) == rows(truth(ranges))


def test_a_second_attempt_uses_other_file_names(ranges: list[Range], tmp_path: Path) -> None:
    first, second = written(tmp_path / "s", ranges[:1]), written(tmp_path / "s", ranges[:1])
    assert not {file.path for file in first} & {file.path for file in second}
    assert [file.sha256 for file in first] == [file.sha256 for file in second]


def open_below(path: Path) -> int:
    """Count this process's open files in a directory. Threads of other tests may close files meanwhile."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(path))
    return found


@pytest.mark.proc
def test_buffered_bytes_and_open_files_are_limited(tmp_path: Path) -> None:
    """Records with dates in random order."""
    draw = random.Random(5)
    batches = [
        batch_of(range(at, at + 40), [draw.randrange(90) for _ in range(40)]) for at in range(0, 4000, 40)
    ]
    most_open = 0
    with DateFiles(
        str(tmp_path), "t", 1, SCHEMA, "none", 1000, max_buffered_bytes=2000, max_open_files=10
    ) as dates:
        for added in batches:
            dates.add(added)
            most_open = max(most_open, open_below(tmp_path))
    assert most_open == 10
    assert sorted(dates.paths) == staged_files(tmp_path)
    tables = [
        pq.ParquetFile(tmp_path / path, coerce_int96_timestamp_unit="us").read() for path in dates.paths
    ]
    assert rows(pa.concat_tables(tables)) == rows(pa.Table.from_batches(batches))


def batch_of(offsets: range, days: list[int]) -> pa.RecordBatch:
    count = len(offsets)
    times = pa.array([day * 86400 * US + 5 for day in days], pa.int64()).view(pa.timestamp("us", tz="UTC"))
    columns = [
        pa.array(offsets, pa.int64()),
        times,
        pa.array([0] * count, pa.int32()),
        pa.nulls(count, pa.binary()),
        pa.array([b"v"] * count, pa.binary()),
        pa.nulls(count, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_days_end_at_midnight_in_utc(tmp_path: Path) -> None:
    times = [-1, 0, 86400 * US - 1, 86400 * US]
    made = batch_of(range(4), [0] * 4).set_column(
        1, SCHEMA.field("timestamp"), pa.array(times, pa.int64()).view(pa.timestamp("us", tz="UTC"))
    )
    assert [(day, part.column("offset").to_pylist()) for day, part in split_by_day(made)] == [
        (-1, [0]),
        (0, [1, 2]),
        (1, [3]),
    ]
    assert list(split_by_day(made.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("date", "text"),
    [
        (datetime.date(1969, 12, 31), "1969-12-31"),
        (datetime.date(2026, 1, 5), "2026-01-05"),
        (datetime.date(987, 6, 5), "0987-06-05"),
    ],
)
def test_dates_are_as_spark_writes_them(date: datetime.date, text: str) -> None:
    assert date_of((date - datetime.date(1970, 1, 1)).days) == text


def test_years_of_five_digits_have_a_sign() -> None:
    day = (datetime.date(9999, 12, 31) - datetime.date(1970, 1, 1)).days
    assert [date_of(day), date_of(day + 1)] == ["9999-12-31", "+10000-01-01"]
