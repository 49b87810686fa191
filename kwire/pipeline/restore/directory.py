"""The job `restore` with `into_directory`: an archive as the data directory of a broker that has never run.

The job builds the directory under a temporary name beside the target, and renames it when it is complete.
After an interruption, the job starts again from the beginning. Each attempt at a partition has its own
directory, because a task that Spark considers lost may still be writing.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from kwire.broker.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    MetaProperties,
    read_meta_properties,
    write_clean_shutdown,
    write_offsets,
)
from kwire.broker.storage.dirs.meta_properties import BOOTSTRAP_CHECKPOINT, METADATA_LOG
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.pipeline.archive.manifest import Archive, ArchiveError, DataFile, sync_directory
from kwire.pipeline.archive.reading import RecordFilter, by_partition, rows
from kwire.pipeline.restore.batches import Limits
from kwire.pipeline.restore.metadata import BootstrapTopic, topic_records, with_records
from kwire.pipeline.restore.partition import RestoredLog, write
from kwire.pipeline.restore.receipt import RECEIPT, make_receipt, read_receipt
from kwire.pipeline.restore.selection import check_not_internal
from kwire.pipeline.sides import check_topics
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid, uuid_to_text

NO_BROKER_EPOCH: Final = -2
"""The broker epoch in the clean shutdown file of a broker that has never registered.

With any other epoch, Apache Kafka's controller assumes an unclean shutdown (KIP-966) and elects new leaders
from outside the ISR.
"""
ATTEMPTS: Final = "attempts"
"""The subdirectory for incomplete partitions."""
MAX_SWEEPS: Final = 10
"""The maximum number of deletions of attempts. A running attempt may create files during a deletion."""


class DirectoryConfig(NamedTuple):
    """The selection of records to restore, and the settings of the new broker."""

    archive: Path
    directory: Path
    wanted: RecordFilter
    suffix: str
    settings: Mapping[str, str]
    """Topic configs that every restored topic gets."""
    segment_bytes: int
    limits: Limits
    properties: str
    """The path of the broker's server.properties; empty if there is none."""
    node_id: int | None
    """None to use the node id in the properties."""
    cluster_id: str
    """The cluster id; empty for a random id."""
    format_options: Sequence[str] = ()
    """More options of `kwire format`, such as `--standalone`."""


class Task(NamedTuple):
    """A partition for one task to write."""

    topic: str
    partition: int
    topic_id: Uuid
    files: Sequence[DataFile]
    span: tuple[int, int]
    """The start and end offsets of the log."""


Runner = Callable[[Callable[[Task], RestoredLog], Sequence[Task]], Iterable[RestoredLog]]
"""A function that runs tasks, locally (`map`) or with Spark."""


def restore(config: DirectoryConfig, run: Runner) -> list[RestoredLog]:
    """Restore to a directory that does not exist or is empty, and return the restored logs.

    `run` runs the tasks, each of which writes the log of one partition. A task may run twice, and may run on
    another machine that has the same file system. Raises ArchiveError or StorageError.
    """
    check_target(config.directory)
    archive = Archive(config.archive)
    check_topics(archive, config.wanted.topics)
    tasks = plan(archive, config)
    expected = _receipt(archive, config)
    with locked_build_directory(config.directory) as build_directory:
        format_directory(config, build_directory)
        (build_directory / ATTEMPTS).mkdir()
        written = sorted(run(_Writer(config, build_directory), tasks))
        _remove_attempts(build_directory / ATTEMPTS)
        finish(config, build_directory, tasks, written)
        RealDisk().replace(str(build_directory / RECEIPT), expected, sync=True)
        build_directory.rename(config.directory)
        sync_directory(config.directory.parent)
    return written


def is_done(config: DirectoryConfig) -> bool:
    """Return whether an earlier run of the same restore has created the directory. Raises ArchiveError."""
    expected = read_receipt(config.directory)
    return expected is not None and expected == _receipt(Archive(config.archive), config)


def _receipt(archive: Archive, config: DirectoryConfig) -> bytes:
    job = {key: value for key, value in config._asdict().items() if key not in {"archive", "directory"}}
    return make_receipt(archive, job)


def check_target(directory: Path) -> None:
    """Raise ArchiveError unless the directory does not exist or is empty."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ArchiveError(f"{directory} is not a directory")
    if any(directory.iterdir()):
        raise ArchiveError(f"{directory} is not empty: choose a new directory, or delete its content")


def partition_ranges(archive: Archive, wanted: RecordFilter) -> dict[tuple[str, int], tuple[int, int]]:
    """Return each selected partition's start and end offsets in the archive, limited to the selected offsets.

    Raises ArchiveError.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for commit in archive.commits():
        for topic, partitions in commit.ranges.items():
            if wanted.topics is not None and topic not in wanted.topics:
                continue
            for partition, (start, end) in partitions.items():
                known = found.get((topic, partition), (start, end))
                found[topic, partition] = (min(start, known[0]), max(end, known[1]))
    for key, (start, end) in found.items():
        start = min(max(start, wanted.start_offset), end)
        found[key] = (start, max(start, min(end, wanted.end_offset)))
    return found


def plan(archive: Archive, config: DirectoryConfig) -> list[Task]:
    """Return a task for each partition to write.

    A topic gets all partitions up to the highest number in the archive, even those that are not in the
    archive. Raises ArchiveError if there are no matching records, or if a topic is internal.
    """
    limits = partition_ranges(archive, config.wanted)
    if not limits:
        raise ArchiveError(f"{archive.directory} has no matching records")
    check_not_internal({topic for topic, _ in limits}, config.suffix)
    files = by_partition(file for file in archive.files() if config.wanted.has(file))
    counts: dict[str, int] = {}
    for topic, partition in limits:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    rng = random.SystemRandom()
    ids = {topic: new_id(rng) for topic in sorted(counts)}
    return [
        Task(
            topic + config.suffix,
            partition,
            ids[topic],
            files.get((topic, partition), []),
            limits.get((topic, partition), (0, 0)),
        )
        for topic, count in sorted(counts.items())
        for partition in range(count)
    ]


def new_id(rng: random.Random) -> Uuid:
    """Return a random (version 4) id whose text does not begin with a dash, like the ids that Kafka makes."""
    while True:
        raw = bytearray(rng.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if not uuid_to_text(Uuid(bytes(raw))).startswith("-"):
            return Uuid(bytes(raw))


@contextmanager
def locked_build_directory(directory: Path) -> Iterator[Path]:
    """Create an empty build directory beside `directory`, and lock the build directory during the block.

    Raises ArchiveError if another process has the lock.
    """
    build_directory = directory.parent / f".{directory.name}.restoring"
    build_directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(build_directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(f"{build_directory} is locked: another job restores to {directory}") from None
        # Do this first, so that running attempts of an earlier job cannot move a log to this directory.
        _remove_attempts(build_directory / ATTEMPTS)
        for leftover in build_directory.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        yield build_directory
    finally:
        os.close(descriptor)


class _Writer:
    """A function that writes the log of a task. Spark pickles the object and sends it to executors."""

    def __init__(self, config: DirectoryConfig, build_directory: Path) -> None:
        self._config = config
        self._build_directory = build_directory

    def __call__(self, task: Task) -> RestoredLog:
        """Write a partition's log, and move it into the build directory unless another attempt has done so.

        Raises ArchiveError.
        """
        name = f"{task.topic}-{task.partition}"
        try:
            attempt = Path(
                tempfile.mkdtemp(dir=self._build_directory / ATTEMPTS, prefix=f"{task.partition}-")
            )
            written = self._write(task, attempt)
            _move_into_place(attempt / name, self._build_directory / name)
        except (StorageError, ApiError, ValueError, OSError) as error:
            raise ArchiveError(f"{name} cannot be written: {error}") from None
        return written

    def _write(self, task: Task, attempt: Path) -> RestoredLog:
        config = self._config
        return write(
            attempt,
            task.topic,
            task.partition,
            task.topic_id,
            rows(config.archive, task.files, config.wanted),
            task.span,
            segment_bytes=config.segment_bytes,
            limits=config.limits,
        )


def _move_into_place(log: Path, destination: Path) -> None:
    """Rename a log to `destination`, unless another attempt has done so. Raises OSError."""
    try:
        log.rename(destination)
    except OSError:
        if not destination.exists():
            raise


def _remove_attempts(attempts: Path) -> None:
    """Delete the directories of attempts. An attempt that is still running then fails. Raises OSError."""
    for _ in range(MAX_SWEEPS):
        shutil.rmtree(attempts, ignore_errors=True)
        if not attempts.exists():
            return
    shutil.rmtree(attempts)


def format_directory(config: DirectoryConfig, build_directory: Path) -> None:
    """Run `kwire format` on the build directory. Raises ArchiveError with the command's error message."""
    cluster_id = config.cluster_id or uuid_to_text(new_id(random.SystemRandom()))
    command = [sys.executable, "-m", "kwire", "format", "--cluster-id", cluster_id]
    if config.properties:
        command += ["--config", config.properties]
    if config.node_id is not None:
        command += ["--node-id", str(config.node_id)]
    # Format only this directory, whatever log.dirs and metadata.log.dir are in the properties.
    command += [
        "--set",
        f"log.dirs={build_directory}",
        "--set",
        f"metadata.log.dir={build_directory}",
        *config.format_options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise ArchiveError(
            f"{config.directory} cannot be formatted: {output[-1] if output else done.returncode}"
        )


def finish(
    config: DirectoryConfig, build_directory: Path, tasks: Sequence[Task], written: Sequence[RestoredLog]
) -> None:
    """Write the checkpoints, the topics' metadata, and the clean shutdown file of the data directory.

    Raises ArchiveError or StorageError.
    """
    disk = RealDisk()
    owner = read_meta_properties(disk, str(build_directory))
    if owner is None or owner.directory_id is None:
        raise ArchiveError(f"{build_directory} was formatted without a directory id")
    ends = {(log.topic, log.partition): log.end_offset for log in written}
    write_offsets(disk, f"{build_directory}/{RECOVERY_POINTS}", ends)
    write_offsets(disk, f"{build_directory}/{HIGH_WATERMARKS}", ends)
    # The checkpoint is empty: as in Kafka, it lists only logs that begin after their first segment's base
    # offset, and no restored log does.
    write_offsets(disk, f"{build_directory}/{LOG_START_OFFSETS}", {})
    # Without a metadata log, the directory would look like a broker's with a separate metadata.log.dir.
    (build_directory / METADATA_LOG).mkdir(exist_ok=True)
    _add_topics(config, build_directory, tasks, owner, owner.directory_id)
    write_clean_shutdown(disk, str(build_directory), NO_BROKER_EPOCH)


def _add_topics(
    config: DirectoryConfig,
    build_directory: Path,
    tasks: Sequence[Task],
    owner: MetaProperties,
    directory_id: Uuid,
) -> None:
    counts: dict[tuple[str, Uuid], int] = {}
    for task in tasks:
        counts[task.topic, task.topic_id] = max(
            counts.get((task.topic, task.topic_id), 0), task.partition + 1
        )
    topics = [
        BootstrapTopic(name, topic_id, count, config.settings) for (name, topic_id), count in counts.items()
    ]
    added = list(topic_records(topics, owner.node_id, directory_id))
    path = build_directory / BOOTSTRAP_CHECKPOINT
    RealDisk().replace(str(path), with_records(path.read_bytes(), added), sync=True)
