"""The job `restore`: write an archive, or a part of it, to topics of a cluster or to a data directory.

[restore]
directory = "/srv/archive"
job = "restore-2026-01"            # a run with the same name continues where the previous run stopped
topics = "flights,weather"         # all topics if this is missing
start_offset = 0                   # also end_offset, start_ms and end_ms; ends are exclusive
offsets = "auto"                   # same, map, or auto: the same offsets if possible
suffix = ""                        # appended to topic names
transaction_records = 20000        # the maximum number of records in a transaction
[restore.client]
"bootstrap.servers" = "127.0.0.1:9092"
[restore.settings]                 # configs of topics that are created
"retention.ms" = -1

The job creates topics with unlimited retention unless `settings` limit it, because archived records are old.

The job can also write a data directory for a new broker of kwire or Apache Kafka. This preserves every offset
and gap:

[restore]
directory = "/srv/archive"
into_directory = "/var/lib/kafka"  # a new or empty directory; on the command line: --into-directory
segment_bytes = 1073741824
compression = "lz4"                # none, gzip, snappy, lz4, zstd
[restore.broker]
properties = "server.properties"   # of the broker that will use the directory; the other keys are optional
node_id = 1                        # without properties
cluster_id = "…"                   # random by default
standalone = true                  # the only voter of a dynamic quorum, as with kafka-storage
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kwire.pipeline.archive.manifest import Archive, ArchiveError, DataFile
from kwire.pipeline.archive.reading import RecordFilter, by_partition, end_of, is_dense, records
from kwire.pipeline.client_settings import librdkafka_settings
from kwire.pipeline.config import CLEAN, ConfigError, JobConfig, Table
from kwire.pipeline.delivery import (
    MAP_SUFFIX,
    TRANSACTION_RECORDS,
    DeliveryError,
    Outgoing,
    Target,
    deliver_same_offsets,
    deliver_with_map,
    end_offset,
    progress,
)
from kwire.pipeline.mirror.source import KafkaSource
from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.pipeline.restore.batches import Limits
from kwire.pipeline.restore.directory import (
    DirectoryConfig,
    Task,
    check_target,
    is_done,
    partition_ranges,
    restore,
)
from kwire.pipeline.restore.partition import RestoredLog
from kwire.pipeline.restore.preserved_offsets import PreservedOffsets
from kwire.pipeline.restore.selection import Selection, check_not_internal
from kwire.pipeline.sides import check_topics, split_names
from kwire.pipeline.topics import create
from kwire.wire.compression import Codec
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME, MAP, AUTO = "same", "map", "auto"
KEEP_FOREVER: Final = {"retention.ms": "-1"}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MIN_SEGMENT_BYTES: Final = 1 << 20
"""The smallest allowed segment size. It exceeds every batch, except for a batch with one larger record."""


class RestoreConfig(NamedTuple):
    """The settings in the table [restore] of a job's file, for a restore to topics."""

    directory: Path
    job: str
    wanted: RecordFilter
    offsets: str
    suffix: str
    client: Mapping[str, str]
    settings: Mapping[str, str]
    transaction_records: int

    @classmethod
    def of(cls, config: JobConfig) -> RestoreConfig:
        """Read the table [restore]. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("restore")
        found = cls(
            directory=Path(table.text("directory")),
            job=table.text("job"),
            wanted=_wanted(table),
            offsets=table.text("offsets", AUTO, one_of=(SAME, MAP, AUTO)),
            suffix=table.text("suffix", ""),
            client=librdkafka_settings("restore.client", table.table("client").texts()),
            settings={**KEEP_FOREVER, **table.table("settings").texts()},
            transaction_records=table.number("transaction_records", TRANSACTION_RECORDS, least=1),
        )
        table.check_unknown_keys()
        if "bootstrap.servers" not in found.client:
            raise ConfigError('restore.client."bootstrap.servers" is missing: set it to the target cluster')
        return found


def _wanted(table: Table) -> RecordFilter:
    """Read the part of the archive to restore. Raises ConfigError if a range is invalid or empty."""
    found = RecordFilter(
        split_names(table.text("topics", "")) or None,
        table.number("start_offset", 0),
        table.number("end_offset", 1 << 62),
        table.number("start_ms", -(1 << 62), least=-(1 << 62)),
        table.number("end_ms", 1 << 62, least=-(1 << 62)),
    )
    for start, end, key in (
        (found.start_offset, found.end_offset, "offset"),
        (found.start_ms, found.end_ms, "ms"),
    ):
        if start >= end:
            raise ConfigError(
                f"restore.end_{key} is exclusive and must be larger than start_{key} ({start}), not {end}"
            )
    return found


def directory_config(config: JobConfig) -> DirectoryConfig | None:
    """Read the configuration of a restore to a data directory.

    Returns None if the configuration is for a restore to topics. Raises ConfigError if a key is missing,
    invalid or unknown.
    """
    table = config.table("restore")
    into = table.text("into_directory", "")
    if not into:
        return None
    broker = table.table("broker")
    node_id = broker.number("node_id", -1, least=-1)
    found = DirectoryConfig(
        archive=Path(table.text("directory")),
        directory=Path(into).absolute(),
        wanted=_wanted(table),
        suffix=table.text("suffix", ""),
        settings={**KEEP_FOREVER, **table.table("settings").texts()},
        segment_bytes=table.number("segment_bytes", 1 << 30, least=MIN_SEGMENT_BYTES),
        limits=Limits(Codec[table.text("compression", "lz4", one_of=CODECS).upper()]),
        properties=broker.text("properties", ""),
        node_id=None if node_id < 0 else node_id,
        cluster_id=broker.text("cluster_id", ""),
        format_options=["--standalone"] if broker.flag("standalone", False) else [],
    )
    table.text("job", "")  # This key is accepted, but has no effect.
    table.check_unknown_keys()
    broker.check_unknown_keys()
    return found


class Restored(NamedTuple):
    """The result of restoring a partition."""

    topic: str
    partition: int
    mode: str
    records: int
    """The number of records that this run delivered."""
    next_offset: int
    zero_timestamps: int = 0
    """The number of these records whose timestamp was 0 and is 1 in the target.

    librdkafka would replace 0 with the current time.
    """

    def __str__(self) -> str:
        text = f"{self.topic}-{self.partition}: {plural(self.records, 'record')}, offsets: {self.mode}"
        if self.zero_timestamps:
            text += f", {self.zero_timestamps} with the timestamp 1 instead of 0"
        return text


def run(spark: SparkSession, config: RestoreConfig) -> list[Restored]:
    """Restore an archive to topics, and return the result of each partition that has records.

    Raises ArchiveError, DeliveryError or KafkaException.
    """
    archive = Archive(config.directory)
    check_topics(archive, config.wanted.topics)
    partitions = by_partition(file for file in archive.files() if config.wanted.has(file))
    known = partition_ranges(archive, config.wanted)
    if not partitions and not known:
        raise ArchiveError(f"{config.directory} has no matching records")
    check_not_internal({topic for topic, _ in (*partitions, *known)}, config.suffix)
    modes = create_topics(config, partitions, known)
    if not partitions:
        return []
    origins = archive.origins()
    tasks = [
        PartitionTask(key, inside, modes[key], origins.get(key[0], Origin(UNKNOWN, key[0], UNKNOWN)))
        for key, inside in partitions.items()
    ]
    found: list[Restored] = (
        spark.sparkContext.parallelize(tasks, len(tasks)).map(partial(_restore, config)).collect()
    )
    return found


class PartitionTask(NamedTuple):
    """A partition for one Spark task to deliver."""

    key: tuple[str, int]
    files: list[DataFile]
    mode: str
    origin: Origin


def _restore(config: RestoreConfig, part: PartitionTask) -> Restored:
    (topic, partition), files, mode, origin = part
    target = Target(
        dict(config.client), topic + config.suffix, partition, config.job, config.transaction_records
    )
    source = CountingRecords(partial(records, config.directory, files, config.wanted))
    start = config.wanted.start_offset
    try:
        if mode == SAME:
            count, next_offset = deliver_same_offsets(target, source, start)
        else:
            selection = Selection.of(config.wanted, origin)
            count, next_offset = deliver_with_map(
                target,
                source,
                start,
                origin=selection.encode(),
                check_continues=partial(selection.check_continues, target.name, config.job),
            )
    except KafkaException as error:
        raise DeliveryError(
            f"cannot write to {target.name} of the target cluster: {error.args[0].str()}"
        ) from None
    return Restored(target.topic, partition, mode, count, next_offset, source.zero_timestamps)


class CountingRecords:
    """A function that returns records from an offset on, and counts the records with timestamp 0.

    Each call resets the count.
    """

    def __init__(self, records_from: Callable[[int], Iterable[Outgoing]]) -> None:
        self._records_from = records_from
        self.zero_timestamps = 0

    def __call__(self, start: int) -> Iterator[Outgoing]:
        self.zero_timestamps = 0
        for record in self._records_from(start):
            self.zero_timestamps += record.timestamp_ms == 0
            yield record


def create_topics(
    config: RestoreConfig,
    partitions: Mapping[tuple[str, int], list[DataFile]],
    known: Iterable[tuple[str, int]] = (),
) -> dict[tuple[str, int], str]:
    """Create missing topics, and return the delivery mode of each partition: SAME or MAP.

    `partitions` has the files to restore, and `known` also has the archive's partitions without records. A
    new topic gets all of them. An existing topic needs only the partitions with records. Raises ArchiveError
    if an existing topic has too few partitions, or KafkaException.
    """
    admin = AdminClient({str(key): value for key, value in config.client.items()})
    least = partition_counts(partitions, config.suffix)
    create(admin, partition_counts({*partitions, *known}, config.suffix), config.settings, least)
    modes = _modes(config, partitions)
    mapped = {topic + config.suffix + MAP_SUFFIX for (topic, _), mode in modes.items() if mode == MAP}
    create(admin, dict.fromkeys(mapped, 1), {"cleanup.policy": "compact"})
    return modes


def _modes(
    config: RestoreConfig, partitions: Mapping[tuple[str, int], list[DataFile]]
) -> dict[tuple[str, int], str]:
    """Choose the delivery mode of each partition, and record the partitions with mode SAME in the archive.

    Raises ArchiveError or KafkaException.
    """
    if config.offsets == MAP or not partitions:
        return dict.fromkeys(partitions, MAP)
    targets = {
        (topic, partition): Target(dict(config.client), topic + config.suffix, partition, config.job)
        for topic, partition in partitions
    }
    # `end_offset` also waits until the leaders of new topics serve requests.
    ends = {key: end_offset(target) for key, target in targets.items()}
    there = KafkaSource(
        config.client, {"assign": json.dumps({target.topic: [] for target in targets.values()})}
    )
    origins = {name: topic.origin for name, topic in there.topics().items()}
    preserved = PreservedOffsets(config.directory)
    modes = dict.fromkeys(partitions, config.offsets)
    if config.offsets == AUTO:
        for key, files in partitions.items():
            before = preserved.end(origins[targets[key].topic], key[1])
            modes[key] = _mode(config, targets[key], files, ends[key], before)
    for key, files in partitions.items():
        if modes[key] == SAME:
            _record_preserved(config, preserved, origins[targets[key].topic], targets[key], end_of(files))
    return modes


def _mode(
    config: RestoreConfig, target: Target, files: list[DataFile], end: int, preserved: int | None
) -> str:
    """Choose the delivery mode of a target partition with the end offset `end`.

    `preserved` is the offset up to which an earlier run recorded SAME, or None. Raises ArchiveError if this
    run cannot continue that delivery with the same offsets. With a map, it would send all records again.
    """
    if progress(target) is not None:
        return MAP  # An earlier run of the job has begun with a map.
    whole = config.wanted._replace(topics=None) == RecordFilter()
    dense = is_dense(files)
    if preserved is None or end == 0:
        return SAME if whole and dense and end == 0 else MAP
    if end > preserved:
        why = f"{target.name} ends at offset {end}, not {preserved}: another program writes to it"
    elif not dense:
        missing = end_of(files) - sum(file.records for file in files)
        why = f"the archive now lacks {missing} of the offsets below {end_of(files)}"
    elif not whole:
        why = "only a part of the archive is selected now"
    else:
        return SAME
    raise ArchiveError(
        f"cannot continue to restore {target.name} with the offsets of {config.directory}: {why}; "
        f'choose another suffix, or offsets = "map" to send all records again'
    )


def _record_preserved(
    config: RestoreConfig, preserved: PreservedOffsets, origin: Origin, target: Target, end: int
) -> None:
    """Record in the archive that the target gets the archive's offsets, up to `end`.

    Raises ArchiveError if this fails and the mode was chosen by AUTO.
    """
    try:
        known = preserved.end(origin, target.partition)
        if known is None or known < end:
            preserved.record(origin, target.partition, end)
    except (OSError, ArchiveError) as error:
        if config.offsets == AUTO:
            raise ArchiveError(
                f"cannot record in {config.directory} that {target.name} has the archive's offsets: {error}; "
                f'set offsets to "same" or "map", which need no record'
            ) from None


def partition_counts(partitions: Iterable[tuple[str, int]], suffix: str) -> dict[str, int]:
    """Return the number of partitions that each target topic needs for these source partitions."""
    found: dict[str, int] = {}
    for topic, partition in partitions:
        found[topic + suffix] = max(found.get(topic + suffix, 0), partition + 1)
    return found


def command(config: JobConfig, master: str | None) -> int:
    into = directory_config(config)
    if into is not None:
        # Check the directory before Spark starts.
        if is_done(into):
            print(f"{into.directory} was already restored by this job: nothing to do")
            return CLEAN
        check_target(into.directory)
    wanted = RestoreConfig.of(config) if into is None else None
    from kwire.pipeline.session import session

    with session("kwire restore", master=master, needs_kafka=False) as spark:
        if into is not None:
            for log in restore(into, lambda write, tasks: _on_spark(spark, write, tasks)):
                print(
                    f"{log.topic}-{log.partition}: {plural(log.records, 'record')}, "
                    f"offsets from {log.start_offset} to {log.end_offset}"
                )
        elif wanted is not None:
            restored = run(spark, wanted)
            for done in restored:
                print(done)
            if not restored:
                print(f"{wanted.directory} has no records in the selected range")
    return CLEAN


def _on_spark(
    spark: SparkSession, write: Callable[[Task], RestoredLog], tasks: Sequence[Task]
) -> list[RestoredLog]:
    # Each partition is one task. Large partitions start first.
    ordered = sorted(tasks, key=lambda task: -sum(file.size_bytes for file in task.files))
    found: list[RestoredLog] = spark.sparkContext.parallelize(ordered, len(ordered)).map(write).collect()
    return found
