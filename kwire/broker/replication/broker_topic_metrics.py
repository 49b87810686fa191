"""What has come in and gone out, a topic: counts that only rise, for as long as the topic is there.

They are kept a topic and not a partition, so that none falls when a partition moves to another broker: who
takes rates of them would see a fall as a new start. Each costs one addition where the bytes pass by anyway.
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
"""Refusals that Apache Kafka does not count as failed appends."""

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
    """The counts of one topic on this broker since it started."""

    __slots__ = COUNTS

    def __init__(self) -> None:
        self.bytes_in = 0
        """Of what was appended by clients and coordinators."""
        self.bytes_out = 0
        """Of what was sent to consumers."""
        self.appends = 0
        """Of batches to a partition, the refused ones among them."""
        self.failed_appends = 0
        self.reads = 0
        """Answers to a fetch, a partition, of consumers and followers."""
        self.messages_in = 0
        self.replication_bytes_in = 0
        """Of what was fetched from leaders."""
        self.replication_bytes_out = 0
        """Of what was sent to followers."""

    def add(self, other: BrokerTopicMetrics) -> None:
        """Count what another has counted, too."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerTopicStats:
    """The counts of all topics of a broker, those of deleted ones in one sum."""

    def __init__(self) -> None:
        self.topics: dict[str, BrokerTopicMetrics] = {}
        self._deleted = BrokerTopicMetrics()

    def for_topic(self, topic: str) -> BrokerTopicMetrics:
        """The counts of a topic, from zero where there was no such topic."""
        known = self.topics.get(topic)
        if known is None:
            known = self.topics[topic] = BrokerTopicMetrics()
        return known

    def remove(self, topic: str) -> None:
        """The topic is deleted. What it has had still counts in the total."""
        known = self.topics.pop(topic, None)
        if known is not None:
            self._deleted.add(known)

    def total(self) -> BrokerTopicMetrics:
        """The sum over all topics that were ever there."""
        total = BrokerTopicMetrics()
        for known in (self._deleted, *self.topics.values()):
            total.add(known)
        return total
