"""Interfaces of the broker that the coordinators use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple


class StatePorts(Protocol):
    """The internal topic that stores a coordinator's state."""

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> int:
        """Append one record batch to a partition of the topic, and return the batch's first offset.

        Raises ApiError if nothing was appended. `on_committed` is called exactly once, never inside this
        call: with None when the batch is committed, with NOT_ENOUGH_REPLICAS_AFTER_APPEND when it is
        committed but the ISR is below min.insync.replicas, or with another error if the batch was lost.
        """

    def max_batch_bytes(self, index: int) -> int:
        """Return the maximum size of a batch in bytes. Raises ApiError if no batch can be appended now."""

    def log_end_offset(self, index: int) -> int:
        """Return the offset of the next batch. Raises ApiError if this broker does not lead the partition."""

    def delete_records_before(self, index: int, offset: int) -> None:
        """Delete the records below `offset`, except for those that are not committed. Raises ApiError."""

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        """Yield every batch of a partition from log start to log end, in offset order.

        The iteration raises ApiError if this broker does not lead the partition or cannot read its log.
        """

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        """Call `on_committed(None)` when all current records of a partition are committed.

        If they are lost, `on_committed` gets the error. The callback may run inside this call. Raises
        ApiError if this broker does not lead the partition.
        """

    def partition_count(self) -> int | None:
        """Return the topic's number of partitions, or None if the topic does not exist.

        As in Kafka, partitions that are added later do not count until the broker restarts.
        """

    def leader(self, index: int) -> int | None:
        """Return the broker id of a partition's leader, or None if the partition has no leader."""

    def create_topic(self) -> None:
        """Request the creation of the topic, without waiting for it. Repeated calls are harmless."""


class Topic(NamedTuple):
    """A topic that consumer groups can subscribe to."""

    topic_id: bytes
    name: str
    partition_count: int


class TopicsView(Protocol):
    """The topics in the current cluster metadata."""

    @property
    def version(self) -> int:
        """The version of the metadata, which only increases."""

    def by_name(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""

    def by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with this id, or None."""

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""

    def racks(self, topic: Topic) -> Sequence[Sequence[str]]:
        """Return the racks of each partition's replicas, in partition order. Unknown racks are omitted."""


class GroupSettings(Protocol):
    """Dynamic configurations of consumer groups. Configurations that are not set default to the broker's."""

    def session_timeout_ms(self, group_id: str) -> int:
        """Return consumer.session.timeout.ms."""

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return consumer.heartbeat.interval.ms."""

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return consumer.assignment.interval.ms, the minimum time between two target assignments."""
