"""Committed offsets by group, topic and partition, and their expiry. KIP-211.

Only `replay` changes the offsets. Other methods read the offsets and return records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from kwire.coordinator.state_machine import CoordinatorRecord
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, TopicPartition, Uuid
from kwire.wire.records.groups import OffsetCommitKey, OffsetCommitValue

OFFSET_VERSION = 4
"""The version of OffsetCommitValue that Apache Kafka 4.3.1 writes, which has the topic id."""

OFFSET_VERSION_WITH_EXPIRY = 1
"""The only version with an expiry time per record, for commits with a retention time (OffsetCommit v2–4)."""


MAX_TIMESTAMP_MS = (1 << 63) - 1
"""The latest timestamp that a record can hold."""


class CommittedOffset(NamedTuple):
    """A group's committed offset in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    """The expiry time in ms if the commit had a retention time; -1 if offsets.retention.minutes applies."""
    topic_id: Uuid = ZERO_UUID


class PartitionCommit(NamedTuple):
    """The offset of one partition in a valid commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: Uuid = ZERO_UUID


class OffsetCommit(NamedTuple):
    """A commit whose topics exist and whose metadata is not too large."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    commits: Sequence[PartitionCommit]
    retention_ms: int | None
    """The retention time of the offsets, or None if the request has none (only OffsetCommit v2–4 has one)."""
    api_version: int
    """The version of an OffsetCommit request. TxnOffsetCommit does not use it."""


OffsetsByIndex = dict[int, CommittedOffset]

OffsetRecord = tuple[OffsetCommitKey, OffsetCommitValue]
"""The key and value of an offset's record."""


class Offsets:
    """The committed offsets of all groups in one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, OffsetsByIndex]] = {}
        self._previous: dict[str, dict[TopicPartition, deque[CommittedOffset | None]]] = {}
        """By group and partition: the offsets before each record that is not committed yet, oldest first."""

    # --- reading

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self._by_group.values() for partitions in topics.values())

    def topics(self, group_id: str) -> dict[str, OffsetsByIndex]:
        """Return the offsets of a group by topic and partition. Callers must not change them."""
        return self._by_group.get(group_id, {})

    def is_pending(self, group_id: str) -> bool:
        """Whether the group has offset records that are not committed yet."""
        return group_id in self._previous

    def committed_topics(self, group_id: str) -> dict[str, OffsetsByIndex]:
        """Return a pending group's offsets (see `is_pending`) without the effect of uncommitted records."""
        before = self._previous[group_id]
        found = {topic: dict(partitions) for topic, partitions in self.topics(group_id).items()}
        for (topic, partition), values in before.items():
            if values[0] is not None:
                found.setdefault(topic, {})[partition] = values[0]
            elif topic in found:
                found[topic].pop(partition, None)
        return {topic: partitions for topic, partitions in found.items() if partitions}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def _all(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._by_group.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    # --- records

    @staticmethod
    def commit(commit: OffsetCommit, now_ms: int) -> list[CoordinatorRecord]:
        """Return the records of a commit.

        Raises ApiError INVALID_REQUEST if the expiry time of the offsets exceeds `MAX_TIMESTAMP_MS`.
        """
        group_id, retention_ms = commit.group_id, commit.retention_ms
        expire_timestamp = -1 if retention_ms is None else now_ms + retention_ms
        if expire_timestamp > MAX_TIMESTAMP_MS:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        version = OFFSET_VERSION if retention_ms is None else OFFSET_VERSION_WITH_EXPIRY
        return [
            CoordinatorRecord(
                OffsetCommitKey(group=group_id, topic=one.topic, partition=one.partition),
                OffsetCommitValue(
                    offset=one.offset,
                    leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                    commit_timestamp=now_ms,
                    expire_timestamp=expire_timestamp,
                    topic_id=one.topic_id,
                ),
                version,
            )
            for one in commit.commits
        ]

    def delete_group_offsets(
        self, group_id: str, unstable: Iterable[TopicPartition]
    ) -> list[CoordinatorRecord]:
        """Return tombstones for all offsets of a group, including those of open transactions (`unstable`)."""
        stable = {(topic, partition) for topic, partition, _ in self._all(group_id)}
        return [tombstone(group_id, *place) for place in sorted(stable.union(unstable))]

    def delete_topic_offsets(
        self, topics: Mapping[str, Uuid], unstable: Iterable[OffsetRecord]
    ) -> list[CoordinatorRecord]:
        """Return tombstones for the offsets of all groups in deleted topics (ids by name).

        `unstable` are the offsets of open transactions. Offsets of another topic with the same name are kept.
        """
        gone = {
            (group_id, topic, partition)
            for group_id, topics_of_group in self._by_group.items()
            for topic in topics_of_group.keys() & topics.keys()
            for partition, committed in topics_of_group[topic].items()
            if committed.topic_id in (ZERO_UUID, topics[topic])
        }
        for key, value in unstable:
            if key.topic in topics and value.topic_id in (ZERO_UUID, topics[key.topic]):
                gone.add((key.group, key.topic, key.partition))
        return [tombstone(*place) for place in sorted(gone)]

    def delete_expired_offsets(
        self,
        group_id: str,
        *,
        now_ms: int,
        retention_ms: int,
        since: Callable[[CommittedOffset], int] | None,
        in_use: Callable[[str], bool],
        unstable: Collection[TopicPartition],
    ) -> tuple[list[CoordinatorRecord], bool]:
        """Return tombstones for the expired offsets of a group, and whether no offset remains.

        `since` returns the time in ms at which the retention of an offset starts. `since` is None if no
        offset may expire now. Offsets of topics `in_use`, and of partitions with an offset in an open
        transaction (`unstable`), do not expire.
        """
        records: list[CoordinatorRecord] = []
        if since is None:
            return records, not unstable and not self._by_group.get(group_id)
        all_expired = not unstable
        for topic, partition, committed in self._all(group_id):
            if in_use(topic) or (topic, partition) in unstable:
                expired = False
            elif committed.expire_timestamp != -1:
                expired = now_ms >= committed.expire_timestamp
            else:
                expired = now_ms - since(committed) >= retention_ms
            if expired:
                records.append(tombstone(group_id, topic, partition))
            else:
                all_expired = False
        return records, all_expired

    # --- replay

    def record_pending(self, key: OffsetCommitKey) -> None:
        """Remember the current offset of a key before an uncommitted record of the key is replayed."""
        before = self.get(key.group, key.topic, key.partition)
        of_group = self._previous.setdefault(key.group, {})
        of_group.setdefault((key.topic, key.partition), deque()).append(before)

    def record_committed(self, key: OffsetCommitKey) -> None:
        """Forget the oldest remembered offset of this key, since its record is committed."""
        of_group = self._previous[key.group]
        place = key.topic, key.partition
        of_group[place].popleft()
        if not of_group[place]:
            del of_group[place]
            if not of_group:
                del self._previous[key.group]

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, _offset: int) -> None:
        """Apply a record. A value of None is a tombstone."""
        if value is not None:
            topics = self._by_group.setdefault(key.group, {})
            topics.setdefault(key.topic, {})[key.partition] = CommittedOffset(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
                value.topic_id,
            )
            return
        topics_of_group = self._by_group.get(key.group)
        partitions = None if topics_of_group is None else topics_of_group.get(key.topic)
        if topics_of_group is None or partitions is None:
            return
        partitions.pop(key.partition, None)
        if not partitions:
            del topics_of_group[key.topic]
            if not topics_of_group:
                del self._by_group[key.group]


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the tombstone of an offset."""
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
