"""Translation of committed consumer group offsets from the source cluster to the target cluster.

A committed offset is the offset of the next record that a group will read. It is translated to the target
offset of that record. If the committed offset is in a gap, it is translated to the target offset of the next
record. If there is no next record, the committed offset is translated to the target's end offset.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kwire.pipeline.mirror.source import end_offsets
from kwire.pipeline.offset_map import (
    OFFSET_BEGINNING,
    RESULT_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    DeliveryError,
    MapEntry,
    OffsetRun,
    committed_reader,
    decode_entry,
    map_partition_count,
    map_partition_of,
    messages,
)

COMMITTED: Final = "committed"
SAME: Final = "unchanged"
NOT_MOVED_BACK: Final = "not moved back"
ACTIVE: Final = "not committed: the group has active members in the target"
NOT_MIRRORED: Final = "not mirrored yet"
REFUSED: Final = "rejected: "
EMPTY_STATES: Final = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD, ConsumerGroupState.UNKNOWN}
UNKNOWN_GROUP: Final = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.COORDINATOR_NOT_AVAILABLE}


class OffsetMapIndex:
    """An index of a target partition's entries in the offset map. The entries stay in the map's topic.

    `fetch(offset)` returns the entry at an offset of the map. `next_record(offset)` returns the offset of the
    first target record at or after `offset`, or the target's end offset if there is no such record.
    """

    def __init__(self, fetch: Callable[[int], MapEntry], next_record: Callable[[int], int]) -> None:
        self._fetch = fetch
        self._next_record = next_record
        self._sources = array("q")
        self._offsets = array("q")
        self._last: tuple[int, MapEntry] | None = None
        self.end = -1
        """The source offset after the last entry's range; -1 if there are no entries."""

    @property
    def next_position(self) -> int:
        """The offset in the map's topic from which to read new entries."""
        return self._offsets[-1] + 1 if self._offsets else OFFSET_BEGINNING

    def add(self, offset: int, entry: MapEntry) -> None:
        """Add the next entry, and its offset in the map. Raises DeliveryError if an entry is missing."""
        if self._sources and entry.source != self.end:
            raise DeliveryError(
                f"the offset map continues with source offset {entry.source} after {self.end}: "
                f"entries are missing"
            )
        self._sources.append(entry.source)
        self._offsets.append(offset)
        self.end = entry.end

    def translate(self, source_offset: int) -> int | None:
        """Translate a source offset. Returns None if the mirror has not reached the source offset yet."""
        if not self._sources or source_offset > self.end:
            return None
        after = -1
        first = max(0, bisect_right(self._sources, source_offset) - 1)
        for number in range(first, len(self._sources)):
            entry = self._entry(number)
            run = _run_of(entry.runs, source_offset)
            if run is not None:
                return run.target + max(0, source_offset - run.source)
            after = max(after, entry.next_target)
        return self._next_record(max(0, after))

    def _entry(self, number: int) -> MapEntry:
        offset = self._offsets[number]
        if self._last is None or self._last[0] != offset:
            self._last = offset, self._fetch(offset)
        return self._last[1]


def _run_of(runs: tuple[OffsetRun, ...], source_offset: int) -> OffsetRun | None:
    """Return the first run that contains the source offset or begins after it, or None."""
    number = max(0, bisect_right(runs, source_offset, key=lambda run: run.source) - 1)
    return next((run for run in runs[number : number + 2] if run.source + run.records > source_offset), None)


class TranslatedOffset(NamedTuple):
    """The result of translating a group's committed offset for one partition."""

    group: str
    topic: str
    """The source topic."""
    partition: int
    source_offset: int
    target_offset: int | None
    """The translated offset; None if the source offset is not mirrored yet."""
    verdict: str
    """The result for the group's offset in the target, such as COMMITTED."""
    source_lag: int
    target_lag: int | None
    """The lag of the group in the target; None if the group has no offset there."""

    def __str__(self) -> str:
        there = "?" if self.target_offset is None else self.target_offset
        lags = f"lag {self.source_lag}"
        if self.target_lag is not None:
            lags += f", {self.target_lag} in the target"
        return (
            f"{self.group} {self.topic}-{self.partition}: {self.source_offset} became {there}, "
            f"{self.verdict} ({lags})"
        )


class GroupOffsetSync:
    """A translator of committed offsets from the cluster `source` to the cluster `target`.

    `pattern` selects group ids. With `move_back`, the group's offset in the target may be lowered. Methods
    raise KafkaException or DeliveryError.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        job: str,
        pattern: str,
        *,
        move_back: bool = False,
    ) -> None:
        self._clients = dict(source), dict(target)
        self._target = AdminClient({"log_level": "5", **target})
        self._consumer = committed_reader(dict(target), job)
        self._pattern = re.compile(pattern)
        self._move_back = move_back
        self._indexes: dict[tuple[str, int], OffsetMapIndex] = {}

    def close(self) -> None:
        self._consumer.close()

    def sync(self, topics: Mapping[str, str]) -> list[TranslatedOffset]:
        """Translate the groups' offsets, commit them in the target, and return the results.

        Does not commit the offsets of a group with members in the target, or lower offsets unless `move_back`
        is set. `topics` maps the names of source topics to those of target topics.
        """
        # Create a new client each time, because a client also sends requests to known but stopped brokers.
        source = AdminClient({"log_level": "5", **self._clients[0]})
        listed = source.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(RESULT_TIMEOUT_SECONDS)
        names = sorted(one.group_id for one in listed.valid if self._pattern.fullmatch(one.group_id))
        found = {}
        for name, offsets in _committed(source, names).items():
            mine = {
                partition_key: offset
                for partition_key, offset in offsets.items()
                if partition_key[0] in topics
            }
            if mine:
                found[name] = mine
        partitions = {partition_key for offsets in found.values() for partition_key in offsets}
        for topic, partition in sorted(partitions):
            self._refresh(topics[topic], partition)
        source_ends = end_offsets(
            self._clients[0], [TopicPartition(*partition_key) for partition_key in partitions]
        )
        target_ends = end_offsets(
            self._clients[1],
            [TopicPartition(topics[topic], number) for topic, number in partitions
             if (topics[topic], number) in self._indexes],
        )  # fmt: skip
        target_offsets = _committed(self._target, list(found))
        active = _active(self._target, list(found))
        moved: list[TranslatedOffset] = []
        for name, offsets in found.items():
            for (topic, partition), (offset, metadata) in sorted(offsets.items()):
                partition_key = topics[topic], partition
                index = self._indexes.get(partition_key)
                translated = None if index is None else index.translate(offset)
                committed = target_offsets.get(name, {}).get(partition_key)
                verdict = self._verdict(translated, committed, name in active)
                if verdict == COMMITTED:
                    assert translated is not None
                    verdict = self._commit(name, partition_key, translated, metadata)
                final = (
                    translated
                    if verdict in (COMMITTED, SAME)
                    else None
                    if committed is None
                    else committed[0]
                )
                lag = max(0, target_ends.get(partition_key, 0) - final) if final is not None else None
                source_lag = max(0, source_ends.get((topic, partition), offset) - offset)
                moved.append(
                    TranslatedOffset(name, topic, partition, offset, translated, verdict, source_lag, lag)
                )
        return moved

    def _verdict(self, translated: int | None, committed: tuple[int, str] | None, is_active: bool) -> str:
        if translated is None:
            return NOT_MIRRORED
        if committed is not None and committed[0] == translated:
            return SAME
        if is_active:
            return ACTIVE
        if committed is not None and committed[0] > translated and not self._move_back:
            return NOT_MOVED_BACK
        return COMMITTED

    def _commit(self, group: str, partition_key: tuple[str, int], offset: int, metadata: str) -> str:
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(*partition_key, offset, metadata)])
        [future] = self._target.alter_consumer_group_offsets(
            [request], request_timeout=TIMEOUT_SECONDS
        ).values()
        try:
            [done] = future.result(RESULT_TIMEOUT_SECONDS).topic_partitions
            error = done.error
        except KafkaException as failure:
            error = failure.args[0]
        if error is None:
            return COMMITTED
        # A member may have joined since the check.
        active = error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP)
        return ACTIVE if active else REFUSED + str(error.str())

    def _refresh(self, topic: str, partition: int) -> None:
        count = map_partition_count(self._consumer, map_partition_of(topic, 0, 1).topic)
        if partition >= count:
            return
        partition_key = map_partition_of(topic, partition, count)
        index = self._indexes.get((topic, partition))
        if index is None:
            index = OffsetMapIndex(
                self._fetcher(partition_key), self._finder(TopicPartition(topic, partition))
            )
        for message in messages(self._consumer, partition_key, index.next_position):
            index.add(message.offset(), decode_entry(message))
        self._indexes[topic, partition] = index

    def _fetcher(self, partition_key: TopicPartition) -> Callable[[int], MapEntry]:
        def fetch(offset: int) -> MapEntry:
            for message in messages(self._consumer, partition_key, offset):
                return decode_entry(message)
            raise DeliveryError(
                f"the offset map {partition_key.topic}-{partition_key.partition} no longer has an entry at "
                f"offset {offset}"
            )

        return fetch

    def _finder(self, partition_key: TopicPartition) -> Callable[[int], int]:
        def next_record(offset: int) -> int:
            return first_at_or_after(self._consumer, partition_key, offset)

        return next_record


def first_at_or_after(consumer: Consumer, partition_key: TopicPartition, offset: int) -> int:
    """Return the offset of the first committed record at or after `offset`, or else the last stable offset.

    Raises KafkaException, or DeliveryError after a timeout.
    """
    consumer.assign([TopicPartition(partition_key.topic, partition_key.partition, offset)])
    message = consumer.poll(TIMEOUT_SECONDS)
    if message is None:
        raise DeliveryError(
            f"reading {partition_key.topic}-{partition_key.partition} at offset {offset} timed out"
        )
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return int(message.offset())


def _committed(admin: Any, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], tuple[int, str]]]:
    """Return each group's committed offsets and metadata by partition; empty if the group does not exist."""
    requests: dict[str, Any] = {}
    for group in groups:
        # The client accepts one group per call.
        requests |= admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_SECONDS
        )
    found = {}
    for group, future in requests.items():
        try:
            partitions = future.result(RESULT_TIMEOUT_SECONDS).topic_partitions or []
        except KafkaException as error:
            if error.args[0].code() not in UNKNOWN_GROUP:
                raise
            partitions = []
        found[group] = {
            (partition_key.topic, partition_key.partition): (
                int(partition_key.offset),
                partition_key.metadata or "",
            )
            for partition_key in partitions
            if partition_key.error is None and partition_key.offset >= 0
        }
    return found


def _active(admin: Any, groups: list[str]) -> set[str]:
    """Return the groups that have members."""
    if not groups:
        return set()
    found = set()
    for group, future in admin.describe_consumer_groups(groups, request_timeout=TIMEOUT_SECONDS).items():
        try:
            description = future.result(RESULT_TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in UNKNOWN_GROUP:
                raise
            continue
        if description.state not in EMPTY_STATES:
            found.add(group)
    return found
