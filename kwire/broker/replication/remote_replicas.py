"""Followers and ISR of the partitions that this broker leads.

The high watermark is the lowest log end offset of all replicas for which the leader waits. These replicas
are:

- the leader itself and the other members of the ISR;
- a follower that a pending AlterPartition adds to the ISR, because the controller may have added it already
  (KIP-497);
- followers that are caught up and eligible for the ISR, so that the high watermark does not overtake a
  follower that is about to join.

The high watermark does not rise while the ISR is smaller than min.insync.replicas (KIP-966).

Difference from Apache Kafka: a Kafka leader also waits for a caught-up follower whose log directory has
failed, until the next append. This leader does not wait for such a follower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kwire.broker.metadata.image import MetadataImage, PartitionImage
from kwire.broker.replication.alter_partition_manager import (
    NOT_APPLIED,
    STAYS_PENDING,
    AlterPartitionManager,
    IsrChange,
    IsrChangeResult,
    IsrController,
)
from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
from kwire.broker.replication.follower_state import FollowerState
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host, InternodeTime
from kwire.wire.batch import NO_OFFSET
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

MAX_LOGGED = 5
"""The number of ISR changes that are logged one by one per turn of the event loop."""


class LeaderConfig(Protocol):
    """The broker configuration that partition leaders use."""

    replica_lag_time_max_ms: int
    replica_selector_class: str | None


class LeaderPartition(Protocol):
    """A partition that this broker leads and that has followers."""

    def maybe_shrink_isr(self) -> None:
        """Propose an ISR without the followers that have lagged for replica.lag.time.max.ms."""

    def log_start_offset_moved(self) -> None:
        """Notify the followers that the log start offset may have moved."""


class LeaderPartitions:
    """The state shared by all partitions that a broker leads."""

    def __init__(
        self,
        host: Host,
        config: LeaderConfig,
        node_id: int,
        *,
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        controller: IsrController,
    ) -> None:
        """`image` returns the current metadata, and `broker_epoch` returns the epoch of this broker."""
        self.host = host
        self.node_id = node_id
        self.config = config
        self.broker_epoch = broker_epoch
        self.alter_partition = AlterPartitionManager(host, controller)
        self.partitions: dict[LeaderPartition, None] = {}
        """The led partitions that have followers."""
        self.topic_stats = BrokerTopicStats()
        """The traffic counters of all partitions on this broker, both as leader and as follower."""
        self.early_fetches: dict[Callable[[], None], None] = {}
        """The functions that complete delayed fetches of partitions that this broker does not know yet."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._image = image
        self._isr_log_lines: list[str] = []

    def leader_added(self) -> None:
        """Complete the early fetches after this turn, because a replica with followers has become leader."""
        if self.early_fetches:
            early, self.early_fetches = self.early_fetches, {}
            for complete in early:
                self.host.call_soon(complete)

    def log_isr_shrink(self, log: Log, remote: RemoteReplicas, pending: PendingIsr) -> None:
        """Log the proposal `pending` to remove followers from the ISR."""
        ends = (f"broker {one} at {state.end_offset}" for one, state in remote.followers.items())
        self.log_isr_change(
            f"Shrinking ISR of {log.name} from {_join(remote.isr)} to {_join(pending.isr)}: log end offset "
            f"{log.log_end_offset}, high watermark {log.high_watermark}, followers: {', '.join(ends)}"
        )

    def record_isr_change(self, log: Log, remote: RemoteReplicas, pending: PendingIsr) -> None:
        """Count and log an ISR change after the controller has committed the proposal `pending`."""
        if pending.new_member is None:
            self.isr_shrinks += 1
        else:
            self.isr_expands += 1
        self.log_isr_change(
            f"ISR of {log.name} updated to {_join(remote.isr)}, partition epoch {remote.partition_epoch}"
        )

    def log_isr_change(self, line: str) -> None:
        """Log an ISR change. If one turn has many changes, only the first are logged one by one."""
        if not self._isr_log_lines:
            self.host.call_soon(self._log_isr_changes)
        self._isr_log_lines.append(line)

    def _log_isr_changes(self) -> None:
        lines, self._isr_log_lines = self._isr_log_lines, []
        logger = self.host.logger("kwire.partition")
        for line in lines[:MAX_LOGGED]:
            logger.info("%s", line)
        if len(lines) > MAX_LOGGED:
            logger.info(
                "ISR changes: %d more were not logged (limit: %d at once)",
                len(lines) - MAX_LOGGED,
                MAX_LOGGED,
            )

    def maybe_shrink_isr(self) -> None:
        """Check all partitions for lagging followers. Called every replica.lag.time.max.ms / 2."""
        for partition in list(self.partitions):
            partition.maybe_shrink_isr()

    def log_start_offsets_moved(self) -> None:
        """Notify the followers of all partitions, because retention may have moved the log start offsets."""
        for partition in self.partitions:
            partition.log_start_offset_moved()

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker is registered and not fenced."""
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced

    def has_stale_epoch(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether `broker_epoch` in a Fetch is older than the broker's last registration. KIP-903.

        False for an unknown or fenced broker, and for -1.
        """
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced and -1 < broker_epoch < known.broker_epoch

    def is_eligible_for_isr(self, state: FollowerState) -> bool:
        """Whether the controller would accept the follower in the ISR. KIP-841, KIP-903."""
        known = self._image().brokers.get(state.broker_id)
        return known is not None and known.is_active and state.broker_epoch in (-1, known.broker_epoch)

    def is_replica_offline(self, image: PartitionImage, broker_id: int) -> bool:
        """Whether the metadata assigns the replica to a log directory that is offline on a known broker."""
        known, directory = self._image().brokers.get(broker_id), image.directory_of(broker_id)
        return known is not None and directory is not None and not known.has_online_directory(directory)


def _join(broker_ids: Iterable[int]) -> str:
    """Return broker ids as Kafka writes them in log lines, for example 1,2,3."""
    return ",".join(map(str, broker_ids))


class PendingIsr(NamedTuple):
    """An ISR that the leader has proposed to the controller."""

    change: IsrChange
    isr: tuple[int, ...]
    new_member: int | None
    """The follower that the proposal adds; None if the proposal removes followers."""


class RemoteReplicas:
    """Followers and ISR of one partition. The class does no I/O."""

    __slots__ = (
        "_image",
        "_leader_partitions",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "low_watermark_listeners",
        "partition_epoch",
        "pending",
    )

    def __init__(self, leader_partitions: LeaderPartitions) -> None:
        self._leader_partitions = leader_partitions
        self._image = PartitionImage((), ())
        self.followers: dict[int, FollowerState] = {}
        self.isr: tuple[int, ...] = ()
        """The ISR that the controller has committed."""
        self.pending: PendingIsr | None = None
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start_offset = NO_OFFSET
        """The log end offset of the leader at the start of this leader epoch."""
        self.low_watermark_listeners: dict[Callable[[], None], None] = {}
        """Callbacks that run when the low watermark may have changed."""

    def update(self, image: PartitionImage, end_offset: int, now_ms: InternodeTime) -> None:
        """Apply the metadata of the partition; `end_offset` is the leader's log end offset.

        An image with a lower partition epoch changes neither ISR nor followers, because an AlterPartition
        response may have brought newer state.
        """
        self._image = image
        if image.partition_epoch < self.partition_epoch:
            return
        known, me = self.followers, self._leader_partitions.node_id
        followers = [broker_id for broker_id in image.replicas if broker_id != me]
        if image.partition_epoch == self.partition_epoch and followers == list(known):
            return
        if image.partition_epoch > self.partition_epoch:
            self.pending = None
        self.followers = {
            broker_id: known.get(broker_id) or FollowerState(broker_id) for broker_id in followers
        }
        self.partition_epoch = image.partition_epoch
        self._set_isr(image.isr)
        is_new_epoch = image.leader_epoch > self.leader_epoch
        if is_new_epoch:
            self.leader_epoch = image.leader_epoch
            self.epoch_start_offset = end_offset
            for state in self.followers.values():
                state.reset_for_epoch(end_offset, now_ms, in_isr=state.is_in_sync)
        self.notify_sessions(wake=is_new_epoch)

    def _set_isr(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        new_member = None if self.pending is None else self.pending.new_member
        for broker_id, state in self.followers.items():
            was_in_sync, state.is_in_sync = state.is_in_sync, broker_id in isr or broker_id == new_member
            if was_in_sync and not state.is_in_sync and state.session_partition is not None:
                # From now on every Fetch of this follower must be recorded again, even at the log end.
                state.session_partition.changed(wake=False)

    def notify_sessions(self, *, wake: bool) -> None:
        """Mark the partition as changed in the fetch session of each follower.

        With `wake`, a waiting Fetch request of the session is checked at once.
        """
        for state in self.followers.values():
            if state.session_partition is not None:
                state.session_partition.changed(wake=wake)

    def log_grew(self) -> None:
        """Wake the followers' Fetch requests that wait for the log to grow."""
        for state in self.followers.values():
            state.leader_grew()
            if state.session_partition is not None:
                state.session_partition.changed(wake=True)

    # --- high watermark

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether the ISR is smaller than both min.insync.replicas and the number of replicas."""
        return len(self.isr) < min_insync_replicas and len(self.isr) <= len(self.followers)

    def is_maximal_isr_under_min(self, min_insync_replicas: int) -> bool:
        """Whether the ISR would be too small even with the follower that a pending proposal adds."""
        size = len(self.isr) + (self.pending is not None and self.pending.new_member is not None)
        return size < min_insync_replicas and size <= len(self.followers)

    def high_watermark(self, written_offset: int, end_offset: int, min_insync_replicas: int) -> int:
        """Return the high watermark if the leader's log is written (or synced) up to `written_offset`.

        `end_offset` is the end of the leader's log. Returns -1 if the high watermark must not rise because
        the ISR is too small.
        """
        if self.is_under_min_isr(min_insync_replicas):
            return NO_OFFSET
        offset = written_offset
        for state in self.followers.values():
            if state.end_offset < offset and (state.is_in_sync or self._may_join_soon(state, end_offset)):
                offset = state.end_offset
        return offset

    def _may_join_soon(self, state: FollowerState, end_offset: int) -> bool:
        leader_partitions = self._leader_partitions
        lag_ms = leader_partitions.config.replica_lag_time_max_ms
        return (
            state.is_caught_up(end_offset, leader_partitions.host.internode_clock.monotonic_ms(), lag_ms)
            and leader_partitions.is_eligible_for_isr(state)
            and not leader_partitions.is_replica_offline(self._image, state.broker_id)
        )

    # --- ISR

    def prepare_expand(
        self, key: tuple[Uuid, int], state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        """Return the proposal to add this follower to the ISR, or None if the follower cannot be added now.

        `key` is the topic id and the partition index. The follower must have all records up to the high
        watermark, and all records that the leader had at the start of its leader epoch. Some of these may be
        committed although the leader does not know that yet.
        """
        if (
            self.pending is not None
            or state.broker_id in self.isr
            or state.end_offset < max(high_watermark, self.epoch_start_offset)
            or not self._leader_partitions.is_eligible_for_isr(state)
        ):
            return None
        return self._set_pending(key, (*self.isr, state.broker_id), state.broker_id)

    def prepare_shrink(
        self, key: tuple[Uuid, int], end_offset: int, now_ms: InternodeTime
    ) -> PendingIsr | None:
        """Return the proposal to remove lagging followers from the ISR.

        Returns None if no follower lags, or another proposal is pending.
        """
        if self.pending is not None:
            return None
        lag_ms = self._leader_partitions.config.replica_lag_time_max_ms
        me = self._leader_partitions.node_id
        isr = tuple(
            broker_id
            for broker_id in self.isr
            if broker_id == me
            or (
                (state := self.followers.get(broker_id)) is not None
                and state.is_caught_up(end_offset, now_ms, lag_ms)
            )
        )
        return None if isr == self.isr else self._set_pending(key, isr, None)

    def _set_pending(self, key: tuple[Uuid, int], isr: tuple[int, ...], new_member: int | None) -> PendingIsr:
        isr = tuple(sorted(isr))  # Apache Kafka's leaders send this order, and Kafka's tools show it
        new_isr = tuple((broker_id, self._broker_epoch(broker_id)) for broker_id in isr)
        change = IsrChange(*key, self.leader_epoch, self.partition_epoch, new_isr)
        self.pending = PendingIsr(change, isr, new_member)
        self._set_isr(self.isr)
        return self.pending

    def _broker_epoch(self, broker_id: int) -> int:
        if broker_id == self._leader_partitions.node_id:
            return self._leader_partitions.broker_epoch()
        state = self.followers.get(broker_id)
        return -1 if state is None or state.broker_epoch is None else state.broker_epoch

    def handle_alter_partition(self, pending: PendingIsr, result: IsrChangeResult) -> bool:
        """Apply the controller's result; return whether the caller must send the same proposal again."""
        if self.pending is not pending:
            return False  # newer metadata has replaced the proposal
        if result.error in NOT_APPLIED:
            self.pending = None
            self._set_isr(self.isr)
        elif result.error:
            return result.error not in STAYS_PENDING
        elif result.leader_epoch == self.leader_epoch and result.partition_epoch >= self.partition_epoch:
            self.pending = None
            self.partition_epoch = result.partition_epoch
            self._set_isr(result.isr)
        return False

    def notify_low_watermark(self) -> None:
        """Call the listeners after a follower's log start offset changed or the followers were removed."""
        for callback in list(self.low_watermark_listeners):
            callback()

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the minimum of the leader's `log_start_offset` and those of all live followers. KIP-107."""
        leader_partitions = self._leader_partitions
        return min(
            [
                log_start_offset,
                *(
                    state.log_start_offset
                    for broker_id, state in self.followers.items()
                    if leader_partitions.is_alive(broker_id)
                ),
            ]
        )
