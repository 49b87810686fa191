"""Options of the segment source: the options of Spark's Kafka source, and the path of the data directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kwire.pipeline.origin import INTERNAL
from kwire.pipeline.segments.damage import SkipDamage
from kwire.pipeline.segments.files import PartitionLog, SegmentsError, partitions_in
from kwire.wire.messages.list_offsets import EARLIEST, LATEST

_BOUNDS: Final = (
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
)
_KNOWN: Final = {
    *_BOUNDS,
    "path",
    "subscribe",
    "subscribepattern",
    "assign",
    "includeheaders",
    "isolationlevel",
    "kafka.isolation.level",
    "kafka.bootstrap.servers",
    "failondataloss",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "startingoffsetsbytimestampstrategy",
    "targetpartitionbytes",
    "oncorrupt",
    "skippedrangespath",
}
_IGNORED: Final = "kafka."
"""The prefix of Kafka client settings. The source ignores them, so that a job can keep its options when it
changes from Spark's Kafka source to this source."""

PartitionOffsets = Mapping[tuple[str, int], int]


class Bound(NamedTuple):
    """The start or the end of a read, for each partition or for all partitions."""

    default: int | None
    """EARLIEST, LATEST or an offset, for partitions that are not listed; None if all must be listed."""
    offsets: PartitionOffsets = {}
    timestamps_ms: PartitionOffsets = {}
    timestamp_ms: int | None = None
    """A timestamp for all partitions."""


class Options(NamedTuple):
    """The parsed options."""

    directories: list[str]
    topics: frozenset[str]
    pattern: re.Pattern[str] | None
    assigned: frozenset[tuple[str, int]]
    """Topics and partitions to read. Exactly one of `topics`, `pattern` and `assigned` is set."""
    starting: Bound
    ending: Bound
    headers: bool
    read_committed: bool
    fail_on_data_loss: bool
    latest_if_no_timestamp: bool
    min_partitions: int
    max_records_per_partition: int | None
    """The maximum number of offsets that one task reads; None for no maximum."""
    max_offsets_per_trigger: int | None
    target_partition_bytes: int | None
    """The approximate number of bytes that one task reads; None for the default."""
    skipping: SkipDamage | None = None
    """The setting to skip corruption; None to raise an error."""

    def current_partitions(self) -> list[PartitionLog]:
        """Return the selected partitions that exist now, for a running stream.

        Raises SegmentsError for a missing topic if failOnDataLoss is set.
        """
        return (
            self.partitions() if self.fail_on_data_loss else self._subscribed(partitions_in(self.directories))
        )

    def partitions(self) -> list[PartitionLog]:
        """Return the selected partitions. Raises SegmentsError if a selected partition does not exist."""
        there = partitions_in(self.directories)
        missing = self.topics - {partition.topic for partition in there}
        if missing:
            raise SegmentsError(
                f"{', '.join(self.directories)} has no topic {', '.join(sorted(missing))}; its topics: "
                f"{', '.join(sorted({partition.topic for partition in there})) or 'none'}"
            )
        lacking = self.assigned - {(partition.topic, partition.partition) for partition in there}
        if lacking:
            names = ", ".join(sorted(f"{topic}-{partition}" for topic, partition in lacking))
            raise SegmentsError(f"{', '.join(self.directories)} does not have partition {names}")
        return self._subscribed(there)

    def _subscribed(self, there: Sequence[PartitionLog]) -> list[PartitionLog]:
        if self.pattern is not None:
            # As in Spark's Kafka source, a pattern matches no internal topic. A name does.
            return [
                partition
                for partition in there
                if partition.topic not in INTERNAL and self.pattern.fullmatch(partition.topic)
            ]
        return [
            partition
            for partition in there
            if partition.topic in self.topics or (partition.topic, partition.partition) in self.assigned
        ]


def parse(options: Mapping[str, str], *, streaming: bool = False) -> Options:
    """Parse the options of the source. Option names are case-insensitive. Raises SegmentsError."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _KNOWN and not name.startswith(_IGNORED):
            raise SegmentsError(f"unknown option {name!r}; the options are {', '.join(sorted(_KNOWN))}")
    if "path" not in given:
        raise SegmentsError(
            "the option 'path' is missing: set it to the data directory, or several with commas"
        )
    topics, pattern, assigned = _subscription(given)
    starting = _bound(given, "starting", LATEST if streaming else EARLIEST)
    ending = _bound(given, "ending", LATEST)
    if streaming and any(name.startswith("ending") for name in given):
        raise SegmentsError("a stream has no end: remove the options 'ending…'")
    isolation = given.get("isolationlevel", given.get("kafka.isolation.level", "read_uncommitted"))
    return Options(
        directories=[part.strip() for part in given["path"].split(",") if part.strip()],
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        headers=_flag(given, "includeheaders", False),
        read_committed=_choice("isolationLevel", isolation, ("read_uncommitted", "read_committed")) == 1,
        fail_on_data_loss=_flag(given, "failondataloss", True),
        latest_if_no_timestamp=_choice(
            "startingOffsetsByTimestampStrategy",
            given.get("startingoffsetsbytimestampstrategy", "error"),
            ("error", "latest"),
        )
        == 1,
        min_partitions=_number(given, "minpartitions", 1, 1),
        max_records_per_partition=_optional_number(given, "maxrecordsperpartition"),
        max_offsets_per_trigger=_optional_number(given, "maxoffsetspertrigger"),
        skipping=(
            SkipDamage(given.get("skippedrangespath", ""))
            if _choice("onCorrupt", given.get("oncorrupt", "fail"), ("fail", "skip"))
            else None
        ),
        target_partition_bytes=_optional_number(given, "targetpartitionbytes"),
    )


def _subscription(
    given: Mapping[str, str],
) -> tuple[frozenset[str], re.Pattern[str] | None, frozenset[tuple[str, int]]]:
    ways = [name for name in ("subscribe", "subscribepattern", "assign") if name in given]
    if len(ways) != 1:
        raise SegmentsError("set exactly one of 'subscribe', 'subscribePattern' and 'assign'")
    value = given[ways[0]]
    if ways == ["subscribe"]:
        topics = frozenset(topic.strip() for topic in value.split(",") if topic.strip())
        if not topics:
            raise SegmentsError("'subscribe' is empty")
        return topics, None, frozenset()
    if ways == ["subscribepattern"]:
        try:
            return frozenset(), re.compile(value), frozenset()
        except re.error as error:
            raise SegmentsError(
                f"'subscribePattern' {value!r} is not a regular expression: {error}"
            ) from None
    found = _json("assign", value)
    if not all(isinstance(numbers, list) for numbers in found.values()):
        raise SegmentsError("'assign' must look like {\"topic\": [0, 1]}")
    return (
        frozenset(),
        None,
        frozenset((topic, int(number)) for topic, numbers in found.items() for number in numbers),
    )


def _bound(given: Mapping[str, str], side: str, default: int) -> Bound:
    name = f"{side}offsets"
    if f"{side}timestamp" in given:
        return Bound(None, timestamp_ms=_number(given, f"{side}timestamp", 0, 0))
    if f"{side}offsetsbytimestamp" in given:
        named = _by_partition(f"{side}offsetsbytimestamp", given[f"{side}offsetsbytimestamp"])
        return Bound(None, timestamps_ms=named)
    value = given.get(name)
    if value is None:
        return Bound(default)
    if value.strip().lower() in ("earliest", "latest"):
        offset = EARLIEST if value.strip().lower() == "earliest" else LATEST
        if side == "ending" and offset == EARLIEST:
            raise SegmentsError("'endingOffsets' cannot be earliest")
        return Bound(offset)
    offsets = _by_partition(name, value)
    least = EARLIEST if side == "starting" else LATEST
    for (topic, partition), offset in offsets.items():
        if offset < least:
            raise SegmentsError(f"{name!r} has offset {offset} for {topic}-{partition}")
    return Bound(None, offsets=offsets)


def _by_partition(name: str, value: str) -> dict[tuple[str, int], int]:
    found = {}
    for topic, numbers in _json(name, value).items():
        if not isinstance(numbers, dict):
            raise SegmentsError(f'{name!r} must look like {{"topic": {{"0": 23}}}}')
        for partition, number in numbers.items():
            found[topic, int(partition)] = int(number)
    return found


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise SegmentsError(f"{name!r} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise SegmentsError(f"{name!r} is not a JSON object")
    return found


def _number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    try:
        value = int(given.get(name, default))
    except ValueError:
        raise SegmentsError(f"{name!r} must be a number, not {given[name]!r}") from None
    if value < least:
        raise SegmentsError(f"{name!r} must be at least {least}")
    return value


def _optional_number(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1, 1) if name in given else None


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    if name not in given:
        return default
    return _choice(name, given[name].lower(), ("false", "true")) == 1


def _choice(name: str, value: str, choices: Sequence[str]) -> int:
    if value not in choices:
        raise SegmentsError(f"{name!r} must be {' or '.join(choices)}, not {value!r}")
    return list(choices).index(value)
