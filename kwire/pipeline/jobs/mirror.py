"""The job `mirror`: copy topics and consumer group offsets to another cluster, each record exactly once.

    [input]
    format = "kafka"               # or kwire: a data directory
    [input.options]
    "kafka.bootstrap.servers" = "east:9092"
    subscribe = "flights,weather"

    [mirror]
    job = "east-to-west"           # part of the transactional ids, and the owner in the offset maps
    checkpoint = "/srv/mirror"
    trigger = "availableNow"       # or an interval: "10 seconds"
    prefix = ""                    # added to the topic names in the target
    suffix = ""
    groups = ".*"                  # a pattern of the groups whose offsets are translated; "" for none
    groups_seconds = 30            # interval of the translation, with an interval as the trigger
    move_back = false              # whether to set a group's offset to a lower one than it has in the target
    copy_settings = "cleanup.policy,retention.ms,…"
    [mirror.client]                # the target
    "bootstrap.servers" = "west:9092"
    [mirror.source]                # more client settings for the source
    [mirror.settings]              # configs of topics that are created in the target

The end of the offset map in the target is the job's progress, because each transaction also writes an entry
to the map. Spark's checkpoint determines what to read next. A repeated micro-batch skips the offsets in the
map. So each record arrives exactly once after any crash, and the checkpoint may be lost.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from kwire.pipeline.client_settings import input_client, librdkafka_settings
from kwire.pipeline.config import AVAILABLE_NOW, CLEAN, ConfigError, Input, JobConfig
from kwire.pipeline.delivery import Target
from kwire.pipeline.mirror.groups import COMMITTED, GroupOffsetSync, TranslatedOffset
from kwire.pipeline.mirror.micro_batches import (
    COLUMNS,
    RESULT,
    PartitionPlan,
    PartitionResult,
    checkpoint_ranges,
    deliver_batches,
    deliver_part,
)
from kwire.pipeline.mirror.source import Source, end_offsets, named_topics, source_of
from kwire.pipeline.mirror.targets import Progress, TargetTopic, prepare
from kwire.pipeline.offset_map import DeliveryError
from kwire.pipeline.origin import internal_topics
from kwire.pipeline.sides import split_names
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

COPIED: Final = (
    "cleanup.policy,compression.type,delete.retention.ms,max.compaction.lag.ms,max.message.bytes,"
    "message.timestamp.after.max.ms,min.cleanable.dirty.ratio,"
    "min.compaction.lag.ms,retention.bytes,retention.ms,segment.bytes,segment.ms"
)
"""Topic configs that the job copies to the target by default. They affect retention and record content."""
DEFAULTS: Final = {
    "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed",
    "maxOffsetsPerTrigger": "1000000",
}
"""Default options of the source. The limit bounds how much a repeated micro-batch reads again."""
DIVIDING: Final = ("minpartitions", "maxrecordsperpartition")
SETTINGS: Final = {
    # The number of rows that a task has in memory as columns, in addition to the transaction to send.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}
CLAIM: Final = "kwire-mirror.json"
THREADS: Final = 8


class MirrorConfig(NamedTuple):
    """The tables [input] and [mirror]."""

    input: Input
    job: str
    checkpoint: Path
    trigger: str
    prefix: str
    suffix: str
    groups: str
    groups_seconds: int
    move_back: bool
    copy_settings: tuple[str, ...]
    client: Mapping[str, str]
    source: Mapping[str, str]
    settings: Mapping[str, str]

    @classmethod
    def of(cls, config: JobConfig) -> MirrorConfig:
        """Read the tables of the job. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("mirror")
        input_ = config.input()
        found = cls(
            input=input_,
            job=table.text("job"),
            checkpoint=Path(table.text("checkpoint")),
            trigger=table.trigger(),
            prefix=table.text("prefix", ""),
            suffix=table.text("suffix", ""),
            groups=table.text("groups", ".*"),
            groups_seconds=table.number("groups_seconds", 30, least=1),
            move_back=table.flag("move_back", False),
            copy_settings=tuple(sorted(split_names(table.text("copy_settings", COPIED)))),
            client=librdkafka_settings("mirror.client", table.table("client").texts()),
            source=input_client(input_, "mirror.source", table.table("source").texts()),
            settings=table.table("settings").texts(),
        )
        table.check_unknown_keys()
        if "bootstrap.servers" not in found.client:
            raise ConfigError('mirror.client."bootstrap.servers" is missing: set it to the target cluster')
        if "/" in found.job:
            raise ConfigError(f"mirror.job must not contain a slash: {found.job!r}")
        internal = internal_topics(named_topics(input_))
        if internal:
            raise ConfigError(
                f"input.options selects {', '.join(internal)}, whose records describe the state of the "
                f"source cluster: remove the name"
            )
        dividing = [name for name in input_.options if name.lower() in DIVIDING]
        if dividing:
            raise ConfigError(
                f"input.options.{dividing[0]} splits partitions, but a mirror delivers records in order: "
                f"remove the option"
            )
        try:
            re.compile(found.groups)
        except re.error as error:
            raise ConfigError(f"mirror.groups must be a regular expression: {error}") from None
        return found

    def target_of(self, topic: str) -> str:
        """Return the name in the target cluster of a source topic."""
        return f"{self.prefix}{topic}{self.suffix}"


class MirroredPartition(NamedTuple):
    """The progress of a source partition."""

    topic: str
    """The source topic."""
    partition: int
    records: int
    """The number of records delivered in this run."""
    next_offset: int
    """The next source offset."""
    lag: int | None
    """The number of source offsets that are not mirrored yet; None if the source's end is unknown."""

    def __str__(self) -> str:
        lag = "" if self.lag is None else f", lag {self.lag}"
        records = plural(self.records, "record")
        return f"{self.topic}-{self.partition}: {records}, up to offset {self.next_offset}{lag}"


class Mirror:
    """The part of the mirror that runs on Spark's driver."""

    def __init__(self, config: MirrorConfig, source: Source | None = None) -> None:
        self.config = config
        self._source = source_of(config.input, config.source) if source is None else source
        self.progress: Progress = {}
        """The last map entries of the target's partitions, as of the last call of `prepare`."""
        self._origins: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self.done: dict[tuple[str, int], PartitionResult] = {}
        """The results of this run by source partition."""

    @property
    def topics(self) -> dict[str, str]:
        """The name of each topic in the target, by its name in the source."""
        return {topic: self.config.target_of(topic) for topic in self._counts}

    def prepare(self) -> None:
        """Look up the topics of source and target, and create missing topics in the target.

        Raises KafkaException, DeliveryError or SegmentsError.
        """
        config = self.config
        topics = self._source.topics()
        targets = internal_topics(map(config.target_of, topics))
        if targets:
            raise DeliveryError(
                f"{targets[0]} is an internal topic of the target: choose another prefix or suffix"
            )
        wanted = [
            TargetTopic(
                config.target_of(name),
                topic.partitions,
                topic.origin,
                {**self._source.settings(name, config.copy_settings), **config.settings},
            )
            for name, topic in topics.items()
        ]
        self.progress = prepare(config.client, config.job, wanted)
        self._origins = {name: str(topic.origin) for name, topic in topics.items()}
        self._counts = {name: topic.partitions for name, topic in topics.items()}

    def starting_offsets(self) -> str | None:
        """Return the value of Spark's option `startingOffsets` for a new checkpoint.

        A partition begins where its map ends. A partition without map entries begins at the configured
        offset. Returns None if no partition has map entries.
        """
        known = {
            (topic, partition): entry.end
            for topic, count in self._counts.items()
            for partition in range(count)
            if (entry := self.progress.get((self.config.target_of(topic), partition))) is not None
        }
        if not known:
            return None
        given = {name.lower(): value for name, value in self.config.input.options.items()}
        text = given.get("startingoffsets", "earliest")
        named = json.loads(text) if text.startswith("{") else {}
        default = -1 if text == "latest" else -2
        assigned = json.loads(given["assign"]) if "assign" in given else None
        return json.dumps(
            {
                topic: {
                    str(partition): known.get(
                        (topic, partition), named.get(topic, {}).get(str(partition), default)
                    )
                    for partition in range(count)
                    if assigned is None or partition in assigned[topic]
                }
                for topic, count in self._counts.items()
            }
        )

    def plan(self, batch_id: int) -> dict[tuple[str, int], PartitionPlan]:
        """Return the parts of a micro-batch, and create new topics and partitions in the target.

        Raises DeliveryError, KafkaException or SegmentsError.
        """
        found = checkpoint_ranges(self.config.checkpoint, batch_id)
        if any(partition >= self._counts.get(topic, 0) for topic, partition in found):
            self.prepare()
        config = self.config
        return {
            (topic, partition): PartitionPlan(
                Target(dict(config.client), config.target_of(topic), partition, config.job),
                self._origins[topic],
                span.start,
                span.end,
                span.is_new,
            )
            for (topic, partition), span in found.items()
        }

    def record_gaps(
        self, plan: Mapping[tuple[str, int], PartitionPlan], done: list[PartitionResult]
    ) -> list[PartitionResult]:
        """Write map entries for the partitions without records in a micro-batch, and return their results.

        `done` has the results of the partitions with records. Raises DeliveryError.
        """
        seen = [(one.topic, one.partition) for one in done]
        if len(set(seen)) < len(seen):
            raise DeliveryError(
                f"Spark split a partition, but a mirror delivers the records of a partition in order: "
                f"{sorted(seen)}; remove input options that split partitions"
            )
        left = {
            key: part
            for key, part in plan.items()
            if key not in seen and (part.is_new or part.start is None or part.start < part.end)
        }
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(lambda one: deliver_part(one[0], one[1], ()), left.items()))

    def process_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Deliver a micro-batch of the stream, and add its results to `done`."""
        plan = self.plan(batch_id)
        records = batch.select(*COLUMNS)
        if self.config.input.format == "kwire":
            # The segment source splits partitions into tasks. Spark's Kafka source does not.
            records = records.repartition(max(1, len(plan)), "topic", "partition").sortWithinPartitions(
                "topic", "partition", "offset"
            )
        rows = records.mapInArrow(partial(deliver_batches, plan), RESULT).collect()
        done = [PartitionResult(row.topic, row.partition, row.records, row.next_offset) for row in rows]
        for one in [*done, *self.record_gaps(plan, done)]:
            before = self.done.get((one.topic, one.partition))
            self.done[one.topic, one.partition] = one._replace(
                records=one.records + (before.records if before else 0)
            )

    def partition_progress(self) -> list[MirroredPartition]:
        """Return the progress and the lag of each partition with map entries. Raises KafkaException."""
        config = self.config
        partitions = [
            TopicPartition(topic, partition)
            for topic, count in self._counts.items()
            for partition in range(count)
        ]
        end_by_partition = (
            end_offsets(config.source, partitions) if "bootstrap.servers" in config.source else {}
        )
        found = []
        for source in partitions:
            key = source.topic, source.partition
            done = self.done.get(key)
            entry = self.progress.get((config.target_of(source.topic), source.partition))
            if done is None and entry is None:
                continue
            next_offset = done.next_offset if done is not None else entry.end if entry is not None else 0
            lag = max(0, end_by_partition[key] - next_offset) if key in end_by_partition else None
            found.append(MirroredPartition(*key, done.records if done is not None else 0, next_offset, lag))
        return found


def claim_checkpoint(config: MirrorConfig) -> bool:
    """Record the mirror in its checkpoint, and return whether the checkpoint was used before.

    Raises DeliveryError if the checkpoint belongs to another mirror or job.
    """
    mine = {
        "job": config.job,
        "input": config.input.format,
        "target": config.client["bootstrap.servers"],
        "prefix": config.prefix,
        "suffix": config.suffix,
    }
    path = config.checkpoint / CLAIM
    used = (config.checkpoint / "metadata").exists()
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        recorded = None
    except ValueError:
        raise DeliveryError(f"{path} is not valid JSON: is this the checkpoint of another program?") from None
    if recorded is None and used:
        raise DeliveryError(
            f"{config.checkpoint} is not the checkpoint of a mirror: choose another checkpoint"
        )
    if recorded is not None:
        for name in ("job", "input", "prefix", "suffix"):
            if recorded.get(name) != mine[name]:
                raise DeliveryError(
                    f"{config.checkpoint} is the checkpoint of another mirror, whose {name} is "
                    f"{recorded.get(name)!r}, not {mine[name]!r}: choose another checkpoint"
                )
    config.checkpoint.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(mine), encoding="utf-8")
    os.replace(unfinished, path)
    return used


def start(spark: SparkSession, mirror: Mirror) -> StreamingQuery:
    """Start the stream, and return its query. Raises KafkaException, DeliveryError or SegmentsError."""
    config = mirror.config
    used = claim_checkpoint(config)
    mirror.prepare()
    given = {name.lower() for name in config.input.options}
    defaults = {name: value for name, value in DEFAULTS.items() if name.lower() not in given}
    options = {**defaults, **config.input.options, "includeHeaders": "true"}
    known = None if used else mirror.starting_offsets()
    if known is not None:
        options = {name: value for name, value in options.items() if not name.lower().startswith("starting")}
        options["startingOffsets"] = known
    stream = spark.readStream.format(config.input.format).options(**options).load()
    writer = (
        stream.writeStream.foreachBatch(mirror.process_batch)
        .option("checkpointLocation", str(config.checkpoint))
        .queryName("mirror")
    )
    if config.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=config.trigger).start()


class Outcome(NamedTuple):
    """The progress of the mirror at the end of a run."""

    partitions: list[MirroredPartition]
    """How far each source partition is copied."""
    groups: list[TranslatedOffset]
    """The group offsets of the last translation. Empty if no groups are mirrored."""


def run(
    spark: SparkSession,
    config: MirrorConfig,
    *,
    on_synced: Callable[[list[TranslatedOffset]], object] = lambda _: None,
) -> Outcome:
    """Run the mirror until its stream ends. With `availableNow`, the stream ends at the current end offsets.

    `on_synced` gets the group offsets after each translation. Raises KafkaException, DeliveryError or
    SegmentsError.
    """
    mirror = Mirror(config)
    query = start(spark, mirror)
    groups = None
    if config.groups and "bootstrap.servers" in config.source:
        groups = GroupOffsetSync(
            config.source, config.client, config.job, config.groups, move_back=config.move_back
        )
    moved: list[TranslatedOffset] = []
    try:
        if config.trigger == AVAILABLE_NOW:
            query.awaitTermination()
        else:
            while not query.awaitTermination(config.groups_seconds):
                if groups is None:
                    continue
                try:
                    on_synced(groups.sync(mirror.topics))
                except KafkaException as error:
                    # Continue to mirror records. The next round translates the offsets again.
                    print(
                        f"mirror: groups not translated, will retry: {error.args[0].str()}",
                        file=sys.stderr,
                        flush=True,
                    )
        if groups is not None:
            moved = groups.sync(mirror.topics)
            on_synced(moved)
    finally:
        query.stop()
        if groups is not None:
            groups.close()
    return Outcome(mirror.partition_progress(), moved)


def command(config: JobConfig, master: str | None) -> int:
    from kwire.pipeline.session import session

    wanted = MirrorConfig.of(config)
    only_new = wanted.trigger != AVAILABLE_NOW

    def on_synced(moved: list[TranslatedOffset]) -> None:
        for one in moved:
            if one.verdict == COMMITTED or not only_new:
                print(one, flush=True)

    needs_kafka = wanted.input.format == "kafka"
    with session("kwire mirror", master=master, needs_kafka=needs_kafka, settings=SETTINGS) as spark:
        outcome = run(spark, wanted, on_synced=on_synced)
    for one in outcome.partitions:
        print(one)
    return CLEAN
