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

    def check_followers(self) -> None:
        """See whether some have fallen behind."""

    def start_moved(self) -> None:
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
        self.changes = AlterPartitionManager(host, controller)
        self.partitions: dict[LeaderPartition, None] = {}
        """Those with followers."""
        self.traffic = BrokerTopicStats()
        """What has come in and gone out, of all partitions of this broker."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._image = image
        self._news: list[str] = []

    def tell(self, news: str) -> None:
        """Log what has become of an ISR; of hundreds at once only a few."""
        if not self._news:
            self.host.call_soon(self._tell)
        self._news.append(news)

    def _tell(self) -> None:
        news, self._news = self._news, []
        logger = self.host.logger("kwire.partition")
        for line in news[:MAX_LOGGED]:
            logger.info("%s", line)
        if len(news) > MAX_LOGGED:
            logger.info("and so on, of %d partitions more", len(news) - MAX_LOGGED)

    def check_followers(self) -> None:
        """To be called every half of replica.lag.time.max.ms."""
        for partition in list(self.partitions):
            partition.check_followers()

    def starts_moved(self) -> None:
        """Retention has been applied."""
        for partition in self.partitions:
            partition.start_moved()

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker is registered and not fenced."""
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced

    def is_stale(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a follower that fetches with this epoch is an earlier life of that broker. KIP-903."""
        known = self._image().brokers.get(broker_id)
        return known is not None and not known.fenced and -1 < broker_epoch < known.broker_epoch

    def may_join(self, state: FollowerState) -> bool:
        """Whether the controller would take a follower into the ISR. KIP-841, KIP-903."""
        known = self._image().brokers.get(state.broker_id)
        return known is not None and known.is_active and state.broker_epoch in (-1, known.broker_epoch)

    def has_lost(self, image: PartitionImage, broker_id: int) -> bool:
        """Whether a replica is in a directory that has failed, of a broker that lives on without it."""
        known, directory = self._image().brokers.get(broker_id), image.directory_of(broker_id)
        return known is not None and directory is not None and not known.has_online_directory(directory)


class PendingIsr(NamedTuple):
    """An ISR that the controller has been asked for."""

    change: IsrChange
    isr: tuple[int, ...]
    joins: int | None
    """Who is new in it; None where it is smaller."""


class RemoteReplicas:
    """Followers and ISR of one partition; pure but for the image, of which brokers live."""

    __slots__ = (
        "_image",
        "_leading",
        "deletions",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "pending",
    )

    def __init__(self, leading: LeaderPartitions) -> None:
        self._leading = leading
        self._image = PartitionImage((), ())
        self.followers: dict[int, FollowerState] = {}
        self.isr: tuple[int, ...] = ()
        """As committed by the controller."""
        self.pending: PendingIsr | None = None
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start_offset = NO_OFFSET
        """Where the leader's log ended when it began to lead in this epoch."""
        self.deletions: dict[Callable[[], None], None] = {}
        """Who is called when the low watermark may have moved."""

    def take(self, image: PartitionImage, end_offset: int, now_ms: int) -> None:
        """Those that the metadata has, led by this broker, whose log ends there.

        What the controller has told already, in its answer, is newer than an image of a lower epoch.
        """
        self._image = image
        if image.partition_epoch < self.partition_epoch:
            return
        known, me = self.followers, self._leading.node_id
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
                state.new_epoch(end_offset, now_ms, in_isr=state.is_in_sync)
        self.news(wake=is_new_epoch)

    def _set_isr(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        joins = None if self.pending is None else self.pending.joins
        for broker_id, state in self.followers.items():
            was_in_sync, state.is_in_sync = state.is_in_sync, broker_id in isr or broker_id == joins
            if was_in_sync and not state.is_in_sync and state.watch is not None:
                state.watch.changed(wake=False)  # its fetches, which had become quiet, are to be seen again

    def news(self, *, wake: bool) -> None:
        """Followers have something new to be told; with `wake` at once."""
        for state in self.followers.values():
            if state.watch is not None:
                state.watch.changed(wake=wake)

    def grew(self) -> None:
        """The leader's log has grown: followers that wait for that have something to fetch."""
        for state in self.followers.values():
            state.leader_grew()
            if state.watch is not None:
                state.watch.changed(wake=True)

    # --- the high watermark

    def are_too_few(self, min_insync_replicas: int) -> bool:
        """Whether fewer are in the ISR than the topic asks for; it cannot ask for more than it has."""
        return len(self.isr) < min_insync_replicas and len(self.isr) <= len(self.followers)

    def were_too_few(self, min_insync_replicas: int) -> bool:
        """The same of those that were waited for."""
        size = len(self.isr) + (self.pending is not None and self.pending.joins is not None)
        return size < min_insync_replicas and size <= len(self.followers)

    def high_watermark(self, written_offset: int, end_offset: int, min_insync_replicas: int) -> int:
        """Up to where all that are waited for have it, whose leader has written so far; -1 for not known."""
        if self.are_too_few(min_insync_replicas):
            return NO_OFFSET
        offset = written_offset
        for state in self.followers.values():
            if state.end_offset < offset and (state.is_in_sync or self._may_soon_join(state, end_offset)):
                offset = state.end_offset
        return offset

    def _may_soon_join(self, state: FollowerState, end_offset: int) -> bool:
        leading = self._leading
        lag_ms = leading.config.replica_lag_time_max_ms
        return (
            state.is_caught_up(end_offset, leading.host.internode_clock.monotonic_ms(), lag_ms)
            and leading.may_join(state)
            and not leading.has_lost(self._image, state.broker_id)
        )

    # --- the ISR

    def expanded(
        self, place: tuple[Uuid, int], state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        """What to ask the controller for if this follower, which has just fetched, is to join; else None.

        It must have what was committed, and all that the leader had when it began to lead: of that, too, some
        may have been committed, though the leader does not know it yet.
        """
        if (
            self.pending is not None
            or state.broker_id in self.isr
            or state.end_offset < max(high_watermark, self.epoch_start_offset)
            or not self._leading.may_join(state)
        ):
            return None
        return self._asks_for(place, (*self.isr, state.broker_id), state.broker_id)

    def shrunk(self, place: tuple[Uuid, int], end_offset: int, now_ms: int) -> PendingIsr | None:
        """What to ask the controller for if some are to leave; else None."""
        if self.pending is not None:
            return None
        lag_ms = self._leading.config.replica_lag_time_max_ms
        me = self._leading.node_id
        isr = tuple(
            broker_id
            for broker_id in self.isr
            if broker_id == me
            or (
                (state := self.followers.get(broker_id)) is not None
                and state.is_caught_up(end_offset, now_ms, lag_ms)
            )
        )
        return None if isr == self.isr else self._asks_for(place, isr, None)

    def _asks_for(self, place: tuple[Uuid, int], isr: tuple[int, ...], joins: int | None) -> PendingIsr:
        isr = tuple(sorted(isr))  # as Apache Kafka's leaders send it: tools show the order
        new_isr = tuple((broker_id, self._broker_epoch(broker_id)) for broker_id in isr)
        change = IsrChange(*place, self.leader_epoch, self.partition_epoch, new_isr)
        self.pending = PendingIsr(change, isr, joins)
        self._set_isr(self.isr)
        return self.pending

    def _broker_epoch(self, broker_id: int) -> int:
        if broker_id == self._leading.node_id:
            return self._leading.broker_epoch()
        state = self.followers.get(broker_id)
        return -1 if state is None or state.broker_epoch is None else state.broker_epoch

    def answered(self, pending: PendingIsr, answer: IsrChangeResult) -> bool:
        """The controller has answered. Whether it is to be asked the same again."""
        if self.pending is not pending:
            return False  # the metadata has overtaken it
        if answer.error in NOT_APPLIED:
            self.pending = None
            self._set_isr(self.isr)
        elif answer.error:
            return answer.error not in STAYS_PENDING
        elif answer.leader_epoch == self.leader_epoch and answer.partition_epoch >= self.partition_epoch:
            self.pending = None
            self.partition_epoch = answer.partition_epoch
            self._set_isr(answer.isr)
        return False

    def start_moved(self) -> None:
        """A follower's log begins elsewhere, or followers are not known any more."""
        for callback in list(self.deletions):
            callback()

    def low_watermark(self, log_start_offset: int) -> int:
        """Where the log begins on every replica that lives (KIP-107), the leader's beginning there."""
        leading = self._leading
        return min(
            [
                log_start_offset,
                *(
                    state.log_start_offset
                    for broker_id, state in self.followers.items()
                    if leading.is_alive(broker_id)
                ),
            ]
        )
