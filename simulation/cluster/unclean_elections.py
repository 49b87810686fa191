"""Invariants of topics that allow unclean leader elections.

An unclean leader election loses the records that the new leader lacks, but no other records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.cluster_invariants import READ_BYTES, ClusterInvariants
from kwire.testing.simulated.oracle import CommittedPartition
from kwire.wire.batch import batches, records


class UncleanElectionInvariants(ClusterInvariants):
    """The checks of all nodes, some of whose topics set unclean.leader.election.enable."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unclean_topics: Collection[str] = ()

    def _check_unclean_election(
        self, topic_partition: TopicPartition, before: PartitionImage, now: PartitionImage
    ) -> None:
        if topic_partition.topic in self.unclean_topics:
            self._note(f"controller: unclean leader election of {topic_partition}")
            self._oracle.committed_in(topic_partition).awaits_unclean_leader = True
        else:
            super()._check_unclean_election(topic_partition, before, now)

    def _check_isr(self, topic_partition: TopicPartition) -> None:
        if not self._oracle.committed_in(topic_partition).awaits_unclean_leader:
            super()._check_isr(topic_partition)

    def _has_discarded_records(
        self,
        topic_partition: TopicPartition,
        partition: Partition,
        committed: CommittedPartition,
        *,
        has_led: bool,
    ) -> bool:
        known, epoch, log = self._partitions.get(topic_partition), partition.leader_epoch, partition.log
        if (
            committed.awaits_unclean_leader
            and partition.role is Role.LEADER
            and known is not None
            and epoch >= known.leader_epoch
        ):
            self._record_unclean_discard(topic_partition, epoch, log, committed)
        latest = -1 if log.latest_epoch is None else log.latest_epoch
        has_discarded = committed.awaits_unclean_leader or (
            known is not None
            and any(
                latest < epoch and log.log_end_offset > offset for epoch, offset in committed.unclean_discards
            )
        )
        if has_discarded and has_led:
            _record_lost(log, committed)
        return has_discarded

    def _record_unclean_discard(
        self, topic_partition: TopicPartition, epoch: int, log: Log, committed: CommittedPartition
    ) -> None:
        """Record that the leader of an unclean election took over. Records that the leader lacks are lost."""
        has = {
            header.base_offset: (header.next_offset, header.crc, header.leader_epoch)
            for _, header in batches(_content(log, log.log_start_offset, log.log_end_offset))
        }
        lacks = (at for at, batch in sorted(committed.crcs.items()) if has.get(at) != batch)
        offset = next(lacks, committed.end)
        self._note(f"{topic_partition} loses committed offsets {offset} to {committed.end - 1}")
        committed.discard(epoch, offset)
        for (_, of), seen in self._observed.items():
            if of == topic_partition:
                seen.checked_end = min(seen.checked_end, offset)


def _record_lost(log: Log, committed: CommittedPartition) -> None:
    """Record the values that the former leader with the log `log` still believes to be committed."""
    content = _content(log, log.log_start_offset, log.high_watermark)
    for at, header in batches(content):
        if not header.is_control and header.next_offset > committed.end:
            committed.lost |= {record.value or b"" for record in records(content, at, header)}


def _content(log: Log, start: int, end: int) -> memoryview | bytes:
    """Return the batches between two offsets."""
    pieces = bytearray()
    while start < end:
        piece = log.read(start, max_bytes=READ_BYTES, up_to_offset=end).read()
        if not piece:
            break
        pieces += piece
        start = max(header.next_offset for _, header in batches(piece))
    return memoryview(pieces)
