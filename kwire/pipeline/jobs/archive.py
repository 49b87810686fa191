"""The job `archive`: write topics to Parquet, as a continuous stream or up to the current end.

Each micro-batch of the stream becomes one commit of the archive. If the driver is killed before Spark has
recorded the end of a micro-batch, Spark repeats the micro-batch with the offsets in its checkpoint. A
micro-batch that has a commit is skipped, and a micro-batch without one starts again. So each offset is in the
archive exactly once.

[archive]
directory = "/srv/archive"
checkpoint = "/srv/checkpoint"  # the directory `_checkpoint` in the archive if this is missing
trigger = "availableNow"        # or an interval: "10 seconds"
compression = "zstd"            # or snappy, gzip, lz4, none
records_per_file = 5000000
compact_below = "0"             # regularly compact files smaller than this size, such as "32 MiB"
on_corrupt = "fail"             # or skip: skip corrupt batches of a data directory, and list their offsets
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from kwire.pipeline.archive.checkpoint_claim import check_previous_batch, claim_checkpoint, stream_id
from kwire.pipeline.archive.direct import DONE, write_ranges
from kwire.pipeline.archive.jvm_admin import JvmAdmin
from kwire.pipeline.archive.manifest import Archive, Commit, DataFile
from kwire.pipeline.archive.micro_batches import (
    already_archived,
    check_complete,
    check_no_gap,
    check_within,
    from_spark_offsets,
    micro_batch_offsets,
    micro_batch_ranges,
    to_spark_offsets,
    unarchived,
)
from kwire.pipeline.archive.origins import OriginChecker, file_origins
from kwire.pipeline.archive.staging import (
    SKIPPED,
    STAGING,
    attempt_directory,
    clear_staging_path,
    describe_file,
    exclusive_writer,
    move,
    staged_files,
)
from kwire.pipeline.config import AVAILABLE_NOW, CLEAN, ConfigError, Input, JobConfig
from kwire.pipeline.jobs.compact import CompactConfig, CompactionRunning, compact, size_bytes
from kwire.pipeline.progress import set_record_count
from kwire.pipeline.segments.damage import read_damage
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.plan import Range
from kwire.pipeline.segments.stream import initial_offsets, micro_batch_tasks
from kwire.pipeline.session import session
from kwire.pipeline.values.dead_letters import DeadLetters, deliver
from kwire.pipeline.values.decoder import DATA, DATA_ERROR, Plan
from kwire.pipeline.values.frames import decode_values, plan_of, record_type, recorded_type, spark_type
from kwire.pipeline.values.settings import ValuesConfig
from kwire.wire.plural import plural

FAIL, SKIP = "fail", "skip"
MICRO_BATCHES_PER_COMPACTION = 20
COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns in a data file. The file's path has the topic, the date and the partition."""


class ArchiveConfig(NamedTuple):
    """The configuration of the job: the tables [archive], [input] and [values]."""

    input: Input
    directory: Path
    checkpoint: Path
    trigger: str
    """`availableNow`, or an interval like `10 seconds`."""
    compression: str
    records_per_file: int
    on_corrupt: str = FAIL
    """The handling of corruption in a data directory: FAIL, or skip it and list it in the manifest."""
    compact_below_bytes: int = 0
    """The job regularly compacts files smaller than this size; 0 disables compaction."""
    values: ValuesConfig | None = None
    """The decoding of record values; None to store only their bytes."""

    @classmethod
    def of(cls, config: JobConfig) -> ArchiveConfig:
        """Read the tables of the job. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("archive")
        directory = table.path("directory")
        input_ = config.input()
        found = cls(
            input=input_,
            directory=directory,
            checkpoint=table.path("checkpoint", str(directory / "_checkpoint")),
            trigger=table.trigger(),
            compression=table.text("compression", "zstd", one_of=("zstd", "snappy", "gzip", "lz4", "none")),
            records_per_file=table.number("records_per_file", 5_000_000, least=1),
            compact_below_bytes=size_bytes("archive.compact_below", table.text("compact_below", "0")),
            on_corrupt=table.text("on_corrupt", FAIL, one_of=(FAIL, SKIP)),
            values=ValuesConfig.of(config, input_),
        )
        table.check_unknown_keys()
        if found.on_corrupt == SKIP and found.input.format != "kwire":
            raise ConfigError(
                "archive.on_corrupt requires an input with format kwire: brokers do not serve corrupt records"
            )
        return found


def start(spark: SparkSession, config: ArchiveConfig) -> StreamingQuery:
    """Start the stream, and return its query.

    Raises ArchiveError, for example if the archive or the checkpoint belongs to another stream. Raises
    ConfigError, RegistryError or SegmentsError.
    """
    claim_checkpoint(config.checkpoint, Archive(config.directory))
    options = {"startingOffsets": "earliest", **config.input.options, "includeHeaders": "true"}
    if config.on_corrupt == SKIP:
        options |= {"onCorrupt": SKIP, "skippedRangesPath": str(config.directory / STAGING / SKIPPED)}
    stream = spark.readStream.format(config.input.format).options(**options).load()
    config.directory.mkdir(parents=True, exist_ok=True)
    lookup = file_origins(options) if config.input.format == "kwire" else JvmAdmin(spark, options).origins
    origins = OriginChecker(Archive(config.directory), lookup)
    plan = None if config.values is None else _plan(spark, config, config.values)
    writer = (
        stream.writeStream.foreachBatch(_batch_function(spark, config, options, plan, origins))
        .option("checkpointLocation", str(config.checkpoint))
        .queryName("archive")
    )
    if config.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=config.trigger).start()


def _plan(spark: SparkSession, config: ArchiveConfig, values: ValuesConfig) -> Plan:
    """Plan the decoding of values, and record the plan in the archive.

    Raises ConfigError, RegistryError or ArchiveError.
    """
    # A batch query, which reads the sample, cannot start at the latest offsets.
    options = {**config.input.options, "startingOffsets": "earliest"}

    def sample() -> DataFrame:
        return spark.read.format(config.input.format).options(**options).load()

    plan = plan_of(spark, values, sample, recorded_type(config.directory, values.format))
    record_type(config.directory, plan, spark_type(plan))
    return plan


def _batch_function(
    spark: SparkSession,
    config: ArchiveConfig,
    options: dict[str, str],
    plan: Plan | None,
    origins: OriginChecker,
) -> Callable[[DataFrame, int], None]:
    archive = Archive(config.directory)
    # With `[values]`, the records must pass through the JVM, because Spark decodes the values.
    is_direct = config.input.format == "kwire" and plan is None

    def process_batch(batch: DataFrame, batch_id: int) -> None:
        job = stream_id(config.checkpoint)
        archive.check_owner(job)
        if archive.has_batch(job, batch_id):
            return
        check_previous_batch(archive, config.checkpoint, job, batch_id)
        name = f"{job[:8]}-{batch_id:010d}"
        staging_dir = attempt_directory(config.directory, name)
        skipped_dir = clear_staging_path(config.directory, SKIPPED)
        starts, ends = micro_batch_offsets(config.checkpoint, batch_id)
        known = archive.ends()
        check_no_gap(starts, known)
        if is_direct:
            parsed = parse(options, streaming=True)
            if not batch_id:
                starts = from_spark_offsets(initial_offsets(parsed, parsed.current_partitions()))
            tasks = micro_batch_tasks(parsed, *map(to_spark_offsets, unarchived(starts, ends, known)))
            files = _write_directly(spark, staging_dir, config, tasks)
            set_record_count(job, batch_id, sum(file.records for file in files))
        else:
            batch = _without(batch, already_archived(starts, ends, known))
            written = _write(batch if plan is None else decode_values(batch, plan), staging_dir, config)
            files = describe_staged(spark, staging_dir)
            check_complete(written, files, str(staging_dir))
        skipped = read_damage(skipped_dir)
        ranges = micro_batch_ranges(starts, ends, known, files, skipped)
        check_within(ranges, files)
        # A topic without records in this micro-batch may have been deleted.
        found_origins = origins.check(
            {topic for topic, of in ranges.items() if any(a < b for a, b in of.values())}
        )
        if config.values is not None and config.values.dead_letter:
            letters = DeadLetters.of(
                config.values.client, config.values.dead_letter, f"kwire-archive-{job[:8]}"
            )
            deliver(spark, letters, staging_dir, files)
        moved = move(config.directory, staging_dir, name, files)
        archive.add(Commit(-1, job, batch_id, ranges, moved, skipped=skipped, origins=found_origins))
        if batch_id % MICRO_BATCHES_PER_COMPACTION == MICRO_BATCHES_PER_COMPACTION - 1:
            compact_small(config)

    def process_batch_locked(batch: DataFrame, batch_id: int) -> None:
        with exclusive_writer(config.directory):
            process_batch(batch, batch_id)

    return process_batch_locked


def compact_small(config: ArchiveConfig) -> None:
    """Compact the archive if `compact_below_bytes` is set and no compaction is running.

    Raises ArchiveError.
    """
    if config.compact_below_bytes:
        below = config.compact_below_bytes
        with suppress(CompactionRunning):
            compact(CompactConfig(config.directory, below, 4 * below, config.compression))


def utc_date() -> Column:
    """Return an expression for a record's UTC date as text, whatever the session's time zone is."""
    days = f.floor(f.unix_seconds("timestamp") / 86_400).cast("int")
    return f.date_from_unix_date(days).cast("string")


def _write(batch: DataFrame, staging_dir: Path, config: ArchiveConfig) -> int | None:
    """Write a micro-batch with Spark, and return the number of records; None if Spark did not count them."""
    seen = Observation()
    (
        batch.observe(seen, f.count(f.lit(1)).alias("records"))
        .select(
            "topic",
            utc_date().alias("date"),
            "partition",
            *COLUMNS,
            *[name for name in (DATA, DATA_ERROR) if name in batch.columns],
        )
        # Spark sorts by the first three columns anyway, because a task writes one file at a time.
        .sortWithinPartitions("topic", "date", "partition", "offset")
        .write.partitionBy("topic", "date", "partition")
        .option("compression", config.compression)
        .option("maxRecordsPerFile", config.records_per_file)
        .parquet(str(staging_dir))
    )
    records: int | None = seen.get.get("records")
    return records


def _without(batch: DataFrame, held: Mapping[tuple[str, int], int]) -> DataFrame:
    """Return a micro-batch without the records that are archived already.

    `held` has the archive's end offset for each topic and partition.
    """
    for (topic, partition), end in held.items():
        is_of = (f.col("topic") == topic) & (f.col("partition") == partition)
        batch = batch.where(~(is_of & (f.col("offset") < end)))
    return batch


def _write_directly(
    spark: SparkSession, staging_dir: Path, config: ArchiveConfig, tasks: list[list[Range]]
) -> list[DataFile]:
    """Write a micro-batch of a data directory on the executors, and return the written files.

    Raises SegmentsError.
    """
    where, compression, records_per_file = str(staging_dir), config.compression, config.records_per_file
    files: list[DataFile] = (
        spark.sparkContext.parallelize(tasks, max(1, len(tasks)))
        .flatMap(lambda ranges: write_ranges(where, ranges, COLUMNS, compression, records_per_file))
        .collect()
    )
    staging_dir.mkdir(exist_ok=True)
    (staging_dir / DONE).touch()
    return files


def describe_staged(spark: SparkSession, staging_dir: Path) -> list[DataFile]:
    """Describe the staged files. Runs on the executors, which have just written the files.

    Raises ArchiveError.
    """
    paths = staged_files(staging_dir)
    if not paths:
        return []
    where = str(staging_dir)
    slices = min(len(paths), spark.sparkContext.defaultParallelism)
    found: list[DataFile] = (
        spark.sparkContext.parallelize(paths, slices).map(lambda path: describe_file(where, path)).collect()
    )
    return found


def command(config: JobConfig, master: str | None) -> int:
    wanted = ArchiveConfig.of(config)
    # Report a wrong checkpoint before Spark starts.
    claim_checkpoint(wanted.checkpoint, Archive(wanted.directory))
    spark = session("kwire archive", master=master, needs_kafka=wanted.input.format == "kafka")
    before = sum(1 for _ in Archive(wanted.directory).commits())
    query = start(spark, wanted)
    try:
        query.awaitTermination()
    finally:
        spark.stop()
    compact_small(wanted)
    added = list(Archive(wanted.directory).commits())[before:]
    records = sum(file.records for commit in added for file in commit.files)
    files = sum(len(commit.files) for commit in added)
    for commit in added:
        for damage in commit.skipped:
            print(damage)
    print(f"{plural(len(added), 'commit')} with {plural(records, 'record')} in {plural(files, 'file')}")
    return CLEAN
