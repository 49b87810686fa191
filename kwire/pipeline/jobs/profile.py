"""The job `profile`: statistics of a topic, as an HTML page with plots and as JSON.

    [profile]
    report = "profile.html"        # and profile.json
    top = 20                       # the number of keys, header names and schema ids to list
    groups = true                  # include the lag of consumer groups, if the side is a cluster
    [profile.client]               # more client settings for the lag of groups
    [side]
    format = "kafka"               # or kwire (a data directory), or archive
    [side.options]
    "kafka.bootstrap.servers" = "127.0.0.1:9092"
    subscribe = "flights"

The job reads a topic once. Sketches of bounded size summarize keys, sizes, kinds of values and header names,
and the job keeps a sample of values. Spark stores counts by partition and minute, from which the job derives
rates and the statistics of each partition. So memory use does not depend on the size of the topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kwire.pipeline.archive.reading import report_missing_files
from kwire.pipeline.client_settings import input_client
from kwire.pipeline.config import CLEAN, ConfigError, Input, JobConfig, MissingDependencyError
from kwire.pipeline.report import profile_statistics as stats
from kwire.pipeline.report.order import of_arrow
from kwire.pipeline.report.page import write, write_text
from kwire.pipeline.report.profile_page import page_of
from kwire.pipeline.report.times import END_MS, FIRST_MS
from kwire.pipeline.sides import Side
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

QUANTILES: Final = (0.0, 0.5, 0.9, 0.99, 1.0)
SAMPLE: Final = 500
SAMPLE_BYTES: Final = 16 << 10
"""The maximum size of a value in the sample."""
TRACKED: Final = 10_000
"""The number of distinct items that a sketch of the most frequent items keeps."""
KEY_BYTES: Final = 256
"""The maximum size of a key that a sketch keeps. The sketch has a hash instead of a longer key."""
SIZES: Final = ("key", "value", "headers")
MIN_SPARK: Final = (4, 2)
"""The first version of Spark with all aggregates of this job, such as `max_by` for several rows."""


class ProfileConfig(NamedTuple):
    """The tables [profile] and [side]."""

    side: Side
    report: Path
    top: int
    groups: bool
    client: Mapping[str, str]
    """librdkafka's configuration for the cluster of the side."""

    @classmethod
    def of(cls, config: JobConfig) -> ProfileConfig:
        """Read the tables of the job. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("profile")
        side = Side.of(config, "side")
        found = cls(
            side,
            Path(table.text("report", "profile.html")),
            table.number("top", 20, least=1),
            table.flag("groups", True),
            input_client(Input(side.format, side.options), "profile.client", table.table("client").texts()),
        )
        table.check_unknown_keys()
        if found.statistics_path == found.report:
            raise ConfigError("profile.report must be the name of an HTML page, like profile.html")
        return found

    @property
    def statistics_path(self) -> Path:
        """The path of the JSON file, derived from the path of the report."""
        return self.report.with_suffix(".json")


def topics_of(side: Side) -> list[str]:
    """Return the topic names of a side. Raises ConfigError if the side does not name its topics."""
    if side.directory is not None:
        from kwire.pipeline.archive.manifest import Archive

        return sorted(side.topics or {file.topic for file in Archive(side.directory).files()})
    given = {name.lower(): value for name, value in side.options.items()}
    if "subscribe" in given:
        return sorted({topic.strip() for topic in given["subscribe"].split(",") if topic.strip()})
    if "assign" in given:
        return sorted(_by_topic("assign", given["assign"]))
    raise ConfigError("a profile needs topic names: set side.options.subscribe")


def select_topic(side: Side, topic: str) -> Side:
    """Return a copy of the side that selects only one topic. Raises ConfigError."""
    if side.directory is not None:
        return side._replace(topics=frozenset({topic}))
    options = {}
    for name, value in side.options.items():
        lower = name.lower()
        if lower == "subscribe":
            value = topic
        elif lower == "assign" or (lower.startswith(("starting", "ending")) and value.startswith("{")):
            value = json.dumps({topic: _by_topic(name, value).get(topic, {})})
        options[name] = value
    return side._replace(options=options)


def _by_topic(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"side.options.{name} must be JSON by topic, not {value!r}")
    return found


def run(spark: SparkSession, config: ProfileConfig) -> list[dict[str, Any]]:
    """Return the statistics of each topic. Raises ConfigError, ArchiveError or KafkaException."""
    archives = [] if config.side.directory is None else [config.side.directory]
    with report_missing_files(*archives):
        return [profile(spark, config, topic) for topic in topics_of(config.side)]


def profile(spark: SparkSession, config: ProfileConfig, topic: str) -> dict[str, Any]:
    """Return the statistics of one topic, as report/profile_statistics.py defines them, and its groups."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    side = select_topic(config.side, topic)
    now_ms = int(time.time() * 1000)
    records = profile_columns(side.load(spark), sort=side.format == "archive")
    sketched = Observation("sketches")
    counted = (
        records.observe(sketched, *sketches(config.top))
        .groupBy("partition", f.floor(f.col("time_ms") / 60_000).alias("minute"), "timestampType")
        .agg(*counts(now_ms))
        .persist()
    )
    try:
        partitions = counted.groupBy("partition").agg(*_merge_counts()).orderBy("partition").collect()
        types = counted.groupBy("timestampType").agg(f.sum("records").alias("records")).collect()
        step_s = stats.step_s(
            [(row.first_drawn_ms, row.last_drawn_ms) for row in partitions if row.first_drawn_ms is not None]
        )
        rates = (
            counted.where("first_ms IS NOT NULL")
            .groupBy(
                f.expr(f"if({IN_PLOT_RANGE}, floor(minute * 60 / {step_s}) * {step_s}, NULL)").alias(
                    "start_s"
                )
            )
            .agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
            .orderBy("start_s")
            .collect()
        )
    finally:
        counted.unpersist()
    found = stats.profile_statistics(
        topic=topic,
        side=side.name,
        now_ms=now_ms,
        sketched=sketched.get if partitions else {},
        partitions=[row.asDict() for row in partitions],
        types={row.timestampType: row.records for row in types},
        rates=[(row.start_s, row.records, row.bytes) for row in rates],
        step_s=step_s,
        quantiles=QUANTILES,
        top=config.top,
    )
    found["groups"] = _groups(config, topic)
    return found


def profile_columns(records: DataFrame, *, sort: bool) -> DataFrame:
    """Select the columns that a profile needs, in offset order within each task.

    `sort` is required for an archive, because its files are split by date and not by offset.
    """
    from pyspark.sql import functions as f

    if sort:
        records = records.repartition("partition").sortWithinPartitions("partition", "offset")
    selected = records.selectExpr(
        "partition",
        "offset",
        "unix_millis(timestamp) AS time_ms",
        "timestampType",
        "length(key) AS key_size",
        "length(value) AS value_size",
        # For a record without headers, some sources return null and others return an empty array.
        "coalesce(aggregate(headers, 0L, (sum, h) -> sum + octet_length(h.key) + "
        "coalesce(length(h.value), 0)), 0) AS headers_size",
        "to_json(array_sort(array_distinct(transform(headers, h -> h.key)))) AS names",
        f"CASE WHEN length(key) <= {KEY_BYTES} THEN hex(key) "
        "WHEN key IS NOT NULL THEN concat('#', hex(xxhash64(key))) END AS key_hex",
        "key",
        f"if(length(value) <= {SAMPLE_BYTES}, value, NULL) AS sample",
        f"{KIND} AS kind",
        f"if({FRAMED}, conv(hex(substring(value, 2, 4)), 16, 10), NULL) AS schema_id",
    )
    behind: Any = f.arrow_udf(of_arrow, "bigint")
    return selected.withColumn("behind_ms", behind("partition", "offset", "time_ms"))


FRAMED: Final = "(length(value) >= 5 AND substring(value, 1, 1) = X'00')"
"""A condition for Confluent's framing, which is a zero byte and a schema id of four bytes."""
_TEXT: Final = "CAST(value AS STRING)"
KIND: Final = f"""CASE
    WHEN value IS NULL THEN '{stats.TOMBSTONE}'
    WHEN length(value) = 0 THEN '{stats.EMPTY}'
    WHEN {FRAMED} THEN '{stats.FRAMED}'
    WHEN NOT is_valid_utf8({_TEXT}) THEN '{stats.BINARY}'
    WHEN {_TEXT} RLIKE r'\\A\\s*[{{\\[]' AND get_json_object({_TEXT}, '$') IS NOT NULL THEN '{stats.JSON}'
    WHEN {_TEXT} RLIKE r'[\\x00-\\x08\\x0e-\\x1f]' THEN '{stats.BINARY}'
    ELSE '{stats.TEXT}' END"""


def sketches(top: int) -> Sequence[Column]:
    """Return the aggregates over all records, with the names that report/profile_statistics.py uses."""
    from pyspark.sql import functions as f

    quantiles = f"array({', '.join(map(str, QUANTILES))})"
    expressions = {
        "records": "count(1)",
        "keys_null": "count_if(key IS NULL)",
        # The sketch ignores empty keys.
        "keys_empty": "count_if(length(key) = 0)",
        "keys_distinct": "hll_sketch_estimate(hll_sketch_agg(key, 14))",
        # Request one more item, because the result includes null for records without a key.
        "keys_top": f"approx_top_k(key_hex, {top + 1}, {TRACKED})",
        "names_top": f"approx_top_k(names, {top * 5}, {TRACKED})",
        "schema_ids_top": f"approx_top_k(schema_id, {top + 1}, {TRACKED})",
        "behind_quantiles": f"percentile_approx(if(behind_ms > 0, behind_ms, NULL), {quantiles}, 1000)",
        "sample": f"max_by(sample, if(kind = '{stats.JSON}' AND sample IS NOT NULL, "
        f"xxhash64(partition, offset), NULL), {SAMPLE})",
        **{f"kind_{kind}": f"count_if(kind = '{kind}')" for kind in stats.KINDS},
    }
    for name in SIZES:
        expressions[f"{name}_quantiles"] = f"percentile_approx({name}_size, {quantiles}, 1000)"
        expressions[f"{name}_bytes"] = f"coalesce(sum({name}_size), 0)"
    for name in ("key", "value"):
        for power in range(stats.SIZE_CLASSES):
            low, high = stats.size_class(power)
            upper = "" if high is None else f" AND {name}_size < {high}"
            expressions[f"{name}_class_{power}"] = f"count_if({name}_size >= {low}{upper})"
    return [f.expr(expression).alias(name) for name, expression in expressions.items()]


def counts(now_ms: int) -> Sequence[Column]:
    """Return the aggregates for each partition, minute and timestamp type."""
    from pyspark.sql import functions as f

    timed = "if(time_ms = -1, NULL, time_ms)"
    expressions = {
        "records": "count(1)",
        "bytes": "sum(coalesce(key_size, 0) + coalesce(value_size, 0) + coalesce(headers_size, 0))",
        "tombstones": f"count_if(kind = '{stats.TOMBSTONE}')",
        "first_offset": "min(offset)",
        "last_offset": "max(offset)",
        "first_ms": f"min({timed})",
        "last_ms": f"max({timed})",
        "out_of_order": "count_if(behind_ms > 0)",
        "furthest_behind_ms": "max(behind_ms)",
        "from_the_future": f"count_if(time_ms > {now_ms})",
    }
    return [f.expr(expression).alias(name) for name, expression in expressions.items()]


IN_PLOT_RANGE: Final = f"(minute >= {FIRST_MS // 60_000} AND minute < {END_MS // 60_000})"
"""A condition for the minutes that a plot over time can show."""


def _merge_counts() -> Sequence[Column]:
    """Return the aggregates that merge the counts of several minutes."""
    from pyspark.sql import functions as f

    least, most = ("first_offset", "first_ms"), ("last_offset", "last_ms", "furthest_behind_ms")
    sums = ("records", "bytes", "tombstones", "out_of_order", "from_the_future")
    return [
        *[f.sum(name).alias(name) for name in sums],
        *[f.min(name).alias(name) for name in least],
        *[f.max(name).alias(name) for name in most],
        f.expr(f"min(if({IN_PLOT_RANGE}, first_ms, NULL))").alias("first_drawn_ms"),
        f.expr(f"max(if({IN_PLOT_RANGE}, last_ms, NULL))").alias("last_drawn_ms"),
    ]


def _groups(config: ProfileConfig, topic: str) -> list[dict[str, Any]] | None:
    if config.side.format != "kafka" or not config.groups:
        return None
    from kwire.pipeline.report.lag import lags

    return [
        {"group": one.group, "state": one.state, "lag": one.total, "partitions": one.partitions}
        for one in lags(config.client, topic)
    ]


def _check_spark_version() -> None:
    """Raise MissingDependencyError if Spark lacks aggregates of this job."""
    from pyspark import __version__

    if tuple(map(int, __version__.split(".")[:2])) < MIN_SPARK:
        raise MissingDependencyError(
            f"the job profile needs Spark 4.2 or newer, and this is Spark {__version__}: run it in another "
            f"environment, with pip install 'kwire[spark]' 'pyspark>=4.2'"
        )


def command(config: JobConfig, master: str | None) -> int:
    wanted = ProfileConfig.of(config)
    _check_spark_version()
    from kwire.pipeline.session import session

    with session("kwire profile", master=master, needs_kafka=wanted.side.format == "kafka") as spark:
        found = run(spark, wanted)
    write_text(json.dumps({"topics": found}, indent=2, ensure_ascii=False) + "\n", wanted.statistics_path)
    write(page_of(found), wanted.report)
    for one in found:
        partitions = plural(len(one["partitions"]), "partition")
        print(f"{one['topic']}: {plural(one['records'], 'record')} in {partitions}")
    print(f"wrote {wanted.report} and {wanted.statistics_path}")
    return CLEAN
