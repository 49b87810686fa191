"""Restoring to a data directory, without Spark: logs, metadata, and interrupted builds."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire.broker.controller.bootstrap import activation_records, bootstrap_records
from kwire.broker.metadata.batches import decode_batches
from kwire.broker.storage.checkpoints import read_meta_properties, read_offsets, read_topic_id
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import RealDisk
from kwire.host.loggers import STORAGE_LOGGER
from kwire.pipeline import cli
from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.reading import RecordFilter, Row, overlapping, rows
from kwire.pipeline.archive.staging import clear_staging_path, describe_file, move, staged_files
from kwire.pipeline.config import CLEAN, ConfigError, JobConfig
from kwire.pipeline.jobs.restore import command, directory_config
from kwire.pipeline.restore.batches import Limits
from kwire.pipeline.restore.directory import (
    DirectoryConfig,
    Task,
    is_done,
    locked_build_directory,
    partition_ranges,
    restore,
)
from kwire.pipeline.restore.partition import RestoredLog
from kwire.pipeline.segments.files import partitions_in
from kwire.pipeline.segments.plan import Range
from kwire.pipeline.segments.read import read
from kwire.wire.compression import Codec
from kwire.wire.records.metadata import ConfigRecord, FeatureLevelRecord, PartitionRecord, TopicRecord

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
NOW_MS = 1_700_000_000_000
GAPS = [Row(o, NOW_MS + o, 0, b"k%d" % o if o % 7 else None, b"v" * (o % 90), []) for o in range(100, 700, 3)]
GAPS += [Row(1000 + o, NOW_MS - o, 1, b"k", None, [("h", b"x"), ("n", None)]) for o in range(5)]


def put(place: Path, partition: int, day: int, content: Sequence[Row]) -> None:
    directory = place / f"topic=t/date=2023-11-{day}/partition={partition}"
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(
        [
            {
                "offset": row.offset,
                "timestamp": row.timestamp_ms * 1000,
                "timestampType": row.timestamp_type,
                "key": row.key,
                "value": row.value,
                "headers": [{"key": key, "value": value} for key, value in row.headers] or None,
            }
            for row in content
        ],
        SCHEMA,
    )
    pq.write_table(table, directory / "part.parquet")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Return an archive of two topics, `t` and `e`. Topic `e` has one partition, and no records.

    Partition 0 of `t` has gaps and two dates, 1 has lost its records, 2 is missing, and 3 has no gaps.
    """
    found = Archive(tmp_path / "archive")
    place = clear_staging_path(found.directory, "s")
    put(place, 0, 14, GAPS[::2])
    put(place, 0, 15, GAPS[1::2])
    put(place, 3, 14, [Row(o, NOW_MS, 0, None, b"", []) for o in range(20)])
    files = move(
        found.directory, place, "s", [describe_file(str(place), path) for path in staged_files(place)]
    )
    ranges = {"t": {0: (90, 1010), 1: (77, 77), 3: (0, 20)}, "e": {0: (5, 9)}}
    found.add(Commit(-1, "job", 0, ranges, files))
    return found


def config(archive: Archive, directory: Path, **changes: Any) -> DirectoryConfig:
    return DirectoryConfig(
        archive=archive.directory,
        directory=directory,
        wanted=RecordFilter(),
        suffix="",
        settings={"retention.ms": "-1"},
        segment_bytes=1 << 30,
        limits=Limits(),
        properties="",
        node_id=7,
        cluster_id="a-cluster",
    )._replace(**changes)


def in_turn(write: Callable[[Task], RestoredLog], tasks: Sequence[Task]) -> Iterable[RestoredLog]:
    return [write(task) for task in tasks]


def content(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read a directory with the segment source."""
    found = {}
    for log in partitions_in([str(directory)]):
        range_ = Range(log.topic, log.partition, str(log.directory), 0, 1 << 40)
        tables = [pa.Table.from_batches([batch]) for batch in read(range_, headers=True)]
        found[log.name] = [
            (
                told["offset"],
                round(told["timestamp"].timestamp() * 1000),
                told["timestampType"],
                told["key"],
                told["value"],
                [(header["key"], header["value"]) for header in told["headers"] or ()],
            )
            for table in tables
            for told in table.to_pylist()
        ]
    return found


@pytest.mark.parametrize("segment_bytes", [1 << 30, 4096])
def test_each_record_has_its_original_offset(archive: Archive, tmp_path: Path, segment_bytes: int) -> None:
    directory = tmp_path / "data"
    limits = Limits(Codec.NONE, batch_bytes=1024)
    written = restore(config(archive, directory, segment_bytes=segment_bytes, limits=limits), in_turn)
    assert [log[:5] for log in written] == [
        ("e", 0, 9, 9, 0),
        ("t", 0, 90, 1010, len(GAPS)),
        ("t", 1, 77, 77, 0),
        ("t", 2, 0, 0, 0),
        ("t", 3, 0, 20, 20),
    ]
    found = content(directory)
    assert found["t-0"] == [tuple(row) for row in GAPS]
    assert [offset for offset, *_ in found["t-3"]] == list(range(20))
    segments = list((directory / "t-0").glob("*.log"))
    assert len(segments) == 1 if segment_bytes > 4096 else len(segments) > 2
    assert all(segment.stat().st_size <= segment_bytes for segment in segments)


def test_a_broker_opens_the_logs_as_after_a_clean_shutdown(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    restore(config(archive, directory), in_turn)
    before = {path: path.stat().st_mtime_ns for path in directory.glob("*/*.*")}
    logs = LogManager(RealDisk(), [str(directory)], logger=STORAGE_LOGGER, rng=random.Random(1))
    logs.open(time.time_ns() // 1_000_000)
    assert logs.directories()[0].had_clean_shutdown
    log = logs.get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (90, 1010, 1010)
    assert (log.recovery_point, log.leader_epochs) == (1010, [(0, 90)])
    logs.shutdown(time.time_ns() // 1_000_000)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_cluster_starts_with_the_topics(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    restore(config(archive, directory, suffix=".old"), in_turn)
    disk = RealDisk()
    owner = read_meta_properties(disk, str(directory))
    assert owner is not None
    assert (owner.node_id, owner.cluster_id) == (7, "a-cluster")
    told = bootstrap_records(disk, str(directory))
    features = [record for record in told if isinstance(record, FeatureLevelRecord)]
    topics = {record.topic_id: record.name for record in told if isinstance(record, TopicRecord)}
    assert sorted(topics.values()) == ["e.old", "t.old"]
    assert "metadata.version" in [record.name for record in features]
    assert {
        (record.resource_type, record.resource_name, record.name, record.value)
        for record in told
        if isinstance(record, ConfigRecord)
    } == {(2, f"{name}.old", "retention.ms", "-1") for name in "et"}
    partitions = [record for record in told if isinstance(record, PartitionRecord)]
    assert [(topics[one.topic_id], one.partition_id) for one in partitions] == [
        ("e.old", 0),
        *(("t.old", number) for number in range(4)),
    ]
    for one in partitions:
        assert (one.leader, one.replicas, one.isr, one.directories) == (7, [7], [7], [owner.directory_id])
        log = directory / f"{topics[one.topic_id]}-{one.partition_id}"
        assert read_topic_id(disk, str(log)) == one.topic_id
    first = activation_records(told, 1, is_transaction_open=False)
    assert {stored.version for stored in first if isinstance(stored.record, PartitionRecord)} == {2}
    batches = list(decode_batches((directory / "bootstrap.checkpoint").read_bytes()))
    assert [batch.base_offset for batch in batches[1:]] == [batch.last_offset + 1 for batch in batches[:-1]]


def test_checkpoints_have_the_end_of_each_log(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    restore(config(archive, directory), in_turn)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        offsets = read_offsets(RealDisk(), str(directory / name))
        assert offsets["t", 0] == 1010
        assert len(offsets) == 5


def test_a_part_of_an_archive(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    wanted = RecordFilter(frozenset("t"), start_offset=200, end_offset=600)
    written = restore(config(archive, directory, wanted=wanted), in_turn)
    assert [(log.topic, log.partition, log.start_offset, log.end_offset) for log in written][:2] == [
        ("t", 0, 200, 600),
        ("t", 1, 77, 77),
    ]
    assert content(directory)["t-0"] == [tuple(row) for row in GAPS if 200 <= row.offset < 600]


def test_a_directory_that_is_not_empty_is_refused(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    restore(config(archive, tmp_path / "data"), in_turn)
    with pytest.raises(ArchiveError, match=f"{tmp_path}/data is not empty"):
        restore(config(archive, tmp_path / "data"), in_turn)
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="is not a directory"):
        restore(config(archive, tmp_path / "file"), in_turn)


def test_an_interrupted_build_starts_again(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"

    def killed(write: Callable[[Task], RestoredLog], tasks: Sequence[Task]) -> Iterable[RestoredLog]:
        in_turn(write, tasks[:3])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(config(archive, directory), killed)
    assert not directory.exists()
    restore(config(archive, directory), in_turn)
    assert content(directory)["t-0"] == [tuple(row) for row in GAPS]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "data"]


def test_a_repeated_attempt_at_a_partition_is_there_once(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"

    def again(write: Callable[[Task], RestoredLog], tasks: Sequence[Task]) -> Iterable[RestoredLog]:
        with ThreadPoolExecutor(4) as pool:
            attempts = list(pool.map(write, [*tasks, *tasks, *tasks]))
        assert attempts[: len(tasks)] == attempts[len(tasks) : 2 * len(tasks)] == attempts[2 * len(tasks) :]
        return attempts[: len(tasks)]

    def lost(write: Callable[[Task], RestoredLog], tasks: Sequence[Task]) -> Iterable[RestoredLog]:
        half = archive.directory / tasks[1].files[0].path
        data = half.read_bytes()
        half.write_bytes(data[: len(data) // 2])
        with pytest.raises(ArchiveError):
            write(tasks[1])
        half.write_bytes(data)
        return again(write, tasks)

    restore(config(archive, directory), lost)
    assert content(directory)["t-0"] == [tuple(row) for row in GAPS]
    assert not list(directory.glob("attempts*"))


def test_the_same_restore_again_has_nothing_to_do(archive: Archive, tmp_path: Path) -> None:
    made = config(archive, tmp_path / "data", wanted=RecordFilter(frozenset("te")))
    assert not is_done(made)
    restore(made, in_turn)
    assert is_done(made)
    assert is_done(made._replace(wanted=RecordFilter(frozenset("et"))))
    for other in (
        made._replace(directory=tmp_path),
        made._replace(wanted=RecordFilter()),
        made._replace(suffix=".b"),
        made._replace(settings={}),
    ):
        assert not is_done(other)
    archive.add(Commit(-1, "job", 1, {"t": {3: (20, 21)}}, []))
    assert not is_done(made)


def test_the_command_reports_a_completed_restore(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"directory": str(archive.directory), "into_directory": str(tmp_path / "data")}
    job = JobConfig({"restore": {**told, "broker": {"node_id": 7, "cluster_id": "a-cluster"}}})
    wanted = directory_config(job)
    assert wanted is not None
    restore(wanted, in_turn)
    assert command(job, None) == CLEAN
    assert capsys.readouterr().out == f"{tmp_path}/data was already restored by this job: nothing to do\n"
    other = JobConfig({"restore": {**told, "broker": {"node_id": 8}}})
    with pytest.raises(ArchiveError, match="is not empty"):
        command(other, None)


def test_concurrent_builds_of_a_directory_are_refused(archive: Archive, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with locked_build_directory(directory), pytest.raises(ArchiveError, match="another job restores to"):
        restore(config(archive, directory), in_turn)


def test_the_error_of_formatting_is_reported(archive: Archive, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("num.partitions=3\n")
    with pytest.raises(
        ArchiveError, match=r"data cannot be formatted: kwire: Missing required configuration"
    ):
        restore(config(archive, tmp_path / "data", properties=str(properties)), in_turn)


def test_internal_topics_are_refused(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive")
    with pytest.raises(ArchiveError, match="it is not an archive, or it is empty"):
        restore(config(archive, tmp_path / "data"), in_turn)
    archive.add(Commit(-1, "job", 0, {"__consumer_offsets": {0: (0, 9)}}, []))
    archive.add(Commit(-1, "job", 1, {"flights": {0: (0, 9)}, "a": {1: (3, 4)}}, []))
    with pytest.raises(
        ArchiveError, match=r'__consumer_offsets cannot be restored, .* to the other topics, "a,flights"'
    ):
        restore(config(archive, tmp_path / "data"), in_turn)
    assert not (tmp_path / "data").exists()


def test_a_span_covers_the_ranges_of_all_commits(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for number, span in enumerate([(5, 10), (10, 10), (12, 30)]):
        archive.add(Commit(-1, "job", number, {"t": {0: span}}, []))
    assert partition_ranges(archive, RecordFilter()) == {("t", 0): (5, 30)}
    assert partition_ranges(archive, RecordFilter(end_offset=20)) == {("t", 0): (5, 20)}
    assert partition_ranges(archive, RecordFilter(end_offset=3)) == {("t", 0): (5, 5)}
    assert partition_ranges(archive, RecordFilter(start_offset=40)) == {("t", 0): (30, 30)}


def test_only_files_that_overlap_are_read_together(archive: Archive) -> None:
    files = [
        DataFile(str(n), "t", 0, "d", *span, 1, 1, "")
        for n, span in enumerate([(5, 9), (0, 3), (8, 20), (21, 22)])
    ]
    assert [[file.path for file in group] for group in overlapping(files)] == [["1"], ["0", "2"], ["3"]]
    inside = [file for file in archive.files() if file.partition == 0]
    assert list(rows(archive.directory, inside, RecordFilter())) == GAPS


def test_a_missing_or_corrupt_file_is_named(archive: Archive, tmp_path: Path) -> None:
    [*_, file] = archive.files()
    path = archive.directory / file.path
    path.write_bytes(b"no Parquet")
    with pytest.raises(ArchiveError, match=f"{path} cannot be read"):
        restore(config(archive, tmp_path / "data"), in_turn)
    path.unlink()
    with pytest.raises(ArchiveError, match=f"{path} does not exist"):
        restore(config(archive, tmp_path / "data"), in_turn)
    assert not (tmp_path / "data").exists()


def test_an_archive_with_a_duplicate_offset_is_refused(archive: Archive, tmp_path: Path) -> None:
    [file] = [file for file in archive.files() if file.partition == 3]
    archive.add(Commit(-1, "job", 1, {}, [file._replace(path=f"{file.path}.again")]))
    (archive.directory / f"{file.path}.again").hardlink_to(archive.directory / file.path)
    with pytest.raises(ArchiveError, match="t-3 cannot be written: offset 0 is not between 0 and 20, or is"):
        restore(config(archive, tmp_path / "data"), in_turn)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"segment_bytes": 5}, "restore.segment_bytes must be at least"),
        ({"compression": "lzma"}, "restore.compression must be one of"),
        ({"broker": {"node": 1}}, "unknown key restore.broker.node"),
        ({"client": {}}, "unknown key restore.client"),
    ],
)
def test_a_wrong_setting_is_named(table: dict[str, Any], message: str) -> None:
    told = {"directory": "a", "into_directory": "b", **table}
    with pytest.raises(ConfigError, match=message):
        directory_config(JobConfig({"restore": told}))


def test_the_command_line_overrides_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[DirectoryConfig | None] = []

    def command(config: JobConfig, _: str | None) -> int:
        told.append(directory_config(config))
        return 0

    job = ModuleType("job")
    monkeypatch.setitem(sys.modules, "job", job)
    monkeypatch.setattr(job, "command", command, raising=False)
    monkeypatch.setattr(cli, "NEEDED", {})
    monkeypatch.setitem(cli.JOBS, "restore", cli.JOBS["restore"]._replace(module="job"))
    file = tmp_path / "job.toml"
    file.write_text('[restore]\ndirectory = "a"\ninto_directory = "/b"\n')
    for arguments in (["--into-directory", "/c"], []):
        assert cli.main(["restore", "--config", str(file), *arguments]) == 0
    assert [one and one.directory for one in told] == [Path("/c"), Path("/b")]


def test_topic_and_broker_settings_are_applied() -> None:
    told = {
        "directory": "a",
        "into_directory": "/b",
        "settings": {"segment.bytes": 5},
        "broker": {"node_id": 3, "standalone": True},
    }
    found = directory_config(JobConfig({"restore": told}))
    assert found is not None
    assert found.settings == {"retention.ms": "-1", "segment.bytes": "5"}
    assert (found.node_id, found.format_options) == (3, ["--standalone"])
    assert directory_config(JobConfig({"restore": {"directory": "a"}})) is None
