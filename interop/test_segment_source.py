"""The segment source, a Spark data source, in a user's session, and jobs that read unusual records."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop.pipeline_kills.processes import environment
from interop.reference import spark_python
from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.recovery import open_log
from kwire.pipeline.report.times import END_MS
from kwire.pipeline.segments.read import MAX_TIMESTAMP_MS
from kwire.wire.batch import build

PROGRAM_S = 180.0
NOW_MS = 1_700_000_000_000
RECORDS = 300
PARTITIONS = 4
STOCK = """
import json, sys
from pyspark.sql import SparkSession
from kwire.pipeline.source import SegmentSource

data, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(SegmentSource)

def load(**options):
    return spark.read.format("kwire").options(path=data, **options).load()

def print_counts(**counts):
    print(json.dumps({name: table.count() for name, table in counts.items()}))

print_counts(stock=load(subscribe="topic"))
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
spark.conf.set("spark.sql.shuffle.partitions", "1")
table = load(subscribe="topic")
first, late = table.where("partition = 0"), table.where("offset >= 290")
keys = table.select("partition", "offset")
print_counts(all=table, first=first, again=table, late=late, first_again=first, all_at_last=table)
print_counts(
    union=first.union(late),
    union_with_all=first.union(table),
    joined=first.alias("a").join(late.alias("b"), "offset"),
    joined_with_itself=keys.alias("a").join(keys.where("offset < 10").alias("b"), ["partition", "offset"]),
    nothing=table.where("topic = 'other'"),
    or_=table.where("partition = 0 OR offset < 10"),
)
table.createOrReplaceTempView("records")
print_counts(
    view=spark.sql("SELECT * FROM records WHERE partition IN (1, 2)"),
    of_both=spark.sql("SELECT * FROM records WHERE offset IN (SELECT offset FROM records WHERE offset = 7)"),
    view_again=spark.sql("SELECT * FROM records"),
)
first.cache()
print_counts(cached=first, beside=table, cached_again=first, in_cached=first.where("offset < 10"))
ends = json.dumps({"topic": {"0": 20}})
starts = json.dumps({"topic": {"0": 10}})
print_counts(by_options=load(assign='{"topic": [0]}', startingOffsets=starts, endingOffsets=ends))
one = spark.read.schema("offset bigint").format("kwire").options(path=data, subscribe="topic").load()
print_counts(one_column=one.where("offset < 10"), one_column_again=one)
stream = spark.readStream.format("kwire").options(path=data, subscribe="topic", startingOffsets="earliest")
stream = stream.load().where("partition = 3")
query = stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", checkpoint)
query = query.trigger(availableNow=True).start()
query.awaitTermination()
print_counts(streamed=spark.table("seen"))
spark.stop()
"""
JOBS = """
import json, sys
from pathlib import Path
from pyarrow import parquet
from kwire.pipeline.archive.manifest import DataFile
from kwire.pipeline.archive.reading import RecordFilter, rows
from kwire.pipeline.jobs import audit
from kwire.pipeline.jobs import profile
from kwire.pipeline.report.audit_page import page_of
from kwire.pipeline.report.page import render
from kwire.pipeline.report.profile_page import page_of as profile_page
from kwire.pipeline.session import session
from kwire.pipeline.sides import Side

left, right = [Side("kwire", {"path": path, "subscribePattern": ".*"}, None, None) for path in sys.argv[1:]]
spark = session("audit", master="local[1]", needs_kafka=False)
for offsets in (True, False):
    outcome = audit.run(spark, audit.AuditConfig(left, right, "1 hour", offsets, ""))
    print(json.dumps([[one.topic, one.verdict] for one in outcome.differences if one.topic != "far"]))
print(json.dumps([str(one) for one in outcome.differences if one.topic == "far"]))
print(json.dumps("3 windows outside of the" in render(page_of("l", "r", "1 hour", outcome.all_windows))))
far = left._replace(options={"path": sys.argv[1], "subscribe": "far"})
wanted = profile.ProfileConfig(far, Path("x"), 20, False, {})
found = profile.profile(spark, wanted, "far")
print(json.dumps([found["timestamps"], found["rates"]]))
print(json.dumps("3 records with timestamps outside" in render(profile_page([found]))))
for kind in ("", "INT96"):
    if kind:
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    place = Path(sys.argv[1]).parent / f"archive{kind}"
    far.load(spark).drop("topic", "partition").repartition(1).write.parquet(str(place))
    [path] = place.glob("*.parquet")
    column = [one.name for one in parquet.read_schema(path)].index("timestamp")
    written = parquet.read_metadata(path).schema.column(column).physical_type
    file = DataFile(path.name, "far", 0, "", 0, 4, 5, 0, "")
    times_ms = [row.timestamp_ms for row in sorted(rows(place, [file], RecordFilter()))]
    again = spark.read.parquet(str(place)).selectExpr("*", "'far' AS topic", "0 AS partition")
    same = all(
        audit.summed(one, config).exceptAll(audit.summed(other, config)).isEmpty()
        for config in [audit.AuditConfig(left, right, "1 hour", True, "")]
        for one, other in [(again, far.load(spark)), (far.load(spark), again)]
    )
    print(json.dumps([written, times_ms, same]))
spark.stop()
"""


def fill(root: Path, topic: str = "topic", partitions: int = PARTITIONS) -> None:
    """Write a data directory whose partition logs have several small segments."""
    for partition in range(partitions):
        log = opened(root, topic, partition, LogConfig(segment_bytes=1500, index_interval_bytes=300))
        for number in range(0, RECORDS, 10):
            values = [b"%d" % each for each in range(number, number + 10)]
            sent = build([(NOW_MS + at, None, value, []) for at, value in enumerate(values)])
            log.append(memoryview(sent), leader_epoch=0, now_ms=NOW_MS)
            log.commit()
        log.flush()
        log.close()


def opened(root: Path, topic: str, partition: int, config: LogConfig) -> Log:
    disk = RealDisk()
    return open_log(
        disk,
        f"{root}/{topic}-{partition}",
        topic,
        partition,
        config,
        clean=False,
        recovery_point=0,
        log_start_offset=0,
        delayed_deletion=DelayedDeletion(disk),
        rng=random.Random(0),
        now_ms=NOW_MS,
        on_failure=lambda log, error: None,
    )


def run(program: str, *arguments: str) -> list[Any]:
    """Run a program in the Python that has PySpark, and return the JSON lines that it prints."""
    done = subprocess.run(
        [spark_python(), "-c", program, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_filter_applies_to_one_query_only(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    output = run(STOCK, str(tmp_path / "data"), str(tmp_path / "checkpoint"))
    every = PARTITIONS * RECORDS
    assert {name: count for counts in output for name, count in counts.items()} == {
        "stock": every,
        "all": every,
        "first": RECORDS,
        "again": every,
        "late": 10 * PARTITIONS,
        "first_again": RECORDS,
        "all_at_last": every,
        "union": RECORDS + 10 * PARTITIONS,
        "union_with_all": RECORDS + every,
        "joined": 10 * PARTITIONS,
        "joined_with_itself": 10 * PARTITIONS,
        "nothing": 0,
        "or_": RECORDS + 10 * (PARTITIONS - 1),
        "view": 2 * RECORDS,
        "of_both": PARTITIONS,
        "view_again": every,
        "cached": RECORDS,
        "beside": every,
        "cached_again": RECORDS,
        "in_cached": 10,
        "by_options": 10,
        "one_column": 10 * PARTITIONS,
        "one_column_again": every,
        "streamed": RECORDS,
    }


Content = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
UNLIKE: dict[str, tuple[Content, Content]] = {
    "swapped": ((None, b"v", []), (b"v", None, [])),
    "empty": ((b"k", b"", []), (b"k", None, [])),
    "boundary": ((b"ab", b"c", []), (b"a", b"bc", [])),
    "headers": ((None, None, [("a", None), ("b", b"c")]), (None, None, [("a", b"b"), ("c", None)])),
    "header-empty": ((None, None, [("a", None)]), (None, None, [("a", b"")])),
    "header-value": ((None, b"v", [("a", None)]), (None, None, [("v", None), ("a", None)])),
    "all": ((None, b"v", [("a", None), ("b", b"c")]), (b"v", None, [("a", b"b"), ("c", None)])),
    "lengths": ((b"\0\0\0\1", None, []), (b"\0\0\0\1", b"", [])),
}
ALIKE: Content = (None, b"v", [("a", None), ("b", b"")])


def write(root: Path, topic: str, *contents: Content, times_ms: Sequence[int] = (NOW_MS,)) -> None:
    """Write a partition that has each content at each timestamp."""
    log = opened(root, topic, 0, LogConfig())
    for time_ms in times_ms:
        sent = build([(time_ms, *content) for content in contents], base_offset=log.log_end_offset)
        log.append_stored(memoryview(sent))
    log.commit()
    log.flush()
    log.close()


FAR_MS = (NOW_MS, END_MS - 1, END_MS, NOW_MS * 1000, MAX_TIMESTAMP_MS)


def test_audit_compares_nulls_and_extreme_timestamps(tmp_path: Path) -> None:
    """Check the audit, a profile, and Parquet with both timestamp types."""
    for topic, (one, other) in UNLIKE.items():
        write(tmp_path / "left", topic, one)
        write(tmp_path / "right", topic, other)
    for side in ("left", "right"):
        write(tmp_path / side, "alike", ALIKE)
    for side, key in (("left", b"l"), ("right", b"r")):
        write(tmp_path / side, "far", (key, None, []), times_ms=FAR_MS)
    output = run(JOBS, str(tmp_path / "left"), str(tmp_path / "right"))
    assert output[:2] == [[[topic, "different"] for topic in sorted(UNLIKE)]] * 2
    assert [line.partition(": different")[0] for line in output[2]] == [
        "far-0 2023-11-14 22:00",
        "far-0 9999-12-31 23:00",
        f"far-0 after the year 9999 ({END_MS} ms)",
        "far-0 after the year 9999 (1699999999200000 ms)",
        "far-0 after the year 9999 (9223372036800000 ms)",
    ]
    assert output[3]
    times, rates = output[4]
    assert times["last"] == f"{MAX_TIMESTAMP_MS} ms"
    assert times["from_the_future"] == 4
    assert sum(point["records"] for point in rates["points"]) == 2
    assert rates["records_outside_years_1_to_9999"] == 3
    assert output[5]
    assert output[6] == ["INT64", [*FAR_MS], True]
    # With INT96, Spark itself misreads timestamps in the last 6,700 years of its calendar.
    kind, times_ms, same = output[7]
    assert (kind, times_ms[:-1], same) == ("INT96", [*FAR_MS[:-1]], True)
