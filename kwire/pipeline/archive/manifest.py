"""The manifests of an archive. Each manifest lists the files of one commit; all together define the content.

    <archive>/_manifests/00000000000000000007.json    a commit
    <archive>/data/topic=t/date=2026-01-31/partition=0/part-….parquet

A file that no manifest lists is not part of the archive; an interrupted attempt has left it. Each manifest
gets the next number, is written atomically, and never changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.host.platform.files import sync_file
from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.pipeline.segments.damage import Damage

MANIFESTS: Final = "_manifests"
DATA: Final = "data"
FORMAT: Final = 1

Offsets = Mapping[str, Mapping[int, tuple[int, int]]]
"""The first offset and the exclusive end offset, by topic and partition."""


class ArchiveError(Exception):
    """An archive cannot be read or extended. The message has the reason, and usually what to do."""


class DataFile(NamedTuple):
    """A Parquet file with records of one partition and one date."""

    path: str
    """Relative to the archive's directory, or to the staging directory if the file is not committed."""
    topic: str
    partition: int
    date: str
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int
    sha256: str


class Commit(NamedTuple):
    """A commit: a micro-batch of the archive job, or a compaction."""

    number: int
    job: str
    """The id of the Spark stream that wrote this commit, from its checkpoint."""
    batch_id: int
    """Spark's number of the micro-batch; -1 for a compaction."""
    ranges: Offsets
    """The offset ranges that were read. Compacted records and transaction markers leave gaps in them."""
    files: Sequence[DataFile]
    replaced: Sequence[str] = ()
    """Files of earlier commits that `files` replaces."""
    skipped: Sequence[Damage] = ()
    """Offsets that were skipped because of corruption."""
    origins: Mapping[str, Origin] = {}
    """The origins of the topics whose origin is known."""

    def encode(self) -> bytes:
        """Return the manifest's JSON, without the number of the commit. The file's name has the number."""
        content = {
            "format": FORMAT,
            "job": self.job,
            "batch_id": self.batch_id,
            "ranges": {
                topic: {str(partition): list(ends) for partition, ends in sorted(partitions.items())}
                for topic, partitions in sorted(self.ranges.items())
            },
            "files": [file._asdict() for file in self.files],
            "replaced": list(self.replaced),
            "skipped": [damage._asdict() for damage in self.skipped],
            "origins": {
                topic: {"cluster": origin.cluster, "topic_id": origin.topic_id}
                for topic, origin in sorted(self.origins.items())
            },
        }
        return json.dumps(content, indent=1).encode()

    @classmethod
    def decode(cls, number: int, data: bytes) -> Commit:
        """Parse a manifest.

        Raises ValueError, KeyError, TypeError or AttributeError if the manifest is malformed.
        """
        content: dict[str, Any] = json.loads(data)
        if content["format"] != FORMAT:
            raise ValueError(f"unknown format {content['format']}")
        return cls(
            number,
            content["job"],
            content["batch_id"],
            {
                topic: {int(partition): (ends[0], ends[1]) for partition, ends in partitions.items()}
                for topic, partitions in content["ranges"].items()
            },
            [DataFile(**file) for file in content["files"]],
            tuple(content["replaced"]),
            tuple(Damage(**damage) for damage in content.get("skipped", ())),
            {
                topic: Origin(origin.get("cluster", UNKNOWN), topic, origin.get("topic_id", UNKNOWN))
                for topic, origin in content.get("origins", {}).items()
            },
        )


class Archive:
    """An archive in a directory. Its content is the sum of its commits."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._manifests = directory / MANIFESTS
        self._commits: list[Commit] = []
        """A cache of the commits without files. The cache stays valid, because manifests never change."""

    def commits(self) -> Iterator[Commit]:
        """Yield all commits in order. Raises ArchiveError if a manifest is missing or malformed."""
        for number in self._numbers():
            yield self._read(number)

    def commits_without_files(self) -> list[Commit]:
        """Return all commits, with `files` and `replaced` empty. Each manifest is read only once.

        Raises ArchiveError if a manifest is missing or malformed.
        """
        for number in self._numbers()[len(self._commits) :]:
            self._commits.append(self._read(number)._replace(files=(), replaced=()))
        return self._commits

    def _numbers(self) -> range:
        numbers = sorted(int(path.stem) for path in self._manifests.glob("*.json") if path.stem.isdigit())
        for expected, number in enumerate(numbers):
            if number != expected:
                raise ArchiveError(
                    f"{self._manifests} lacks commit {expected}: restore {self._path(expected)} from a backup"
                )
        return range(len(numbers))

    def _path(self, number: int) -> Path:
        return self._manifests / f"{number:020d}.json"

    def _read(self, number: int) -> Commit:
        path = self._path(number)
        try:
            return Commit.decode(number, path.read_bytes())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{path} is not a valid manifest: {error!r}") from None

    def files(self) -> list[DataFile]:
        """Return the files of all commits, without replaced files. Raises ArchiveError."""
        found: dict[str, DataFile] = {}
        for commit in self.commits():
            for path in commit.replaced:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.files)
        return list(found.values())

    def ranges(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """Return the offset ranges that were read, by topic and partition. Adjacent ranges are merged.

        Raises ArchiveError.
        """
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for commit in self.commits_without_files():
            for topic, partitions in commit.ranges.items():
                for partition, (start, end) in partitions.items():
                    known = found.setdefault(topic, {}).setdefault(partition, [])
                    if start >= end:
                        continue
                    if known and known[-1][1] == start:
                        known[-1] = (known[-1][0], end)
                    else:
                        known.append((start, end))
        return found

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the archive's end offsets by topic and partition. Raises ArchiveError.

        The end offset of a partition never decreases, even if its log was truncated.
        """
        found: dict[tuple[str, int], int] = {}
        for commit in self.commits_without_files():
            for topic, partitions in commit.ranges.items():
                for partition, (_, end) in partitions.items():
                    found[topic, partition] = max(end, found.get((topic, partition), end))
        return found

    def origins(self) -> dict[str, Origin]:
        """Return the origins of the topics for which a commit has recorded an origin. Raises ArchiveError."""
        found: dict[str, Origin] = {}
        for commit in self.commits_without_files():
            for topic, origin in commit.origins.items():
                found[topic] = found.get(topic, origin).completed(origin)
        return found

    def skipped(self) -> list[Damage]:
        """Return the offsets that were skipped because of corruption. Raises ArchiveError."""
        return [damage for commit in self.commits_without_files() for damage in commit.skipped]

    def has_batch(self, job: str, batch_id: int) -> bool:
        """Return whether a commit of stream `job` has the micro-batch `batch_id`. Raises ArchiveError."""
        return any(
            (commit.job, commit.batch_id) == (job, batch_id) for commit in self.commits_without_files()
        )

    def check_owner(self, job: str) -> None:
        """Raise ArchiveError if a stream other than `job` has written to this archive.

        Two streams would archive the same offsets twice.
        """
        commits = self.commits_without_files()
        other = next((commit for commit in commits if commit.batch_id >= 0 and commit.job != job), None)
        if other is not None:
            raise ArchiveError(
                f"{self.directory} was written by stream {other.job}, not by {job}: use the "
                f"checkpoint of that stream, or choose another directory"
            )

    def add(self, commit: Commit) -> Commit:
        """Write the next manifest, and return the commit with its number.

        Micro-batches and compactions have separate locks, so a micro-batch and a compaction may commit at the
        same time. The second commit takes the next number. This is safe, because a micro-batch only adds
        files and only a compaction replaces files. Raises ArchiveError if two micro-batches, or two
        compactions, commit at the same time.
        """
        self._manifests.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self._manifests.glob("*.json"))
        temporary = self._manifests / f".{number:020d}.{os.getpid()}.tmp"
        with temporary.open("wb") as file:
            file.write(commit.encode())
            file.flush()
            sync_file(file.fileno())
        try:
            while True:
                try:
                    os.link(temporary, self._path(number))
                    break
                except FileExistsError:
                    if (self._read(number).batch_id >= 0) == (commit.batch_id >= 0):
                        raise ArchiveError(
                            f"{self._path(number)} already exists: another job is writing to {self.directory}"
                        ) from None
                    number += 1
        finally:
            temporary.unlink()
        sync_directory(self._manifests)
        return commit._replace(number=number)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that its entries are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
