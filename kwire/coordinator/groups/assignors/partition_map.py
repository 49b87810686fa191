"""What one member is to get: its old partitions, changed; all in the order of Kafka's maps and sets."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.coordinator.groups.assignors.spec import OrderedPartitions, Partitions, order_of
from kwire.wire.java import (
    FEWEST_BUCKETS,
    bucket_order,
    buckets_of,
    buckets_of_copy,
    grown,
    hash_map_order,
    hash_set_order,
    uuid_hash,
)


class _Numbers:
    """A `HashSet` of partitions."""

    __slots__ = ("buckets", "keys")

    def __init__(self, keys: Sequence[int], buckets: int) -> None:
        self.keys = dict.fromkeys(keys)
        self.buckets = grown(buckets, len(keys))

    def add(self, partition: int) -> None:
        self.keys[partition] = None
        self.buckets = grown(self.buckets, len(self.keys))

    @property
    def order(self) -> list[int]:
        return bucket_order(self.keys, int, self.buckets)


class PartitionMap:
    """Partitions by topic id. Kafka copies map and sets at the first change, the map into a smaller one."""

    def __init__(self, assigned: Partitions) -> None:
        self._topics = {topic_id: assigned[topic_id] for topic_id in hash_map_order(assigned, uuid_hash)}
        self._changed: dict[bytes, _Numbers] = {}
        self._buckets: int | None = None

    @property
    def topic_ids(self) -> list[bytes]:
        """The topics of which there are partitions, in order as long as nothing has changed."""
        return list(self._topics)

    def order(self, topic_id: bytes) -> list[int]:
        """The partitions of one of the topics, in order."""
        if topic_id in self._changed:
            return self._changed[topic_id].order
        return hash_set_order(order_of(self._topics[topic_id]), int)

    def add(self, topic_id: bytes, partition: int, buckets: int = FEWEST_BUCKETS) -> None:
        """Take in one more partition; `buckets` is how many the set has where there is none of that topic."""
        # `computeIfAbsent` looks whether the table is too full before it looks for the key, and not after it
        # has put one in; that goes first in its bucket.
        self._buckets = grown(self.to_be_changed(), len(self._topics))
        if topic_id not in self._topics:
            self._topics = {topic_id: frozenset(), **self._topics}
            self._changed[topic_id] = _Numbers((), buckets)
        self._of(topic_id).add(partition)

    def remove(self, topic_id: bytes, partition: int) -> None:
        """Give up one partition; a topic goes with its last one."""
        self.to_be_changed()
        own = self._of(topic_id)
        own.keys.pop(partition, None)
        if not own.keys:
            self.drop(topic_id)

    def drop(self, topic_id: bytes) -> None:
        """Give up all partitions of a topic."""
        self.to_be_changed()
        del self._topics[topic_id]
        self._changed.pop(topic_id, None)

    def to_be_changed(self) -> int:
        """Make the copy, if that is not done; its number of buckets."""
        if self._buckets is None:
            self._buckets = grown(buckets_of(len(self._topics)), len(self._topics))
        return self._buckets

    def result(self) -> dict[bytes, frozenset[int]]:
        """All of it, in order."""
        topic_ids = list(self._topics)
        if self._buckets is not None:
            topic_ids = bucket_order(topic_ids, uuid_hash, self._buckets)
        return {topic_id: OrderedPartitions(self.order(topic_id)) for topic_id in topic_ids}

    def _of(self, topic_id: bytes) -> _Numbers:
        if topic_id not in self._changed:
            order = self.order(topic_id)
            self._changed[topic_id] = _Numbers(order, buckets_of_copy(len(order)))
        return self._changed[topic_id]
