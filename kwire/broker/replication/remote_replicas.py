"""The replicas of a partition that this broker leads, where there are others beside its own.

The high watermark is the least of the ends of all replicas that the leader waits for, its own among them:
those of the ISR; of an ISR that the controller has been asked to expand, the larger one (KIP-497), since the
smaller may be void already; and those that are caught up and may join, so that it does not run away from who
is about to. It does not rise while fewer than min.insync.replicas are in the ISR (KIP-966).

Apache Kafka's leaders wait for who is caught up in a directory that has failed, too, and look again only when
something is written. Here it is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
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
from kwire.host.host import Host
from kwire.wire.batch import NO_OFFSET
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

MAX_LOGGED = 5
"""Of how many partitions the log tells at one time."""


class LeaderConfig(Protocol):
    """What it goes by, of the broker's settings."""

    replica_lag_time_max_ms: int
    replica_selector_class: str | None


class LeaderPartition(Protocol):
    """A partition with followers that this broker leads."""

    def maybe_shrink_isr(self) -> None:
        """See whether some have fallen behind."""

    def log_start_offset_moved(self) -> None:
        """Its log may begin later than it did."""


class LeaderPartitions:
    """What the partitions that a broker leads have in common."""

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
        """`image` gives the metadata as it is now, `broker_epoch` the epoch of this broker."""
        self.host = host
        self.node_id = node_id
        self.config = config
        self.broker_epoch = broker_epoch
        self.alter_partition = AlterPartitionManager(host, controller)
        self.partitions: dict[LeaderPartition, None] = {}
        """Those with followers."""
        self.topic_stats = BrokerTopicStats()
        """What has come in and gone out, of all partitions of this broker."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._image = image
        self._isr_log_lines: list[str] = []

    def log_isr_change(self, line: str) -> None:
        """Log what has become of an ISR; of hundreds at once only a few."""
        if not self._isr_log_lines:
            self.host.call_soon(self._log_isr_changes)
        self._isr_log_lines.append(line)

    def _log_isr_changes(self) -> None:
        lines, self._isr_log_lines = self._isr_log_lines, []
        logger = self.host.logger("kwire.partition")
        for line in lines[:MAX_LOGGED]:
            logger.info("%s", line)
        if len(lines) > MAX_LOGGED:
            logger.info("and so on, of %d partitions more", len(lines) - MAX_LOGGED)

    def maybe_shrink_isr(self) -> None:
        """To be called every half of replica.lag.time.max.ms."""
        for partition in list(self.partitions):
            partition.maybe_shrink_isr()

    def log_start_offsets_moved(self) -> None:
        """Retention has been applied."""
        for partition in self.partitions:
            partition.log_start_offset_moved()

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker is registered and not fenced."""
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced

    def has_stale_epoch(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a follower that fetches with this epoch is an earlier life of that broker. KIP-903."""
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced and -1 < broker_epoch < known.broker_epoch

    def is_eligible_for_isr(self, state: FollowerState) -> bool:
        """Whether the controller would take a follower into the ISR. KIP-841, KIP-903."""
        known = self._image().brokers.get(state.broker_id)
        return known is not None and known.is_active and state.broker_epoch in (-1, known.broker_epoch)

    def is_replica_offline(self, image: PartitionImage, broker_id: int) -> bool:
        """Whether a replica is in a directory that has failed, of a broker that lives on without it."""
        known, directory = self._image().brokers.get(broker_id), image.directory_of(broker_id)
        return known is not None and directory is not None and not known.has_online_directory(directory)


class PendingIsr(NamedTuple):
    """An ISR that the controller has been asked for."""

    change: IsrChange
    isr: tuple[int, ...]
    new_member: int | None
    """Who is new in it; None where it is smaller."""


class RemoteReplicas:
    """Followers and ISR of one partition; pure but for the image, of which brokers live."""

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
        """As committed by the controller."""
        self.pending: PendingIsr | None = None
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start_offset = NO_OFFSET
        """Where the leader's log ended when it began to lead in this epoch."""
        self.low_watermark_listeners: dict[Callable[[], None], None] = {}
        """Who is called when the low watermark may have moved."""

    def update(self, image: PartitionImage, end_offset: int, now_ms: int) -> None:
        """Those that the metadata has, led by this broker, whose log ends there.

        What the controller has told already, in its answer, is newer than an image of a lower epoch.
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
                state.session_partition.changed(
                    wake=False
                )  # its fetches, which had become quiet, are to be seen again

    def notify_sessions(self, *, wake: bool) -> None:
        """Followers have something new to be told; with `wake` at once."""
        for state in self.followers.values():
            if state.session_partition is not None:
                state.session_partition.changed(wake=wake)

    def log_grew(self) -> None:
        """The leader's log has grown: followers that wait for that have something to fetch."""
        for state in self.followers.values():
            state.leader_grew()
            if state.session_partition is not None:
                state.session_partition.changed(wake=True)

    # --- the high watermark

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether fewer are in the ISR than the topic asks for; it cannot ask for more than it has."""
        return len(self.isr) < min_insync_replicas and len(self.isr) <= len(self.followers)

    def is_maximal_isr_under_min(self, min_insync_replicas: int) -> bool:
        """The same of those that were waited for."""
        size = len(self.isr) + (self.pending is not None and self.pending.new_member is not None)
        return size < min_insync_replicas and size <= len(self.followers)

    def high_watermark(self, written_offset: int, end_offset: int, min_insync_replicas: int) -> int:
        """Up to where all that are waited for have it, whose leader has written so far; -1 for not known."""
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

    # --- the ISR

    def prepare_expand(
        self, key: tuple[Uuid, int], state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        """What to ask the controller for if this follower, which has just fetched, is to join; else None.

        It must have what was committed, and all that the leader had when it began to lead: of that, too, some
        may have been committed, though the leader does not know it yet.
        """
        if (
            self.pending is not None
            or state.broker_id in self.isr
            or state.end_offset < max(high_watermark, self.epoch_start_offset)
            or not self._leader_partitions.is_eligible_for_isr(state)
        ):
            return None
        return self._set_pending(key, (*self.isr, state.broker_id), state.broker_id)

    def prepare_shrink(self, key: tuple[Uuid, int], end_offset: int, now_ms: int) -> PendingIsr | None:
        """What to ask the controller for if some are to leave; else None."""
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
        isr = tuple(sorted(isr))  # as Apache Kafka's leaders send it: tools show the order
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
        """The controller has answered. Whether it is to be asked the same again."""
        if self.pending is not pending:
            return False  # the metadata has overtaken it
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
        """A follower's log begins elsewhere, or followers are not known any more."""
        for callback in list(self.low_watermark_listeners):
            callback()

    def low_watermark(self, log_start_offset: int) -> int:
        """Where the log begins on every replica that lives (KIP-107), the leader's beginning there."""
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
