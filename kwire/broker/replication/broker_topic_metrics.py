"""Traffic counters per topic, as in Kafka's BrokerTopicMetrics. A counter never falls while the topic exists.

Counters are kept per topic and not per partition. Otherwise the sum for a topic would fall when a partition
moves to another broker, and a monitoring system would take that for a restart.
"""

from __future__ import annotations

from typing import Final

from kwire.wire.errors import ErrorCode

NOT_COUNTED: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors that Apache Kafka does not count as failed appends."""

COUNTS: Final = (
    "bytes_in",
    "bytes_out",
    "failed_appends",
    "messages_in",
    "appends",
    "reads",
    "replication_bytes_in",
    "replication_bytes_out",
)


class BrokerTopicMetrics:
    """The counters of one topic since the start of the broker."""

    __slots__ = COUNTS

    def __init__(self) -> None:
        self.bytes_in = 0
        """Bytes appended by clients and coordinators."""
        self.bytes_out = 0
        """Bytes sent to consumers."""
        self.appends = 0
        """Batches that the broker tried to append, including rejected batches."""
        self.failed_appends = 0
        self.reads = 0
        """The number of partitions in all Fetch responses to consumers and followers."""
        self.messages_in = 0
        self.replication_bytes_in = 0
        """Bytes fetched from leaders."""
        self.replication_bytes_out = 0
        """Bytes sent to followers."""

    def add(self, other: BrokerTopicMetrics) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerTopicStats:
    """The counters of all topics of a broker, with one sum for all deleted topics."""

    def __init__(self) -> None:
        self.topics: dict[str, BrokerTopicMetrics] = {}
        self._deleted = BrokerTopicMetrics()

    def for_topic(self, topic: str) -> BrokerTopicMetrics:
        """Return the counters of a topic, creating them if necessary."""
        known = self.topics.get(topic)
        if known is None:
            known = self.topics[topic] = BrokerTopicMetrics()
        return known

    def remove(self, topic: str) -> None:
        """Remove a deleted topic. Its counts remain in the total."""
        known = self.topics.pop(topic, None)
        if known is not None:
            self._deleted.add(known)

    def total(self) -> BrokerTopicMetrics:
        """Return the sum over all topics since the start of the broker, including deleted topics."""
        total = BrokerTopicMetrics()
        for known in (self._deleted, *self.topics.values()):
            total.add(known)
        return total
