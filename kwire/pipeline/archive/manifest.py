"""The manifests of an archive: what each commit added, and so what the archive holds.

    <archive>/_manifests/00000000000000000007.json    a commit
    <archive>/data/topic=t/date=2026-01-31/partition=0/part-….parquet

A file that no manifest lists is not in the archive: it was left by an attempt that did not come to its end.
Manifests are written once, each under the next number, and appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.pipeline.segments.damage import Damage

MANIFESTS: Final = "_manifests"
DATA: Final = "data"
FORMAT: Final = 1

Offsets = Mapping[str, Mapping[int, tuple[int, int]]]
"""By topic and partition: the first offset, and the one behind the last."""


class ArchiveError(Exception):
    """An archive that cannot be read or added to; the message names the file, and what to do."""


class DataFile(NamedTuple):
    """A Parquet file."""

    path: str
    """Below the archive's directory."""
    topic: str
    partition: int
    date: str
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int
    sha256: str


class Commit(NamedTuple):
    """One step of an archive."""

    number: int
    job: str
    """Which stream wrote it: the id that Spark gave it, which its checkpoint keeps."""
    batch_id: int
    """The stream's own number of the step; -1 where files were only rewritten."""
    ranges: Offsets
    """Which offsets were looked at. Not each needs to be a record: compaction and transactions leave gaps."""
    files: Sequence[DataFile]
    replaced: Sequence[str] = ()
    """Files of earlier commits whose records are in `files` now."""
    skipped: Sequence[Damage] = ()
    """Offsets that could not be read, and were left out because that was asked for."""
    origins: Mapping[str, Origin] = {}
    """Where topics came from, as far as that was known."""

    def encode(self) -> bytes:
        """As it stands in its file."""
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
        """ValueError, KeyError, TypeError."""
        content: dict[str, Any] = json.loads(data)
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']}")
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
    """The commits in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._manifests = directory / MANIFESTS
        self._steps: list[Commit] = []
        """Those that were read, without their files. A manifest is never changed."""

    def commits(self) -> Iterator[Commit]:
        """All of them, in their order. ArchiveError."""
        for number in self._numbers():
            yield self._read(number)

    def steps(self) -> list[Commit]:
        """The same without what they say of files; each manifest is read once. ArchiveError."""
        for number in self._numbers()[len(self._steps) :]:
            self._steps.append(self._read(number)._replace(files=(), replaced=()))
        return self._steps

    def _numbers(self) -> range:
        numbers = sorted(int(path.stem) for path in self._manifests.glob("*.json") if path.stem.isdigit())
        for expected, number in enumerate(numbers):
            if number != expected:
                raise ArchiveError(
                    f"{self._manifests} lacks commit {expected}: restore {self._path(expected)}"
                )
        return range(len(numbers))

    def _path(self, number: int) -> Path:
        return self._manifests / f"{number:020d}.json"

    def _read(self, number: int) -> Commit:
        path = self._path(number)
        try:
            return Commit.decode(number, path.read_bytes())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{path} is no manifest: {error!r}") from None

    def files(self) -> list[DataFile]:
        """What the archive holds. ArchiveError."""
        found: dict[str, DataFile] = {}
        for commit in self.commits():
            for path in commit.replaced:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.files)
        return list(found.values())

    def ranges(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """Which offsets were looked at: where these do not touch, there is more than one range."""
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for commit in self.steps():
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
        """Where the archive goes on, by topic and partition. ArchiveError.

        It never goes back, though a log may: what is there is not taken again.
        """
        found: dict[tuple[str, int], int] = {}
        for commit in self.steps():
            for topic, partitions in commit.ranges.items():
                for partition, (_, end) in partitions.items():
                    found[topic, partition] = max(end, found.get((topic, partition), end))
        return found

    def origins(self) -> dict[str, Origin]:
        """Where topics came from, as far as a commit has noted it. ArchiveError."""
        found: dict[str, Origin] = {}
        for commit in self.steps():
            for topic, origin in commit.origins.items():
                found[topic] = found.get(topic, origin).completed(origin)
        return found

    def skipped(self) -> list[Damage]:
        """Offsets that were left out because they could not be read. ArchiveError."""
        return [damage for commit in self.steps() for damage in commit.skipped]

    def has_batch(self, job: str, batch_id: int) -> bool:
        """Whether a stream's step has happened. ArchiveError."""
        return any((commit.job, commit.batch_id) == (job, batch_id) for commit in self.steps())

    def check_owner(self, job: str) -> None:
        """ArchiveError where another stream has written into this archive: offsets would be in it twice."""
        other = next((commit for commit in self.steps() if commit.batch_id >= 0 and commit.job != job), None)
        if other is not None:
            raise ArchiveError(
                f"{self.directory} was written by the stream {other.job}, and this is {job}: go on with the "
                f"checkpoint of that one, or choose another directory"
            )

    def add(self, commit: Commit) -> Commit:
        """Write the next manifest; the commit with its number. ArchiveError where two take steps at once.

        Steps and compaction have locks of their own, and may come at the same moment. Whichever is second has
        the number that follows: a step adds files, and a compaction replaces some that only it may replace.
        """
        self._manifests.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self._manifests.glob("*.json"))
        temporary = self._manifests / f".{number:020d}.{os.getpid()}.tmp"
        with temporary.open("wb") as file:
            file.write(commit.encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            while True:
                try:
                    os.link(temporary, self._path(number))
                    break
                except FileExistsError:
                    if (self._read(number).batch_id >= 0) == (commit.batch_id >= 0):
                        raise ArchiveError(
                            f"{self._path(number)} is there already: another job writes into {self.directory}"
                        ) from None
                    number += 1
        finally:
            temporary.unlink()
        sync_directory(self._manifests)
        return commit._replace(number=number)


def sync_directory(path: Path) -> None:
    """Make names durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
