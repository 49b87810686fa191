"""The records of a simulated cluster that must not be lost, changed or replaced.

A record is *committed* when the high watermark of a leader is above its offset. `ClusterInvariants` reports
commits to the oracle, which compares them with what clients sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from kwire.testing.results import TopicPartition
from kwire.wire.batch import BatchHeader, Record


class CommittedPartition:
    """The records of a partition below the highest high watermark of any leader."""

    __slots__ = (
        "awaits_unclean_leader",
        "crcs",
        "end",
        "lost",
        "reported_end",
        "start",
        "unclean_discards",
        "unverified_end",
        "unverified_values",
        "values",
    )

    def __init__(self) -> None:
        self.end = 0
        self.reported_end = 0
        """The highest offset up to which a client has seen records as committed."""
        self.unverified_end = 0
        """The high watermark of a leader that failed in the same event, so that its log cannot be checked."""
        self.unverified_values: dict[int, bytes] = {}
        """Values that clients saw from `end` to `unverified_end`, by offset. They must become committed."""
        self.start = 0
        """The log start offset. Records before it are deleted."""
        self.values: dict[int, bytes] = {}
        """Values by offset, without control records."""
        self.crcs: dict[int, tuple[int, int, int]] = {}
        """Next offset, CRC and leader epoch of each batch, by base offset."""
        self.unclean_discards: list[tuple[int, int]] = []
        """Leader epoch and first discarded offset of each unclean leader election."""
        self.awaits_unclean_leader = False
        """Whether an unclean leader election has happened whose leader has not taken over yet."""
        self.lost: set[bytes] = set()
        """Values that unclean elections discarded, or that a former leader still believes to be committed."""

    def discard(self, epoch: int, offset: int) -> None:
        """Record that the leader of an unclean election (in `epoch`) lacks all records from `offset` on."""
        self.unclean_discards.append((epoch, offset))
        self.awaits_unclean_leader = False
        self.lost |= {value for at, value in self.values.items() if at >= offset}
        self.values = {at: value for at, value in self.values.items() if at < offset}
        self.crcs = {at: batch for at, batch in self.crcs.items() if at < offset}
        self.end = min(self.end, offset)
        self.reported_end = min(self.reported_end, offset)


class Oracle(ABC):
    """The committed records of each partition. Subclasses compare them with what clients sent."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedPartition] = {}

    def committed_in(self, topic_partition: TopicPartition) -> CommittedPartition:
        """Return the committed records of a partition."""
        found = self.committed.get(topic_partition)
        if found is None:
            found = self.committed[topic_partition] = CommittedPartition()
        return found

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition, since its topic was deleted."""
        self.committed.pop(topic_partition, None)

    @abstractmethod
    def commit_batch(
        self, topic_partition: TopicPartition, header: BatchHeader, found: Iterable[Record]
    ) -> None:
        """Record a committed batch. Raises Violation if it differs from what clients sent."""

    @abstractmethod
    def on_log_start(self, topic_partition: TopicPartition, offset: int, name: str) -> None:
        """Check the log start offset of a replica on the node `name`."""
