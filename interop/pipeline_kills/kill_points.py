"""Kill points of a job. Each is an event that leaves a trace in the file system, plus a delay."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from kwire.wire.plural import plural

PREPARED, COMPLETE = 2, 4
"""The states PrepareCommit and CompleteCommit in the transaction log."""
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
ATTRIBUTES_AT, COUNT_AT = 5, 12
CODEC_BITS: Final = 7
STATUS_AT: Final = 2 + 8 + 2 + 4
"""The position of the state in a record's value, after version, producer id, epoch and timeout."""


class KillPoint(NamedTuple):
    """An event and a delay, after which a process is killed."""

    name: str
    is_reached: Callable[[], bool]
    pause_s: float

    def __str__(self) -> str:
        return f"{self.pause_s:.3f} s after {self.name}"


Step = tuple[str, Callable[[], bool]]


def choose_kill_point(steps: Sequence[Step], rng: Random, longest_s: float) -> KillPoint:
    """Choose a random event and a random delay of 0 to `longest_s` seconds. Short delays are more likely."""
    name, is_reached = rng.choice(steps)
    pause_s = rng.choice((0.0, rng.uniform(0, 0.03), rng.uniform(0, 0.3), rng.uniform(0, longest_s)))
    return KillPoint(name, is_reached, pause_s)


def archive_steps(archive: Path, commits: int, rng: Random) -> list[Step]:
    """Return the events of the job `archive`, for a random commit."""
    number = rng.randrange(commits)
    staging, name = archive / "_staging", f"{number:010d}"
    manifests = archive / "_manifests"

    def written() -> bool:
        return any(staging.glob(f"*-{name}*/**/*.parquet"))

    def staged() -> bool:
        return any(staging.glob(f"*-{name}*/_SUCCESS"))

    def moving() -> bool:
        return any((archive / "data").glob(f"*/*/*/part-*-{name}-*.parquet"))

    def moved() -> bool:
        return moving() and not any(staging.glob(f"*-{name}*"))

    return [
        ("the start", lambda: True),
        *stream_steps(archive / "_checkpoint", commits, rng),
        (f"the first file of step {number}", written),
        (f"all files of step {number}", staged),
        (f"the first move of step {number}", moving),
        (f"the last move of step {number}", moved),
        (f"the manifest of step {number}", (manifests / f"{number:020d}.json").exists),
    ]


def compact_steps(before: Path, archive: Path, rng: Random) -> list[Step]:
    """Return the events of the job `compact` on a copy of the archive `before`."""
    data, merged = archive / "data", "*/*/*/part-merged-*.parquet"
    old = [path.relative_to(before) for path in (before / "data").rglob("*.parquet")]
    one = rng.choice(old)
    manifests = len(list((before / "_manifests").glob("*.json")))
    count = rng.randrange(1, 20)

    def staged() -> bool:
        return sum(1 for _ in (archive / "_staging").glob("merged-*/*/*/*/*.parquet")) >= count

    def moved() -> bool:
        return sum(1 for _ in data.glob(merged)) >= count

    return [
        ("the start", lambda: True),
        (plural(count, "merged file"), staged),
        (plural(count, "moved file"), moved),
        ("the manifest", (archive / "_manifests" / f"{manifests:020d}.json").exists),
        (f"the end of {one}", lambda: not (archive / one).exists()),
    ]


def directory_steps(directory: Path, size_bytes: int, rng: Random) -> list[Step]:
    """Return the events of a restore into a directory.

    One event is a random size of the restored logs, less than `size_bytes`.
    """
    building = directory.with_name(f".{directory.name}.restoring")
    wanted = rng.randrange(1, size_bytes)

    def reached() -> bool:
        try:
            found = sum(path.stat().st_size for path in building.glob("attempts/*/*/*.log"))
        except FileNotFoundError:
            return True  # The directory was renamed during the check, which happens after this event.
        return found >= wanted or directory.exists()

    def put() -> bool:
        return any(building.glob("*-[0-9]/*.log"))

    return [
        ("the start", lambda: True),
        ("its formatting", (building / "meta.properties").exists),
        (plural(wanted, "byte"), reached),
        (plural(wanted, "byte"), reached),
        ("a partition in its place", put),
        ("the checkpoints", (building / "recovery-point-offset-checkpoint").exists),
        ("the end", directory.exists),
    ]


def stream_steps(checkpoint: Path, steps: int, rng: Random) -> list[Step]:
    """Return the start and the commit of a random micro-batch, as recorded in Spark's checkpoint."""
    number = rng.randrange(steps)
    return [
        (f"Spark's note of step {number}", (checkpoint / "offsets" / str(number)).exists),
        (f"Spark's note of the end of step {number}", (checkpoint / "commits" / str(number)).exists),
    ]


def delivery_steps(data: Path, topic: str, size_bytes: int, rng: Random) -> list[Step]:
    """Return the events of writing to a topic.

    One event is a random size of the first partition, less than `size_bytes`.
    """
    wanted = rng.randrange(1, size_bytes)

    def reached() -> bool:
        return sum(path.stat().st_size for path in (data / f"{topic}-0").glob("*.log")) >= wanted

    return [
        ("the start", lambda: True),
        (f"the topic {topic}", (data / f"{topic}-0").exists),
        (f"{plural(wanted, 'byte')} of {topic}-0", reached),
        (f"{plural(wanted, 'byte')} of {topic}-0", reached),
    ]


def transaction_steps(data: Path, about: str, transactions: int, rng: Random) -> list[Step]:
    """Return the prepared and the completed commit of a random transaction with `about` in its id."""
    number = rng.randrange(1, transactions + 1)
    log = TransactionLog(data, about)
    return [
        (f"the prepared commit of transaction {number}", lambda: log.count(PREPARED) >= number),
        (f"the prepared commit of transaction {number}", lambda: log.count(PREPARED) >= number),
        (f"the end of transaction {number}", lambda: log.count(COMPLETE) >= number),
    ]


class TransactionLog:
    """A reader of the broker's log files of __transaction_state. It counts states of transactions."""

    def __init__(self, data: Path, about: str) -> None:
        self._data = data
        self._about = about.encode()
        self._read: dict[Path, int] = {}
        self._counts: dict[int, int] = {}

    def count(self, status: int) -> int:
        """Read new records. Return how many transactions with `about` in the id have entered this state."""
        for path in self._data.glob("__transaction_state-*/*.log"):
            self._follow(path)
        return self._counts.get(status, 0)

    def _follow(self, path: Path) -> None:
        at = self._read.get(path, 0)
        if path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        length = 0
        for size_bytes, keys_and_values in batches_of(data):
            length += size_bytes
            for key, value in keys_and_values:
                if self._about in key and len(value) > STATUS_AT:
                    self._counts[value[STATUS_AT]] = self._counts.get(value[STATUS_AT], 0) + 1
        self._read[path] = at + length


def batches_of(data: bytes) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    """Yield the size in bytes and the records of each complete record batch at the start of `data`.

    A record is a pair of key and value. The list of records is empty for a compressed batch.
    """
    at = 0
    while at + BATCH_HEADER.size <= len(data):
        header = BATCH_HEADER.unpack_from(data, at)
        size_bytes = 12 + header[1]
        if at + size_bytes > len(data):
            return
        records = []
        if not header[ATTRIBUTES_AT] & CODEC_BITS:
            place = at + BATCH_HEADER.size
            for _ in range(header[COUNT_AT]):
                length, place = _varint(data, place)
                records.append(_record(data, place))
                place += length
        yield size_bytes, records
        at += size_bytes


def _record(data: bytes, at: int) -> tuple[bytes, bytes]:
    at += 1  # skip the attributes
    _, at = _varint(data, at)
    _, at = _varint(data, at)
    found = []
    for _ in ("key", "value"):
        length, at = _varint(data, at)
        found.append(data[at : at + max(length, 0)])
        at += max(length, 0)
    return found[0], found[1]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a zigzag varint. Return its value and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
