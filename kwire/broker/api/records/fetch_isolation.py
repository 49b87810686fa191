"""How far a Fetch or ListOffsets may read a partition, and who may serve it.

A consumer sees the records below the high watermark, or below the last stable offset with read_committed
(KIP-98). Followers and future replicas see all written records. Only the leader serves followers and clients
that cannot fetch from followers (KIP-392).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kwire.broker.replication.roles import LEADER, Role
from kwire.wire.batch import NO_LEADER_EPOCH
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import EpochEndOffset
from kwire.wire.primitives import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from kwire.broker.api.records.fetch_sessions import FetchTarget
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.replication.partition import Partition
    from kwire.broker.storage.log.log import Log

READ_UNCOMMITTED, READ_COMMITTED = range(2)


class FetchIsolation:
    """The offset up to which a request may read, and whether only the leader may serve the request."""

    __slots__ = ("_end_offset", "_from_leader", "is_committed")

    def __init__(self, end_offset: Callable[[Log], int], *, from_leader: bool) -> None:
        self._end_offset = end_offset
        self._from_leader = from_leader
        self.is_committed = end_offset is _TXN_COMMITTED

    def readable_end(self, partition: Partition, leader_epoch: int, topic_id: Uuid = ZERO_UUID) -> int:
        """Return the offset up to which a request with this leader epoch and topic id may read.

        The leader epoch is checked before the leader (KIP-320). Raises ApiError for a wrong topic id, epoch
        or leader, or if the replica is offline.
        """
        if topic_id is not ZERO_UUID and topic_id not in (partition.topic_id, ZERO_UUID):
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
        role, log = partition.role, partition.log
        if role is not LEADER and role is not Role.FOLLOWER:
            raise partition.not_leader_error()
        if leader_epoch != NO_LEADER_EPOCH and leader_epoch != partition.leader_epoch:
            partition.check_leader_epoch(leader_epoch)
        if role is not LEADER and self._from_leader:
            raise partition.not_leader_error()
        if log.failure is not None:  # all logs in a directory fail at once, but their roles change one by one
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self._end_offset(log)


# attrgetter needs no Python call.
_TXN_COMMITTED: Final = attrgetter("last_stable_offset")
_HIGH_WATERMARK: Final = attrgetter("high_watermark")
CONSUMER: Final = {
    (level, from_leader): FetchIsolation(end_offset, from_leader=from_leader)
    for level, end_offset in ((READ_UNCOMMITTED, _HIGH_WATERMARK), (READ_COMMITTED, _TXN_COMMITTED))
    for from_leader in (False, True)
}
"""The isolation of consumers by isolation level, and whether only the leader may serve the request."""
FOLLOWER: Final = FetchIsolation(attrgetter("written_end_offset"), from_leader=True)
FUTURE_REPLICA: Final = FetchIsolation(attrgetter("written_end_offset"), from_leader=False)
REPLICA_OFFSETS: Final = FetchIsolation(attrgetter("log_end_offset"), from_leader=True)
"""The isolation of ListOffsets requests of replicas. Staged records count: the log is written before the
response is sent."""
DEBUGGING_OFFSETS: Final = FetchIsolation(attrgetter("log_end_offset"), from_leader=False)


def find_replica(node: BrokerRole, topic: str, index: int) -> Partition:
    """Return this broker's replica of a partition, or raise the ApiError of a missing replica."""
    partition = node.partition(topic, index)
    if partition is None:
        raise node.missing_partition_error(topic, index)
    return partition


def find_divergence(log: Log, target: FetchTarget) -> EpochEndOffset | None:
    """Return where the fetcher's log diverges from this log, or None. KIP-595.

    Raises ApiError OFFSET_OUT_OF_RANGE if this log does not have the fetcher's epoch or offset any more.
    """
    epoch, end_offset = log.end_offset_for_epoch(target.last_fetched_epoch)
    if end_offset < 0 or epoch < 0 or target.fetch_offset < log.log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < target.last_fetched_epoch or end_offset < target.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
