"""The job `windows`: write aggregates by event-time window and group to a compacted topic.

    [input]
    format = "kafka"               # or kwire (a data directory)
    [input.options]
    "kafka.bootstrap.servers" = "127.0.0.1:9092"
    subscribe = "flights"
    maxOffsetsPerTrigger = 100000  # the size of a micro-batch
    [windows]
    topic = "flights.hourly"       # created if it does not exist
    partitions = 4
    checkpoint = "/srv/hourly"
    event_time = ""                # a field of the JSON values; the record's timestamp if empty
    event_time_format = "iso"      # or epoch_ms, epoch_s
    id = ""                        # fields that identify an event; key, value and timestamp if empty
    group = "carrier"              # fields, with commas; a nested field with dots
    window = "1 hour"
    slide = ""                     # distance between windows, if it is not their length
    watermark = "1 day"            # how late an event may be
    ahead = ""                     # limit how far an event is ahead of its record's timestamp; none if empty
    emit = "update"                # changed windows after each micro-batch, or final: closed windows, once
    trigger = "availableNow"       # or an interval: "10 seconds"
    state = "rocksdb"              # or memory
    [windows.aggregates]
    flights = "count"
    mean_arrival_delay = "avg:arr_delay"
    cancelled = "nulls:dep_time"
    [windows.client]               # the output's cluster; the Java client's properties
    "bootstrap.servers" = "127.0.0.1:9092"

The key of a result is JSON with the window's start and the group. The value also has the window's end and the
aggregates. Each micro-batch sends the windows that it changed, so the last record of each key has the final
aggregates. After a crash, Spark repeats the micro-batch with the offsets, state and watermark in its
checkpoint. So the repeated micro-batch sends the same results with the same keys.

Events with the same `id` count once. Spark remembers an event until the watermark passes the event's time. An
event before the watermark is late and is dropped. The directory `counts` in the checkpoint has the numbers of
late, duplicate and non-JSON records in each micro-batch. A micro-batch has no counts if the driver was killed
between the end of the micro-batch and the write of the counts.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException

from kwire.pipeline.archive.jvm_admin import JvmAdmin
from kwire.pipeline.archive.origins import file_origins
from kwire.pipeline.checkpoint_topics import record_topics
from kwire.pipeline.client_settings import librdkafka_settings
from kwire.pipeline.config import CLEAN, ConfigError, Input, JobConfig
from kwire.pipeline.intervals import MAX_INTERVAL_MS, UNIT_MS
from kwire.pipeline.offset_map import TIMEOUT_SECONDS, DeliveryError
from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ADMIN: Final[Any] = confluent_kafka.admin  # its types are partial
FUNCTIONS: Final = ("count", "nulls", "sum", "avg", "min", "max")
FIRST_S: Final = -62_135_596_800
"""The beginning of the year 1 as a Unix timestamp."""
END_S: Final = 253_402_300_800
"""The end of the year 9999 as a Unix timestamp. Spark can add any interval to an earlier event time."""
ZONELESS: Final = r"^\s*[+]?\d{4,6}(-\d{1,2}(-\d{1,2}([T ](\d{1,2}(:\d{1,2}(:\d{1,2}([.]\d*)?)?)?)?)?)?)?\s*$"
"""A pattern for a date, or a date and a time, without a time zone."""
DATED: Final = r"^\s*[+]?\d{4,6}-"
"""A pattern for a leading date. Without this check, Spark would parse `now` or a time as a time of today."""
EVENT_TIMES: Final = {
    # Times without a time zone are in UTC, whatever the session's time zone is.
    "iso": f"CASE WHEN time_text RLIKE r'{ZONELESS}' THEN timestampdiff(MICROSECOND, "
    "TIMESTAMP_NTZ '1970-01-01 00:00:00', try_cast(time_text AS TIMESTAMP_NTZ)) "
    f"WHEN time_text RLIKE r'{DATED}' THEN unix_micros(try_cast(time_text AS TIMESTAMP)) END",
    "epoch_ms": f"CASE WHEN try_cast(time_text AS BIGINT) BETWEEN {FIRST_S}000 AND {END_S}000 "
    "THEN try_cast(time_text AS BIGINT) * 1000 END",
    "epoch_s": f"CASE WHEN try_cast(time_text AS DOUBLE) BETWEEN {FIRST_S} AND {END_S} "
    "THEN CAST(try_cast(time_text AS DOUBLE) * 1000000 AS BIGINT) END",
}
"""SQL expressions for an event time in microseconds since 1970; null if it is unreadable or too large."""
INTERVAL: Final = re.compile(rf"(\d+) ({'|'.join(UNIT_MS)})s?")
EPOCH_S: Final = -62_167_219_200
"""The beginning of the year 0 as a Unix timestamp. The job internally counts event times from this epoch,
because Spark's watermark starts at the epoch and would drop events before 1970 as late."""
WINDOW_START, WINDOW_END = "window_start", "window_end"
PLAN: Final = "windows.json"
COUNTS: Final = "counts"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Aggregate(NamedTuple):
    """An aggregate function of a window, and the field that it is applied to."""

    name: str
    function: str
    field: str
    """The name of the field; empty for a `count` of all records."""

    @classmethod
    def of(cls, name: str, text: str) -> Aggregate:
        """Parse `count` or `function:field`. Raises ConfigError if the text has neither form."""
        function, _, field = text.partition(":")
        if function not in FUNCTIONS or (not field and text != "count"):
            raise ConfigError(
                f"windows.aggregates.{name} must be count, or one of {', '.join(FUNCTIONS)} with a field, "
                f"like sum:distance, not {text!r}"
            )
        return cls(name, function, field)


class WindowsConfig(NamedTuple):
    """The tables [windows] and [input]."""

    input: Input
    topic: str
    partitions: int
    checkpoint: Path
    event_time: str
    event_time_format: str
    id: tuple[str, ...]
    group: tuple[str, ...]
    window: str
    slide: str
    watermark: str
    ahead: str
    emit: str
    trigger: str
    state: str
    aggregates: tuple[Aggregate, ...]
    client: Mapping[str, str]
    """The Java client's properties for the cluster of the output topic."""
    admin_client: Mapping[str, str]
    """The same for librdkafka."""

    @classmethod
    def of(cls, config: JobConfig) -> WindowsConfig:
        """Read the tables of the job. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("windows")
        aggregates = table.table("aggregates").texts()
        client = table.table("client").texts()
        found = cls(
            input=config.input(),
            topic=table.topic("topic"),
            partitions=table.number("partitions", 4, least=1),
            checkpoint=Path(table.text("checkpoint")),
            event_time=table.text("event_time", ""),
            event_time_format=table.text("event_time_format", "iso", one_of=tuple(EVENT_TIMES)),
            id=_split_fields(table.text("id", "")),
            group=_split_fields(table.text("group", "")),
            window=_interval("window", table.text("window", "1 hour"), least_ms=1),
            slide=_interval("slide", table.text("slide", ""), least_ms=1, empty=True),
            watermark=_interval("watermark", table.text("watermark", "1 day")),
            ahead=_interval("ahead", table.text("ahead", ""), empty=True),
            emit=table.text("emit", "update", one_of=("update", "final")),
            trigger=table.trigger(),
            state=table.text("state", "rocksdb", one_of=("rocksdb", "memory")),
            aggregates=tuple(Aggregate.of(name, text) for name, text in aggregates.items()),
            client=client,
            admin_client=librdkafka_settings("windows.client", client),
        )
        table.check_unknown_keys()
        if found.slide and interval_ms(found.slide) > interval_ms(found.window):
            raise ConfigError(
                f"windows.slide must be at most windows.window ({found.window}), not {found.slide}: "
                f"events in between would be in no window"
            )
        for name in (found.event_time, *found.fields):
            if "'" in name and '"' in name:
                raise ConfigError(f"a field's name must not contain both kinds of quotes: {name}")
        if not found.aggregates:
            raise ConfigError('windows.aggregates is empty: add an aggregate, like flights = "count"')
        if "bootstrap.servers" not in found.client:
            raise ConfigError(
                'windows.client."bootstrap.servers" is missing: set it to the cluster of the results'
            )
        names = [WINDOW_START, WINDOW_END, *found.group, *(one.name for one in found.aggregates)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"a result would have two fields {twice[0]!r}: rename the aggregate")
        return found

    @property
    def fields(self) -> list[str]:
        """The names of the value fields in `group`, `id` and `aggregates`."""
        named = [*self.group, *self.id, *(one.field for one in self.aggregates)]
        return sorted({field for field in named if field})

    def plan(self) -> dict[str, Any]:
        """Return the settings that must not change while a checkpoint is in use."""
        return {
            "topic": self.topic,
            "epoch": EPOCH_S,
            "event_time": [self.event_time, self.event_time_format] if self.event_time else [],
            "id": list(self.id),
            "group": list(self.group),
            "window": [self.window, self.slide or self.window],
            "watermark": self.watermark,
            "emit": self.emit,
            "state": self.state,
            "aggregates": {one.name: f"{one.function}:{one.field}" for one in self.aggregates},
        }


def _split_fields(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _interval(key: str, text: str, *, least_ms: int = 0, empty: bool = False) -> str:
    if empty and not text:
        return text
    if INTERVAL.fullmatch(text) is None:
        raise ConfigError(f'windows.{key} must be an interval like "1 hour" or "90 seconds", not {text!r}')
    if not least_ms <= interval_ms(text) <= MAX_INTERVAL_MS:
        least = "positive and " if least_ms else ""
        raise ConfigError(f"windows.{key} must be {least}at most 10,000 years, not {text!r}")
    return text


def interval_ms(text: str) -> int:
    """Return the length of an interval in milliseconds."""
    found = INTERVAL.fullmatch(text)
    assert found is not None, "intervals are validated when they are read"
    return int(found[1]) * UNIT_MS[found[2]]


class Counts(NamedTuple):
    """The numbers of records and results of one or more micro-batches."""

    records: int = 0
    not_json: int = 0
    without_time: int = 0
    duplicates: int = 0
    late: int = 0
    results: int = 0
    """The number of results that were written to the topic."""

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Counts:
        """Return the counts of the micro-batch that a progress report of Spark describes."""
        observed = progress.get("observedMetrics", {})
        read, sent = observed.get("read", {}), observed.get("sent", {})
        operators: Sequence[Mapping[str, Any]] = progress.get("stateOperators", ())
        return cls(
            records=read.get("records", 0),
            not_json=read.get("not_json", 0),
            without_time=read.get("without_time", 0),
            duplicates=sum(
                operator.get("customMetrics", {}).get("numDroppedDuplicateRows", 0) for operator in operators
            ),
            # Only the deduplication drops late records, because it is the first stateful operator.
            late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
            results=sent.get("results", 0),
        )


def record_counts(checkpoint: Path, progress: Mapping[str, Any]) -> None:
    """Write the counts of a micro-batch, and replace its earlier counts if the micro-batch was repeated."""
    if not progress.get("stateOperators"):
        return  # The trigger found no new records.
    directory = checkpoint / COUNTS
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{progress['batchId']}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(Counts.of(progress)._asdict()), encoding="utf-8")
    os.replace(unfinished, path)


class Total(NamedTuple):
    """The sum of the counts of all micro-batches of a checkpoint."""

    counts: Counts
    micro_batches: int
    """The number of completed micro-batches."""
    uncounted: list[int]
    """The numbers of completed micro-batches whose counts are missing, because the driver was killed."""


def total(checkpoint: Path) -> Total:
    """Sum up the counts in a checkpoint. Raises ConfigError if a file is malformed."""
    recorded: dict[int, Counts] = {}
    for path in (checkpoint / COUNTS).glob("*.json"):
        try:
            recorded[int(path.stem)] = Counts(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} does not contain counts: {error}") from None
    done = {int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()}
    # Spark deletes its files about old micro-batches, but the files with the counts remain.
    first = min(done, default=0)
    completed = done | {number for number in recorded if number < first}
    return Total(
        sum((counts for number, counts in recorded.items() if number in completed), Counts()),
        len(completed),
        sorted(completed - recorded.keys()),
    )


def claim_checkpoint(config: WindowsConfig) -> None:
    """Record the configuration in a new checkpoint.

    Raises ConfigError if the checkpoint belongs to another job or was used with another configuration.
    """
    path = config.checkpoint / PLAN
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(key for key, value in config.plan().items() if there.get(key) != value)
        if changed:
            raise ConfigError(
                f"the checkpoint {config.checkpoint} was written with a different {', '.join(changed)}: "
                f"choose another checkpoint, and another or an empty topic"
            )
        return
    if (config.checkpoint / "metadata").exists():
        raise ConfigError(f"the checkpoint {config.checkpoint} belongs to another job: choose another one")
    config.checkpoint.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(config.plan(), indent=1), encoding="utf-8")
    os.replace(unfinished, path)


def create_compacted_topic(client: Mapping[str, str], topic: str, partitions: int) -> None:
    """Create a compacted topic unless the topic exists.

    Raises DeliveryError if an existing topic is not compacted, or KafkaException.
    """
    admin = ADMIN.AdminClient(dict(client))
    new = ADMIN.NewTopic(topic, num_partitions=partitions, config={"cleanup.policy": "compact"})
    try:
        admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        resource = ADMIN.ConfigResource(ADMIN.ConfigResource.Type.TOPIC, topic)
        [described] = admin.describe_configs([resource]).values()
        policy = described.result(TIMEOUT_SECONDS)["cleanup.policy"].value
        if "compact" not in policy.split(","):
            raise DeliveryError(
                f"topic {topic} is not compacted (cleanup.policy is {policy}), so it would keep every "
                f"version of each window: choose another topic, or change its cleanup.policy"
            ) from None


def check_output_topic(config: WindowsConfig, found: Mapping[str, Origin]) -> None:
    """Raise ConfigError if the output topic is also an input topic. Raises KafkaException.

    `found` has the origins of the input topics.
    """
    if config.topic not in found:
        return
    admin = ADMIN.AdminClient(dict(config.admin_client))
    cluster = str(admin.list_topics(config.topic, TIMEOUT_SECONDS).cluster_id)
    if found[config.topic].cluster in (cluster, UNKNOWN):
        raise ConfigError(
            f"windows.topic {config.topic} is also a topic of the input, so the job would count its results "
            f"as events: choose another topic"
        )


def results(stream: DataFrame, config: WindowsConfig) -> DataFrame:
    """Return the stream of results, with the columns key and value, for a stream of records."""
    from pyspark.sql import functions as f

    columns = {name: f"field_{number}" for number, name in enumerate(config.fields)}
    text = "CAST(value AS STRING)"
    parsed = stream.select(
        "key",
        "value",
        "timestamp",
        f.expr(f"try_parse_json(if(is_valid_utf8({text}), {text}, NULL))").alias("json"),
    )
    read = (
        parsed.select(
            "key",
            "value",
            "timestamp",
            f.expr("coalesce(schema_of_variant(json) LIKE 'OBJECT%', false)").alias("is_json"),
            *[_text(name).alias(column) for name, column in columns.items()],
            (_text(config.event_time) if config.event_time else f.lit(None)).alias("time_text"),
        )
        .select(
            "is_json",
            *columns.values(),
            f.expr(_event_time(config)).alias("event_time"),
            f.expr(_identity([columns[name] for name in config.id])).alias("identity"),
        )
        .observe(
            "read",
            f.count(f.lit(1)).alias("records"),
            f.expr("count_if(NOT is_json)").alias("not_json"),
            f.expr("count_if(is_json AND event_time IS NULL)").alias("without_time"),
        )
    )
    once = (
        read.where("is_json AND event_time IS NOT NULL")
        .withWatermark("event_time", config.watermark)
        .dropDuplicatesWithinWatermark(["identity"])
    )
    slide = config.slide or config.window
    # Align windows with 1970-01-01. The internal epoch EPOCH_S would change Spark's alignment.
    first = f"{-EPOCH_S * 1000 % interval_ms(slide)} milliseconds"
    window = f.window("event_time", config.window, slide, first).alias("window")
    figures = once.groupBy(window, *[columns[name] for name in config.group]).agg(
        *[
            _figure(one.function, columns.get(one.field)).alias(f"figure_{number}")
            for number, one in enumerate(config.aggregates)
        ]
    )
    start, end = [
        f.expr(f"timestamp_micros(unix_micros(window.{edge}) + {EPOCH_S}000000L)").alias(name)
        for edge, name in (("start", WINDOW_START), ("end", WINDOW_END))
    ]
    group = [f.col(columns[name]).alias(name) for name in config.group]
    values = [f.col(f"figure_{number}").alias(one.name) for number, one in enumerate(config.aggregates)]
    # Format times in UTC, whatever the session's time zone is.
    keep = {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": ISO}
    return figures.select(
        f.to_json(f.struct(start, *group), keep).alias("key"),
        f.to_json(f.struct(start, end, *group, *values), keep).alias("value"),
    ).observe("sent", f.count(f.lit(1)).alias("results"))


ISO: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def _text(field: str) -> Column:
    """Return a field of the JSON value as text; null if the field is missing."""
    from pyspark.sql import functions as f

    return f.try_variant_get("json", path_of(field), "string")


def path_of(field: str) -> str:
    """Convert a field name with dots to a path for Spark's variant functions."""
    names = field.split(".")
    return "$" + "".join(f'["{name}"]' if "'" in name else f"['{name}']" for name in names)


def _event_time(config: WindowsConfig) -> str:
    """Return an expression for the event time since EPOCH_S; null if it is unreadable or out of range."""
    micros = EVENT_TIMES[config.event_time_format] if config.event_time else "unix_micros(timestamp)"
    inside = f"micros >= {FIRST_S}000000L AND micros < {END_S}000000L"
    if config.ahead:
        inside += f" AND micros <= unix_micros(timestamp) + {interval_ms(config.ahead)}000L"
    # `transform` binds the expression to a name, so that Spark evaluates it once instead of three times.
    since = f"timestamp_micros(micros - {EPOCH_S}000000L)"
    return f"transform(array({micros}), micros -> if({inside}, {since}, NULL))[0]"


def _identity(columns: Sequence[str]) -> str:
    """Return an expression for the hash that identifies an event.

    The hash covers `columns`, the fields of `id`. If `id` is empty or a field is missing, the hash covers
    key, value and timestamp.
    """
    whole = "to_json(struct(hex(key), hex(value), unix_micros(timestamp)))"
    if columns:
        known = " AND ".join(f"{column} IS NOT NULL" for column in columns)
        whole = f"if({known}, to_json(array({', '.join(columns)})), {whole})"
    return f"unhex(sha2({whole}, 256))"


def _figure(function: str, column: str | None) -> Column:
    from pyspark.sql import functions as f

    field = f.lit(1) if column is None else f.col(column)
    number = field.try_cast("double")
    match function:
        case "count":
            return f.count(field)
        case "nulls":
            return f.count_if(field.isNull())
        case "sum":
            return f.sum(number)
        case "avg":
            return f.avg(number)
        case "min":
            return f.min(number)
    return f.max(number)


def start(spark: SparkSession, config: WindowsConfig) -> StreamingQuery:
    """Start the stream, and return its query.

    Raises ConfigError, DeliveryError, KafkaException, ArchiveError or SegmentsError.
    """
    claim_checkpoint(config)
    create_compacted_topic(config.admin_client, config.topic, config.partitions)
    options = {"startingOffsets": "earliest", **config.input.options}
    lookup = file_origins(options) if config.input.format == "kwire" else JvmAdmin(spark, options).origins
    found = lookup(None)
    check_output_topic(config, found)
    record_topics(config.checkpoint, found)
    stream = spark.readStream.format(config.input.format).options(**options).load()
    writer = (
        results(stream, config)
        .writeStream.format("kafka")
        .outputMode("update" if config.emit == "update" else "append")
        .options(**{f"kafka.{name}": value for name, value in config.client.items()})
        .option("topic", config.topic)
        .option("checkpointLocation", str(config.checkpoint))
        .queryName("windows")
    )
    if config.trigger == "availableNow":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=config.trigger).start()


def run(spark: SparkSession, config: WindowsConfig) -> Total:
    """Run until the stream ends, and return the counts of all micro-batches of the checkpoint."""
    from pyspark.sql.streaming import StreamingQueryListener

    ended = threading.Event()

    class CountsListener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            record_counts(config.checkpoint, json.loads(event.progress.json))

        def onQueryTerminated(self, event: Any) -> None:
            ended.set()

    listener = CountsListener()
    spark.streams.addListener(listener)
    try:
        start(spark, config).awaitTermination()
        ended.wait(TIMEOUT_SECONDS)
    finally:
        spark.streams.removeListener(listener)
    return total(config.checkpoint)


def command(config: JobConfig, master: str | None) -> int:
    from kwire.pipeline.session import session

    wanted = WindowsConfig.of(config)
    claim_checkpoint(wanted)  # Report a wrong checkpoint before Spark starts.
    settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if wanted.state == "rocksdb" else {}
    with session("kwire windows", master=master, settings=settings) as spark:
        found = run(spark, wanted)
    counts = found.counts
    print(
        f"{plural(found.micro_batches, 'micro-batch')} so far: {plural(counts.records, 'record')}, "
        f"{plural(counts.duplicates, 'duplicate')}, {counts.late} late, {counts.not_json} not JSON, "
        f"{counts.without_time} without event time; "
        f"{plural(counts.results, 'result')} written to {wanted.topic}"
    )
    if found.uncounted:
        print(f"micro-batches without counts, because the driver was killed after them: {found.uncounted}")
    return CLEAN
