"""What lies in a data directory: its partitions, their segments, and what the indexes of these say."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.broker.storage.log.transaction_index import ENTRY_BYTES, AbortedTxn
from kwire.pipeline.segments.damage import SkipDamage

PARTITION: Final = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)$")
_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED_ENTRY: Final = np.dtype(
    [("version", ">i2"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8"), ("stable", ">i8")]
)
_PIECE_ENTRIES: Final = 1024
RETRY_DELAYS_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
"""How long to wait before each further look, where a look may have come in the middle of a move."""

Sleep = Callable[[float], None]

Index = npt.NDArray[np.int64]
"""Two columns, the first of which ascends."""


class SegmentsError(Exception):
    """Something that cannot be read; the message names the file, offset or topic, and what to do."""


class Segment(NamedTuple):
    """A segment of a log."""

    path: Path
    base_offset: int

    def beside(self, suffix: str) -> Path:
        """The file of another kind that belongs to it."""
        return self.path.with_suffix(suffix)

    def size_bytes(self) -> int:
        """How long the log's file is now."""
        return self.path.stat().st_size

    def offset_index(self) -> Index:
        """Offsets and the positions of batches at or before them. Empty where that is not known."""
        entries = _entries(self.beside(".index"), _OFFSET_ENTRY)
        found = np.empty((len(entries), 2), np.int64)
        found[:, 0] = entries["offset"].astype(np.int64) + self.base_offset
        found[:, 1] = entries["position"]
        return _ascending(found, self.base_offset)

    def time_index(self) -> Index:
        """Timestamps, and offsets up to which no record is later. Empty where that is not known."""
        entries = _entries(self.beside(".timeindex"), _TIME_ENTRY)
        found = np.empty((len(entries), 2), np.int64)
        found[:, 0] = entries["timestamp"]
        found[:, 1] = entries["offset"].astype(np.int64) + self.base_offset
        return _ascending(found, 0)

    def aborted(self) -> list[AbortedTxn]:
        """The transactions whose abort markers are in this segment. SegmentsError."""
        path = self.beside(".txnindex")
        data = _content(path)
        if len(data) % ENTRY_BYTES:
            raise SegmentsError(f"{path} has {len(data)} bytes, which is no number of whole entries")
        entries = np.frombuffer(data, _ABORTED_ENTRY)
        if entries["version"].any():
            raise SegmentsError(f"{path} has entries of a version that is not known")
        return [AbortedTxn(*map(int, tuple(entry)[1:])) for entry in entries]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _entries(path: Path, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """The entries of an index, and at most a few of the zeros behind them.

    The index of a segment that is being written is as long as it may ever be: nearly all of it is zeros.
    """
    pieces = []
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_ENTRIES * kind.itemsize):
                pieces.append(piece)
                if not any(piece[-kind.itemsize :]):
                    break
    except FileNotFoundError:
        pass
    data = b"".join(pieces)
    return np.frombuffer(data[: len(data) - len(data) % kind.itemsize], kind)


def _ascending(found: Index, least: int) -> Index:
    """The entries up to where they stop making sense: the file may end in zeros, or be damaged."""
    if not len(found):
        return found
    wrong = np.flatnonzero((np.diff(found[:, 0]) <= 0) | (np.diff(found[:, 1]) <= 0))
    if found[0, 0] < least:
        return found[:0]
    return found[: int(wrong[0]) + 1] if len(wrong) else found


class PartitionLog(NamedTuple):
    """A partition's log in one data directory."""

    topic: str
    partition: int
    directory: Path
    skipping: SkipDamage | None = None
    """How to get past damage; None where it is an error."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def segments(self) -> list[Segment]:
        """Its segments, the oldest first. SegmentsError where the directory is gone."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            raise SegmentsError(
                f"{self.directory} is gone: has topic {self.topic} been deleted, or the log been moved to "
                f"another directory? After a move, run again"
            ) from None
        except OSError as error:
            raise SegmentsError(f"{self.directory} cannot be read: {error.strerror}") from None
        bases = sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.log", name))
        return [Segment(self.directory / f"{base:020d}.log", base) for base in bases]

    def snapshots(self) -> list[tuple[int, Path]]:
        """Offsets and files of what is known of its producers, the newest first."""
        found = [
            (int(path.stem), path)
            for path in self.directory.glob("*.snapshot")
            if re.fullmatch(r"\d{20}", path.stem)
        ]
        return sorted(found, reverse=True)

    def start_offset(self) -> int:
        """Where the log begins: what DeleteRecords has left, or else its first segment."""
        segments = self.segments()
        first = segments[0].base_offset if segments else 0
        checkpoint = self.directory.parent / "log-start-offset-checkpoint"
        return max(first, read_checkpoint(checkpoint).get((self.topic, self.partition), 0))


def read_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """The offsets of a checkpoint file; none where there is no file, or it makes no sense."""
    found = {}
    for line in _content(path).decode("utf-8", "replace").splitlines()[2:]:
        topic, _, rest = line.partition(" ")
        partition, _, offset = rest.partition(" ")
        if topic and partition.isdigit() and offset.isdigit():
            found[topic, int(partition)] = int(offset)
    return found


def partitions_in(directories: Sequence[str], *, sleep: Sleep = time.sleep) -> list[PartitionLog]:
    """The partitions of data directories, or of copies of them. SegmentsError.

    Directories that are being deleted, or filled by a move, have other names and are left out, as is the
    cluster's metadata, whose records are of another kind.
    """
    found = _logs_in(directories)
    # Apache Kafka ends a move by giving the new directory its name, and then the old one another. Looked at
    # in between both are there; and neither, where one was looked at before that and the other behind it.
    # So two looks have to find the same, which one directory alone does not need.
    for pause_seconds in RETRY_DELAYS_SECONDS if len(directories) > 1 else ():
        sleep(pause_seconds)
        before, found = found, _logs_in(directories)
        if found == before and all(len(found_in) == 1 for found_in in found.values()):
            break
    for (topic, partition), found_in in found.items():
        if len(found_in) > 1:
            raise SegmentsError(
                f"{found_in[0]} and {found_in[1]} are both logs of {topic}-{partition}: remove one from the "
                f"option path; if the log is being moved, run again after the move"
            )
    return sorted(
        PartitionLog(topic, partition, found_in[0]) for (topic, partition), found_in in found.items()
    )


def _logs_in(directories: Sequence[str]) -> dict[tuple[str, int], list[Path]]:
    """Where each partition's log is at this moment: in more than one place where something is wrong."""
    found: dict[tuple[str, int], list[Path]] = {}
    for directory in directories:
        for entry in _entries_of(Path(directory)):
            match = PARTITION.match(entry.name)
            if match is not None and match["topic"] != METADATA_TOPIC:
                found.setdefault((match["topic"], int(match["partition"])), []).append(entry)
    return found


def _entries_of(directory: Path) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            yield from [Path(entry.path) for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        raise SegmentsError(f"there is no directory {directory}") from None
    except OSError as error:
        raise SegmentsError(f"{directory} cannot be read: {error.strerror}") from None
