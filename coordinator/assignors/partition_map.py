"""What one member is to get: its old partitions, changed; topics in the order of Kafka's map."""

from __future__ import annotations

from coordinator.assignors.spec import Partitions
from coordinator.java import bucket_order, buckets_of, grown, hash_map_order, uuid_hash


class PartitionMap:
    """Partitions by topic id. Kafka copies its map at the first change, into a smaller one."""

    def __init__(self, assigned: Partitions) -> None:
        self._topics = {topic_id: assigned[topic_id] for topic_id in hash_map_order(assigned, uuid_hash)}
        self._changed: dict[bytes, set[int]] = {}
        self._buckets: int | None = None

    @property
    def topic_ids(self) -> list[bytes]:
        """The topics of which there are partitions, in order as long as nothing has changed."""
        return list(self._topics)

    def partitions(self, topic_id: bytes) -> frozenset[int] | set[int]:
        """The partitions of one of the topics."""
        return self._changed.get(topic_id, self._topics[topic_id])

    def add(self, topic_id: bytes, partition: int) -> None:
        """Take in one more partition."""
        # `computeIfAbsent` looks whether the table is too full before it looks for the key, and not after it
        # has put one in; that goes first in its bucket.
        self._buckets = grown(self.to_be_changed(), len(self._topics))
        if topic_id not in self._topics:
            self._topics = {topic_id: frozenset(), **self._topics}
        self._of(topic_id).add(partition)

    def remove(self, topic_id: bytes, partition: int) -> None:
        """Give up one partition; a topic goes with its last one."""
        self.to_be_changed()
        own = self._of(topic_id)
        own.discard(partition)
        if not own:
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
        order = list(self._topics)
        if self._buckets is not None:
            order = bucket_order(order, uuid_hash, self._buckets)
        return {topic_id: frozenset(self.partitions(topic_id)) for topic_id in order}

    def _of(self, topic_id: bytes) -> set[int]:
        if topic_id not in self._changed:
            self._changed[topic_id] = set(self._topics[topic_id])
        return self._changed[topic_id]
