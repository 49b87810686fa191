"""The job `audit`: compare the records of two sides, and report missing, extra and different records.

    [audit]
    window = "1 hour"
    offsets = true                 # whether a record must have the same offset on both sides
    suffix = ""                    # the suffix that topic names have on the right side
    report = "audit.html"          # an HTML page with a plot of the differences; none if missing
    [left]
    format = "kafka"               # or kwire (a data directory), or archive
    [left.options]
    "kafka.bootstrap.servers" = "127.0.0.1:9092"
    subscribe = "flights"
    [right]
    format = "archive"
    directory = "/srv/archive"

For each topic, partition and time window, the job counts the records and sums up a 64-bit hash of each
record. The hash covers key, value, headers and timestamp, and optionally the offset. The hashes of null and
empty differ. The job treats windows with equal counts and sums as equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kwire.pipeline import config as statuses
from kwire.pipeline.archive.reading import report_missing_files
from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.intervals import MAX_INTERVAL_MS, UNIT_MS
from kwire.pipeline.report.audit_page import DIFFERENT, EXTRA, MISSING, SAME, Window, page_of
from kwire.pipeline.report.page import write
from kwire.pipeline.report.times import minute
from kwire.pipeline.sides import Side
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEY: Final = ("topic", "partition", "window_ms")
_PART: Final = rf"(\d+)\s+({'|'.join(UNIT_MS)})s?"
_LENGTH: Final = re.compile(rf"(?:interval\s+)?{_PART}(?:\s+{_PART})*", re.IGNORECASE)


class AuditConfig(NamedTuple):
    """The two sides, and how to compare them."""

    left: Side
    right: Side
    window: str
    offsets: bool
    suffix: str
    report: Path | None = None

    @classmethod
    def of(cls, config: JobConfig) -> AuditConfig:
        """Read the tables of the job. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("audit")
        report = table.text("report", "")
        found = cls(
            Side.of(config, "left"),
            Side.of(config, "right"),
            _checked_window(table.text("window", "1 hour")),
            table.flag("offsets", True),
            table.text("suffix", ""),
            Path(report) if report else None,
        )
        table.check_unknown_keys()
        return found


def _checked_window(text: str) -> str:
    """Return the length of a window unchanged. Raises ConfigError if it is not a positive interval."""
    if _LENGTH.fullmatch(text.strip()) is None:
        raise ConfigError(f'audit.window must be an interval like "1 hour" or "7 days", not {text!r}')
    parts = re.findall(_PART, text, re.IGNORECASE)
    if not 0 < sum(int(count) * UNIT_MS[unit.lower()] for count, unit in parts) <= MAX_INTERVAL_MS:
        raise ConfigError(f"audit.window must be positive and at most 10,000 years, not {text!r}")
    return text


class Difference(NamedTuple):
    """A difference between the sides in one time window of a partition."""

    topic: str
    partition: int
    window_ms: int
    """The start of the window, in ms since 1970."""
    verdict: str
    left_records: int
    right_records: int
    left_offsets: tuple[int, int] | None
    """The first and the last offset; None if there are no records."""
    right_offsets: tuple[int, int] | None

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} {minute(self.window_ms)}: {self.verdict}; "
            f"left {plural(self.left_records, 'record')} {_span(self.left_offsets)}, "
            f"right {self.right_records} {_span(self.right_offsets)}"
        )


def _span(offsets: tuple[int, int] | None) -> str:
    return "" if offsets is None else f"({offsets[0]} to {offsets[1]})"


class Outcome(NamedTuple):
    """The result of an audit."""

    records: int
    """The number of records on the left side."""
    windows: int
    differences: Sequence[Difference]
    all_windows: Sequence[Window] = ()
    """All windows, including equal ones, for the report."""

    @property
    def clean(self) -> bool:
        return not self.differences


def run(spark: SparkSession, config: AuditConfig) -> Outcome:
    """Load and compare the two sides. Raises ArchiveError if an archive cannot be read."""
    from pyspark.sql import functions as f

    left = summed(config.left.load(spark), config)
    right = config.right.load(spark)
    if config.suffix:
        cut = f.length("topic") - f.lit(len(config.suffix))
        right = right.where(f.col("topic").endswith(config.suffix)).withColumn(
            "topic", f.col("topic").substr(f.lit(1), cut)
        )
    both = left.alias("l").join(summed(right, config).alias("r"), list(KEY), "full_outer")
    joined = both.select(
        *KEY,
        *[f.col(f"{side}.{name}").alias(f"{side}_{name}") for side in "lr" for name in SUMS],
    )
    archives = [side.directory for side in (config.left, config.right) if side.directory is not None]
    with report_missing_files(*archives):
        rows = joined.collect()
    found = [difference for row in rows if (difference := _difference(row)) is not None]
    found.sort(key=lambda one: (one.topic, one.partition, one.window_ms))
    by_window = {(one.topic, one.partition, one.window_ms): one for one in found}
    windows = [_window(row, by_window.get((row.topic, row.partition, row.window_ms))) for row in rows]
    return Outcome(sum(row.l_records or 0 for row in rows), len(rows), found, windows)


SUMS: Final = ("records", "first", "last", "sum")
"""The number of records in a window, the first and the last offset, and the sum of the hashes."""


def summed(side: DataFrame, config: AuditConfig) -> DataFrame:
    """Return the aggregates SUMS of a side for each topic, partition and window."""
    from pyspark.sql import functions as f

    content = [_shape(), f.col("key"), f.col("value"), f.col("headers"), f.unix_micros("timestamp")]
    if config.offsets:
        content.append(f.col("offset"))
    # Return the start as a number, because Spark cannot return timestamps after the year 9999.
    start = f.window("timestamp", config.window).getField("start")
    return side.groupBy("topic", "partition", f.unix_millis(start).alias("window_ms")).agg(
        f.count("*").alias("records"),
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.sum(f.xxhash64(*content).cast("decimal(38,0)")).alias("sum"),
    )


def _shape() -> Column:
    """Return an array with the lengths of key, value and headers (-1 for null), and the number of headers.

    The array is part of the hash, because Spark's hash function ignores nulls and column boundaries. Missing
    headers count as 0 headers, because some sources return null for them and others return an empty array.
    """
    from pyspark.sql import functions as f

    length = "coalesce(octet_length({}), -1)"
    headers = "coalesce(headers, array())"
    own = f"array({length.format('key')}, {length.format('value')}, size({headers}))"
    each = f"array({length.format('h.key')}, {length.format('h.value')})"
    return f.expr(f"concat({own}, flatten(transform({headers}, h -> {each})))")


def _difference(row: Any) -> Difference | None:
    if (row.l_records, row.l_sum) == (row.r_records, row.r_sum):
        return None
    left, right = row.l_records or 0, row.r_records or 0
    verdict = MISSING if right < left else EXTRA if right > left else DIFFERENT
    return Difference(
        row.topic,
        row.partition,
        row.window_ms,
        verdict,
        left,
        right,
        (row.l_first, row.l_last) if left else None,
        (row.r_first, row.r_last) if right else None,
    )


def _window(row: Any, difference: Difference | None) -> Window:
    return Window(
        row.topic,
        row.partition,
        row.window_ms,
        SAME if difference is None else difference.verdict,
        row.l_records or 0,
        row.r_records or 0,
        "" if difference is None else str(difference),
    )


def command(config: JobConfig, master: str | None) -> int:
    from kwire.pipeline.session import session

    wanted = AuditConfig.of(config)
    needs_kafka = "kafka" in (wanted.left.format, wanted.right.format)
    with session("kwire audit", master=master, needs_kafka=needs_kafka) as spark:
        outcome = run(spark, wanted)
    if wanted.report is not None:
        names = (wanted.left.name, wanted.right.name)
        write(page_of(*names, wanted.window, outcome.all_windows), wanted.report)
    for difference in outcome.differences:
        print(difference)
    if outcome.clean:
        compared = f"{plural(outcome.records, 'record')} in {plural(outcome.windows, 'window')}"
        print(f"clean: both sides have the same {compared}")
        return statuses.CLEAN
    print(f"{len(outcome.differences)} of {plural(outcome.windows, 'window')} differ")
    return statuses.DIFFERENT
