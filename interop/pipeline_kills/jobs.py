"""The jobs that are killed: their configuration, their kill points and their results."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from interop.brokers import Broker, Kwire
from interop.pipeline_kills.checker import (
    MAP,
    UNLISTED,
    UNREADABLE,
    Finding,
    check_archive,
    check_mapped,
    check_same,
    check_windows,
)
from interop.pipeline_kills.kill_points import (
    Step,
    archive_steps,
    compact_steps,
    delivery_steps,
    directory_steps,
    stream_steps,
    transaction_steps,
)
from interop.pipeline_kills.processes import DRIVER, EXECUTOR, VICTIMS
from interop.pipeline_kills.reading import (
    Partition,
    Records,
    Unreadable,
    read_ends,
    read_entries,
    read_topics,
)
from interop.pipeline_kills.workload import BOOKINGS, FLIGHTS, PARTITIONS

MAP_SUFFIX: Final = ".offset-map"
STEP_OFFSETS: Final = 1_500
"""The number of offsets per micro-batch, small enough that a run has several micro-batches."""
STEPS: Final = 5
"""The minimum number of micro-batches of a run on both topics."""
TRANSACTION_RECORDS: Final = 300
TRANSACTIONS: Final = 5
"""The minimum number of transactions for the partition with the most records."""
FLIGHTS_STEPS: Final = 4
"""The minimum number of micro-batches of a run on one topic."""
WINDOWS_BYTES: Final = 10_000
"""A number of bytes that the results of the job always exceed."""
DIRECTORY_BYTES: Final = 100_000
"""A number of bytes that a restored directory always exceeds."""


@dataclass
class KillSetup:
    """A broker with source topics, and the content of these topics."""

    broker: Broker
    directory: Path
    truth: Records
    """The records of the source topics, as a plain consumer reads them."""
    ends: Mapping[Partition, int]
    archive: Path
    """An archive of both topics, written without kills."""

    def of(self, *topics: str) -> Records:
        """Return the records of these source topics."""
        return {partition: records for partition, records in self.truth.items() if partition[0] in topics}


@dataclass
class Job(ABC):
    """A job of one trial. It has a directory and topic names of its own."""

    name: ClassVar[str]
    command: ClassVar[str]
    """The name of the job in the command line of the pipeline."""
    victims: ClassVar[tuple[str, ...]] = VICTIMS
    """The kinds of processes that can be killed during the job."""
    setup: KillSetup
    work_directory: Path
    """The directory for the configuration, log, checkpoint and output of the job."""
    trial: str
    """A text that makes the names of topics, groups and transactional ids unique."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def suffix(self) -> str:
        """The suffix of the names of the topics that the job writes."""
        return f".{self.trial}"

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the configuration of the job."""

    @abstractmethod
    def steps(self, rng: Random) -> list[Step]:
        """Return the events at which the job may be killed."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state that another run of the finished job must not change.

        Raises Unreadable if a topic of the job cannot be read.
        """

    @abstractmethod
    def check(self) -> list[Finding]:
        """Compare the results of the job with the source."""

    @abstractmethod
    def audit(self) -> dict[str, Any]:
        """Return the configuration of an audit that must find no difference, or {} without an audit."""

    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.setup.broker.bootstrap}

    def kafka_input(self, *topics: str) -> dict[str, Any]:
        options = {
            "kafka.bootstrap.servers": self.setup.broker.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(topics),
        }
        return {"format": "kafka", "options": options}

    def files_input(self, *topics: str) -> dict[str, Any]:
        options = {
            "path": str(self.setup.broker.log_dir),
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(topics),
        }
        return {"format": "kwire", "options": options}


def files_below(directory: Path) -> list[tuple[str, int, int]]:
    """Return the name, size and modification time of each file below a directory."""
    return sorted(
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    )


class ArchiveJob(Job):
    """The job `archive` for both topics, over the network."""

    name = "archive"
    command = "archive"

    @property
    def archive(self) -> Path:
        return self.work_directory / "archive"

    def source(self) -> dict[str, Any]:
        return self.kafka_input(FLIGHTS, BOOKINGS)

    def config(self) -> dict[str, Any]:
        source = self.source()
        source["options"]["maxOffsetsPerTrigger"] = str(STEP_OFFSETS)
        return {"input": source, "archive": {"directory": str(self.archive), "records_per_file": 400}}

    def steps(self, rng: Random) -> list[Step]:
        return archive_steps(self.archive, STEPS, rng)

    def snapshot(self) -> Any:
        return files_below(self.archive / "data") + files_below(self.archive / "_manifests")

    def check(self) -> list[Finding]:
        return check_archive(self.setup.truth, self.setup.ends, self.archive)

    def audit(self) -> dict[str, Any]:
        right = {"format": "archive", "directory": str(self.archive)}
        return {
            "audit": {"window": "1 day"},
            "left": self.kafka_input(FLIGHTS, BOOKINGS),
            "right": right,
        }


class ArchiveDirectoryJob(ArchiveJob):
    """The job `archive` for both topics, from the broker's files."""

    name = "archive-directory"

    def source(self) -> dict[str, Any]:
        return self.files_input(FLIGHTS, BOOKINGS)


class CompactJob(ArchiveJob):
    """The job `compact`, which merges small files of an archive in a single process without Spark."""

    name = "compact"
    command = "compact"
    victims: ClassVar[tuple[str, ...]] = (DRIVER,)

    def config(self) -> dict[str, Any]:
        if not self.archive.exists():
            shutil.copytree(self.setup.archive, self.archive, ignore=shutil.ignore_patterns("_checkpoint"))
        return {"compact": {"directory": str(self.archive), "target": "24 KiB"}}

    def steps(self, rng: Random) -> list[Step]:
        return compact_steps(self.setup.archive, self.archive, rng)


class TopicJob(Job):
    mapped: ClassVar[tuple[str, ...]] = ()
    same: ClassVar[tuple[str, ...]] = ()

    def topics(self) -> list[str]:
        filled = [topic + self.suffix for topic in (*self.same, *self.mapped)]
        return [*filled, *(topic + self.suffix + MAP_SUFFIX for topic in self.mapped)]

    def steps(self, rng: Random) -> list[Step]:
        data = self.setup.broker.log_dir
        topic = (*self.mapped, *self.same)[0]
        size_bytes = sum(path.stat().st_size for path in (data / f"{topic}-0").glob("*.log"))
        # The job compresses the records to about a fifth of their size.
        found = delivery_steps(data, topic + self.suffix, size_bytes // 8, rng)
        if self.mapped:
            found += transaction_steps(data, self.trial, TRANSACTIONS, rng)
        return found

    def snapshot(self) -> Any:
        return read_ends(self.setup.broker.bootstrap, self.topics())

    def check(self) -> list[Finding]:
        try:
            found = read_topics(self.setup.broker.bootstrap, self.topics())
        except Unreadable as error:
            return [Finding(UNREADABLE, str(error))]
        findings = check_same(self.setup.of(*self.same), found, self.suffix)
        for topic in self.mapped:
            filled = topic + self.suffix
            maps = {partition: one for partition, one in found.items() if partition[0] == filled + MAP_SUFFIX}
            for partition in range(PARTITIONS[topic]):
                try:
                    entries = read_entries(maps, partition, self.trial)
                except Unreadable as error:
                    findings.append(Finding(MAP, str(error)))
                    continue
                findings += check_mapped(
                    (filled, partition),
                    self.setup.truth[topic, partition],
                    found.get((filled, partition), []),
                    entries,
                    self.setup.ends[topic, partition],
                )
        return findings

    def audit(self) -> dict[str, Any]:
        topics = (*self.same, *self.mapped)
        return {
            "audit": {"window": "1 day", "suffix": self.suffix, "offsets": not self.mapped},
            "left": self.kafka_input(*topics),
            "right": self.kafka_input(*(topic + self.suffix for topic in topics)),
        }


class RestoreJob(TopicJob):
    """The job `restore` for a topic without offset gaps, with the same offsets."""

    name = "restore"
    command = "restore"
    same: ClassVar[tuple[str, ...]] = (FLIGHTS,)

    def config(self) -> dict[str, Any]:
        restore = {
            "directory": str(self.setup.archive),
            "job": self.trial,
            "topics": ",".join((*self.same, *self.mapped)),
            "suffix": self.suffix,
            "transaction_records": TRANSACTION_RECORDS,
            "client": self.client(),
        }
        return {"restore": restore}


class RestoreMapJob(RestoreJob):
    """The job `restore` for a topic with offset gaps, in transactions and with an offset map."""

    name = "restore-map"
    same = ()
    mapped = (BOOKINGS,)


class RestoreDirectoryJob(Job):
    """The job `restore` for both topics, into the data directory of a broker that has not run yet."""

    name = "restore-directory"
    command = "restore"
    victims: ClassVar[tuple[str, ...]] = (DRIVER, EXECUTOR)

    @property
    def directory(self) -> Path:
        return self.work_directory / "data"

    def config(self) -> dict[str, Any]:
        restore = {
            "directory": str(self.setup.archive),
            "into_directory": str(self.directory),
            "broker": {"properties": str(self.setup.broker.properties_path)},
        }
        return {"restore": restore}

    def steps(self, rng: Random) -> list[Step]:
        return directory_steps(self.directory, DIRECTORY_BYTES, rng)

    def snapshot(self) -> Any:
        return files_below(self.directory)

    def check(self) -> list[Finding]:
        leftovers = [path for path in self.work_directory.iterdir() if path.name.startswith(".")]
        findings = [Finding(UNLISTED, str(path)) for path in leftovers]
        broker = Kwire()
        try:
            shutil.copytree(self.directory, broker.log_dir)
            broker.start()
            found = read_topics(broker.bootstrap, [FLIGHTS, BOOKINGS])
        except (Unreadable, OSError, RuntimeError) as error:
            return [*findings, Finding(UNREADABLE, str(error))]
        finally:
            broker.discard()
        return findings + check_same(self.setup.truth, found, "")

    def audit(self) -> dict[str, Any]:
        options = {"path": str(self.directory), "subscribe": f"{FLIGHTS},{BOOKINGS}"}
        right = {"format": "kwire", "options": options}
        left = self.kafka_input(FLIGHTS, BOOKINGS)
        return {"audit": {"window": "1 day", "offsets": True}, "left": left, "right": right}


class MirrorJob(TopicJob):
    """The job `mirror` for both topics, to other topics of the same cluster."""

    name = "mirror"
    command = "mirror"
    mapped = (FLIGHTS, BOOKINGS)

    def config(self) -> dict[str, Any]:
        source = self.kafka_input(*self.mapped)
        source["options"]["maxOffsetsPerTrigger"] = str(STEP_OFFSETS)
        mirror = {
            "job": self.trial,
            "checkpoint": str(self.work_directory / "checkpoint"),
            "suffix": self.suffix,
            "groups": "",
            "client": self.client(),
        }
        return {"input": source, "mirror": mirror}

    def steps(self, rng: Random) -> list[Step]:
        return [*super().steps(rng), *stream_steps(self.work_directory / "checkpoint", STEPS, rng)]


class WindowsJob(Job):
    """The job `windows`: flights by day and carrier. Only the last result of each window is checked."""

    name = "windows"
    command = "windows"

    @property
    def topic(self) -> str:
        return f"windows{self.suffix}"

    def config(self) -> dict[str, Any]:
        source = self.kafka_input(FLIGHTS)
        source["options"]["maxOffsetsPerTrigger"] = str(STEP_OFFSETS)
        windows = {
            "topic": self.topic,
            "partitions": 2,
            "checkpoint": str(self.work_directory / "checkpoint"),
            "group": "carrier",
            "window": "1 day",
            # No event may be late, because the number of late events depends on the micro-batches.
            "watermark": "30 days",
            "aggregates": {"flights": "count", "distance": "sum:distance", "cancelled": "nulls:dep_time"},
            "client": self.client(),
        }
        return {"input": source, "windows": windows}

    def steps(self, rng: Random) -> list[Step]:
        data = self.setup.broker.log_dir
        return [
            *stream_steps(self.work_directory / "checkpoint", FLIGHTS_STEPS, rng),
            *delivery_steps(data, self.topic, WINDOWS_BYTES, rng),
        ]

    def snapshot(self) -> Any:
        return read_ends(self.setup.broker.bootstrap, [self.topic])

    def check(self) -> list[Finding]:
        try:
            found = read_topics(self.setup.broker.bootstrap, [self.topic])
        except Unreadable as error:
            return [Finding(UNREADABLE, str(error))]
        return check_windows(self.setup.of(FLIGHTS), found)

    def audit(self) -> dict[str, Any]:
        return {}


JOBS: Final[dict[str, type[Job]]] = {
    job.name: job
    for job in (
        ArchiveJob,
        ArchiveDirectoryJob,
        CompactJob,
        RestoreJob,
        RestoreMapJob,
        RestoreDirectoryJob,
        MirrorJob,
        WindowsJob,
    )
}


def toml(content: Mapping[str, Any], table: str = "") -> str:
    lines, tables = [], []
    for key, value in content.items():
        quoted = json.dumps(key)
        if isinstance(value, Mapping):
            name = f"{table}.{quoted}" if table else quoted
            tables.append(f"[{name}]\n{toml(value, name)}")
        else:
            lines.append(f"{quoted} = {json.dumps(value)}\n")
    return "".join(lines) + "".join(tables)
