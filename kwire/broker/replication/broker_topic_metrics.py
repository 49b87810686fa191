"""Traffic counters per topic, as in Kafka's BrokerTopicMetrics. A counter never falls while the topic exists.

Counters are kept per topic and not per partition. Otherwise the sum for a topic would fall when a partition
moves to another broker, and a monitoring system would take that for a restart.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.storage.log.validator import InvalidOffsetOrSequence, RecordErrors
from kwire.wire.errors import ApiError, ErrorCode

NOT_COUNTED: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors that Apache Kafka does not count as failed appends."""

EXPECTED_FETCH_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that Apache Kafka does not count as failed fetches, because they are no failures of the broker."""

COUNTS: Final = (
    "bytes_in",
    "bytes_out",
    "bytes_rejected",
    "corrupt_batches",
    "failed_appends",
    "failed_reads",
    "invalid_offsets_or_sequences",
    "messages_in",
    "appends",
    "reads",
    "produce_conversions",
    "reassignment_bytes_in",
    "reassignment_bytes_out",
    "records_without_key",
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
        self.failed_reads = 0
        """Reads that failed because of the broker. See `EXPECTED_FETCH_ERRORS`."""
        self.bytes_rejected = 0
        """Bytes of batches above `max.message.bytes`."""
        self.corrupt_batches = 0
        """Batches with a wrong CRC."""
        self.invalid_offsets_or_sequences = 0
        """Batches with an invalid range of offsets or an invalid sequence number."""
        self.records_without_key = 0
        """Rejected records without a key in a compacted topic."""
        self.produce_conversions = 0
        """Records that the broker has compressed again (`compression.type`)."""
        self.reads = 0
        """The number of partitions in all Fetch responses to consumers and followers."""
        self.messages_in = 0
        self.replication_bytes_in = 0
        """Bytes fetched from leaders."""
        self.replication_bytes_out = 0
        """Bytes sent to followers."""
        self.reassignment_bytes_in = 0
        """The part of `replication_bytes_in` for replicas that a reassignment adds."""
        self.reassignment_bytes_out = 0
        """The part of `replication_bytes_out` for replicas that a reassignment adds."""

    def record_failed_append(self, error: ApiError, size_bytes: int) -> None:
        """Count a batch of `size_bytes` that was rejected with `error`."""
        self.failed_appends += error.code not in NOT_COUNTED
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            self.bytes_rejected += size_bytes
        elif error.code is ErrorCode.CORRUPT_MESSAGE:
            self.corrupt_batches += 1
        elif isinstance(error, InvalidOffsetOrSequence):
            self.invalid_offsets_or_sequences += 1
        elif isinstance(error, RecordErrors):
            self.records_without_key += error.without_key

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
