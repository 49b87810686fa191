"""The files of a data directory: partitions, segments and their indexes."""

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
from kwire.wire.plural import plural

PARTITION: Final = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)$")
_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED_ENTRY: Final = np.dtype(
    [("version", ">i2"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8"), ("stable", ">i8")]
)
_PIECE_ENTRIES: Final = 1024
RETRY_DELAYS_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
"""The delays before repeated listings. Listings are repeated because a log may move during a listing."""

Sleep = Callable[[float], None]

Index = npt.NDArray[np.int64]
"""The entries of an index as an array with two columns. Both columns are in ascending order."""


class SegmentsError(Exception):
    """Segments cannot be read. The message has the file, offset or topic, and what to do."""


class Segment(NamedTuple):
    """A segment of a log."""

    path: Path
    base_offset: int

    def beside(self, suffix: str) -> Path:
        """Return the path of another file of this segment, such as an index."""
        return self.path.with_suffix(suffix)

    def size_bytes(self) -> int:
        """Return the current size of the segment's log file."""
        return self.path.stat().st_size

    def offset_index(self) -> Index:
        """Read the offset index. Each entry has an offset, and the position of a batch at or before it."""
        entries = _entries(self.beside(".index"), _OFFSET_ENTRY)
        found = np.empty((len(entries), 2), np.int64)
        found[:, 0] = entries["offset"].astype(np.int64) + self.base_offset
        found[:, 1] = entries["position"]
        return _ascending(found, self.base_offset)

    def time_index(self) -> Index:
        """Read the time index. Each entry has the maximum timestamp of all records up to an offset."""
        entries = _entries(self.beside(".timeindex"), _TIME_ENTRY)
        found = np.empty((len(entries), 2), np.int64)
        found[:, 0] = entries["timestamp"]
        found[:, 1] = entries["offset"].astype(np.int64) + self.base_offset
        return _ascending(found, 0)

    def aborted(self) -> list[AbortedTxn]:
        """Read the aborted transactions whose markers are in this segment. Raises SegmentsError."""
        path = self.beside(".txnindex")
        data = _content(path)
        if len(data) % ENTRY_BYTES:
            raise SegmentsError(f"{path} has {plural(len(data), 'byte')}, not a multiple of {ENTRY_BYTES}")
        entries = np.frombuffer(data, _ABORTED_ENTRY)
        if entries["version"].any():
            raise SegmentsError(f"{path} has entries of an unknown version")
        return [AbortedTxn(*map(int, tuple(entry)[1:])) for entry in entries]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _entries(path: Path, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Read the entries of an index file. The result may end with a few entries of zeros.

    The broker preallocates the index of an active segment, so most of the file is zeros.
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
    """Return the entries before the first invalid entry. An index may end with zeros or be corrupt."""
    if not len(found):
        return found
    wrong = np.flatnonzero((np.diff(found[:, 0]) <= 0) | (np.diff(found[:, 1]) <= 0))
    if found[0, 0] < least:
        return found[:0]
    return found[: int(wrong[0]) + 1] if len(wrong) else found


class PartitionLog(NamedTuple):
    """A partition's log in a log directory."""

    topic: str
    partition: int
    directory: Path
    skipping: SkipDamage | None = None
    """The setting to skip corruption; None to raise an error."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def segments(self) -> list[Segment]:
        """Return the segments, oldest first. Raises SegmentsError if the directory does not exist."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            raise SegmentsError(
                f"{self.directory} does not exist any more: was topic {self.topic} deleted, or the log moved "
                f"to another directory? After a move, run again"
            ) from None
        except OSError as error:
            raise SegmentsError(f"{self.directory} cannot be read: {error.strerror}") from None
        bases = sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.log", name))
        return [Segment(self.directory / f"{base:020d}.log", base) for base in bases]

    def snapshots(self) -> list[tuple[int, Path]]:
        """Return the offset and the path of each producer snapshot, newest first."""
        found = [
            (int(path.stem), path)
            for path in self.directory.glob("*.snapshot")
            if re.fullmatch(r"\d{20}", path.stem)
        ]
        return sorted(found, reverse=True)

    def start_offset(self) -> int:
        """Return the log start offset: that in the checkpoint, but at least the first segment's base offset.

        Raises SegmentsError if the log's directory does not exist.
        """
        segments = self.segments()
        first = segments[0].base_offset if segments else 0
        checkpoint = self.directory.parent / "log-start-offset-checkpoint"
        return max(first, read_checkpoint(checkpoint).get((self.topic, self.partition), 0))


def read_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Read the offsets in a checkpoint file. A missing or malformed file is read as an empty one."""
    found = {}
    for line in _content(path).decode("utf-8", "replace").splitlines()[2:]:
        topic, _, rest = line.partition(" ")
        partition, _, offset = rest.partition(" ")
        if topic and partition.isdigit() and offset.isdigit():
            found[topic, int(partition)] = int(offset)
    return found


def partitions_in(directories: Sequence[str], *, sleep: Sleep = time.sleep) -> list[PartitionLog]:
    """List the partitions in data directories, or in copies of them. Raises SegmentsError.

    Excludes logs that are being deleted, incomplete logs of a move to another log directory, and the metadata
    log, whose records have another format.
    """
    found = _logs_in(directories)
    # To finish the move of a log, Apache Kafka renames the new directory and then the old directory. A
    # listing between the renames finds two logs. If the data directories are listed at different moments,
    # neither log may be found. So two listings must agree, unless there is only one data directory.
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
    """Return each partition's directories at this moment. More than one means that its log is moving."""
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
        raise SegmentsError(f"directory {directory} does not exist") from None
    except OSError as error:
        raise SegmentsError(f"{directory} cannot be read: {error.strerror}") from None
