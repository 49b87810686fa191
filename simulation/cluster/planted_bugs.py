"""Bugs made by hand, which the simulation has to find. Each takes one safeguard out of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kwire.broker.api.records import fetch as consumers_fetch
from kwire.broker.api.records import follower_fetch
from kwire.broker.controller import alter_partition, broker_registration
from kwire.broker.controller.commands import RegisterBroker
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.partition_change_builder import PartitionChangeBuilder
from kwire.broker.metadata.image import MetadataImage, PartitionImage
from kwire.broker.net import peer_link
from kwire.broker.net.peer_links import PeerLinks
from kwire.broker.node.broker_lifecycle import BrokerLifecycleManager, LifecycleEvent
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.replication.follower import Follower
from kwire.broker.replication.follower_state import FollowerState
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.remote_replicas import PendingIsr, RemoteReplicas
from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.coordinator.groups.consumer.group import NO_EPOCH, ConsumerGroup
from kwire.coordinator.groups.offsets import OffsetCommit
from kwire.coordinator.groups.state_machine import GroupStateMachine
from kwire.coordinator.runtime import CoordinatorShard
from kwire.coordinator.transactions.state_machine import TransactionStateMachine
from kwire.wire.batch import read_header
from simulation.storage.planted_bugs import PlantedBug, SetAttribute

EVERYWHERE = 1 << 60


def _nothing(*arguments: object, **named: object) -> None:
    return None


def _no(*arguments: object, **named: object) -> bool:
    return False


def _yes(*arguments: object, **named: object) -> bool:
    return True


def _leader_epochs_are_not_compared(replace: SetAttribute) -> None:
    replace(follower_fetch, "find_divergence", _nothing)
    replace(consumers_fetch, "find_divergence", _nothing)


def _followers_cut_nothing(replace: SetAttribute) -> None:
    replace(Follower, "truncate_to", _nothing)


def _followers_cut_nothing_that_was_committed(replace: SetAttribute) -> None:
    original = Follower.truncate_to

    def truncate_to(self: Follower, offset: int) -> Any:
        return original(self, max(offset, self.partition.log.high_watermark))

    replace(Follower, "truncate_to", truncate_to)


def _cut_logs_are_not_waited_for(replace: SetAttribute) -> None:
    replace(Log, "awaits_sync", property(_no))


def _followers_cut_at_the_high_watermark(replace: SetAttribute) -> None:
    """As before KIP-101."""
    original = Partition.become_follower

    def follow(self: Partition, image: PartitionImage) -> None:
        original(self, image)
        self.log.truncate_to(self.log.high_watermark)

    replace(Partition, "become_follower", follow)


def _the_high_watermark_is_the_leaders_end(replace: SetAttribute) -> None:
    replace(RemoteReplicas, "high_watermark", lambda self, written, end, least: written)


def _too_few_are_enough(replace: SetAttribute) -> None:
    replace(RemoteReplicas, "is_under_min_isr", _no)
    replace(RemoteReplicas, "is_maximal_isr_under_min", _no)


def _who_joins_is_not_waited_for(replace: SetAttribute) -> None:
    def set_isr(self: RemoteReplicas, isr: tuple[int, ...]) -> None:
        self.isr = isr
        for broker_id, state in self.followers.items():
            state.is_in_sync = broker_id in isr

    replace(RemoteReplicas, "_set_isr", set_isr)
    replace(RemoteReplicas, "_may_join_soon", _no)


def _who_lags_joins(replace: SetAttribute) -> None:
    original = RemoteReplicas.prepare_expand

    def expanded(
        self: RemoteReplicas, place: Any, state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        end_offset, state.end_offset = state.end_offset, EVERYWHERE
        try:
            return original(self, place, state, high_watermark)
        finally:
            state.end_offset = end_offset

    replace(RemoteReplicas, "prepare_expand", expanded)


def _who_lacks_what_the_leader_began_with_joins(replace: SetAttribute) -> None:
    original = RemoteReplicas.prepare_expand

    def expanded(
        self: RemoteReplicas, place: Any, state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        self.epoch_start_offset = -1
        return original(self, place, state, high_watermark)

    replace(RemoteReplicas, "prepare_expand", expanded)


def _who_was_refused_is_forgotten(replace: SetAttribute) -> None:
    def set_isr(self: RemoteReplicas, isr: tuple[int, ...]) -> None:
        self.isr = isr
        joins = None if self.pending is None else self.pending.new_member
        for broker_id, state in self.followers.items():
            state.is_in_sync = broker_id in isr or broker_id == joins

    replace(RemoteReplicas, "_set_isr", set_isr)


def _acknowledged_when_written(replace: SetAttribute) -> None:
    def keep(self: Partition, promises: Any) -> None:
        for _, tell, _ in promises:
            tell(None)

    replace(Partition, "_acknowledge", keep)


def _stale_alterations_are_taken(replace: SetAttribute) -> None:
    replace(alter_partition, "_fault", _nothing)


def _lives_are_not_told_apart(replace: SetAttribute) -> None:
    """As before KIP-903."""

    def is_eligible(image: MetadataImage, broker_id: int, broker_epoch: int) -> bool:
        broker = image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    replace(alter_partition, "_is_eligible", is_eligible)


def _unclean_ends_cost_nothing(replace: SetAttribute) -> None:
    original = broker_registration.register_broker

    def register(command: RegisterBroker, image: MetadataImage, *arguments: Any, **named: Any) -> Any:
        result = original(command, image, *arguments, **named)
        return result._replace(records=result.records[-1:])

    replace(broker_registration, "register_broker", register)


def _anybody_leads(replace: SetAttribute) -> None:
    replace(PartitionChangeBuilder, "_is_in_sync", _yes)


def _unfenced_before_caught_up(replace: SetAttribute) -> None:
    """Broker and controller both look."""

    def look(self: BrokerLifecycleManager, image: MetadataImage) -> None:
        self._transition(LifecycleEvent.REGISTRATION_SEEN)
        self._host.call_soon(self._on_caught_up)

    replace(BrokerHeartbeatManager, "registration_offset", lambda self, broker: -1)
    replace(BrokerLifecycleManager, "_check_registration", look)


def _followers_do_not_know_producers(replace: SetAttribute) -> None:
    appending, updating = Log.append_fetched, ProducerStateManager.update
    is_fetched = False

    def append_fetched(self: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> Any:
        nonlocal is_fetched
        is_fetched = True
        try:
            return appending(self, records, leader_epoch=leader_epoch, now_ms=now_ms)
        finally:
            is_fetched = False

    def update(self: ProducerStateManager, header: Any) -> None:
        if not is_fetched:
            updating(self, header)

    replace(Log, "append_fetched", append_fetched)
    replace(ProducerStateManager, "update", update)


def _consumers_read_to_the_end(replace: SetAttribute) -> None:
    replace(consumers_fetch._Fetch, "_end_offset", lambda self, log: log.written_end_offset)


def _consumers_read_followers_to_the_end(replace: SetAttribute) -> None:
    original = consumers_fetch._Fetch._end_offset

    def end_offset(self: Any, log: Log) -> int:
        follows = any(
            each.log is log and each.role is Role.FOLLOWER
            for each in self._node.replica_manager._partitions.values()
        )
        return log.written_end_offset if follows else original(self, log)

    replace(consumers_fetch._Fetch, "_end_offset", end_offset)


def _leader_epochs_of_requests_are_not_looked_at(replace: SetAttribute) -> None:
    replace(Partition, "check_leader_epoch", _nothing)


def _coordinators_read_to_the_high_watermark(replace: SetAttribute) -> None:
    read = StateTopic.stored_batches

    def stored_batches(self: StateTopic, index: int) -> Iterator[memoryview]:
        log = self._leader_partition(index).log
        return (data for data in read(self, index) if read_header(data).next_offset <= log.high_watermark)

    replace(StateTopic, "stored_batches", stored_batches)


def _decided_markers_are_forgotten(replace: SetAttribute) -> None:
    replace(TransactionStateMachine, "on_loaded", _nothing)


def _aborted_transactions_are_not_told(replace: SetAttribute) -> None:
    replace(Log, "aborted_transactions", lambda self, *arguments: [])


def _partitions_are_given_before_they_are_free(replace: SetAttribute) -> None:
    replace(ConsumerGroup, "owner_epoch", lambda self, topic_id, partition: NO_EPOCH)


def _commits_of_earlier_generations_are_taken(replace: SetAttribute) -> None:
    def commit_offsets(
        self: GroupStateMachine, commit: OffsetCommit, *, is_transactional: bool = False
    ) -> Any:
        return self.offsets.commit(commit, self._context.now_ms())

    replace(GroupStateMachine, "commit_offsets", commit_offsets)


def _coordinators_answer_before_it_is_committed(replace: SetAttribute) -> None:
    original = CoordinatorShard.execute

    def execute(self: CoordinatorShard[Any], result: Any) -> None:
        result.committed(None)
        original(self, result._replace(committed=_nothing))

    replace(CoordinatorShard, "execute", execute)


def _logins_are_renewed_too_late(replace: SetAttribute) -> None:
    replace(peer_link, "REAUTHENTICATE_AT_SHARE", (1.5, 2.0))


def _controllers_are_shown_what_is_for_brokers(replace: SetAttribute) -> None:
    original = PeerLinks.send

    def send(self: PeerLinks, *asked: Any, to_controller: bool = False, **named: Any) -> None:
        original(self, *asked, **named)

    replace(PeerLinks, "send", send)


PLANTED_BUGS = [
    PlantedBug("leader epochs are not compared", _leader_epochs_are_not_compared, 4),
    PlantedBug("followers cut nothing", _followers_cut_nothing, 3),
    PlantedBug("followers cut nothing that was committed", _followers_cut_nothing_that_was_committed, 360),
    PlantedBug("logs that were cut are not waited for", _cut_logs_are_not_waited_for, 3),
    PlantedBug("followers cut at the high watermark", _followers_cut_at_the_high_watermark),
    PlantedBug("the high watermark is the leader's end", _the_high_watermark_is_the_leaders_end),
    PlantedBug("too few are enough", _too_few_are_enough),
    PlantedBug("who joins is not waited for", _who_joins_is_not_waited_for, 19),
    PlantedBug("who lags joins", _who_lags_joins),
    PlantedBug("who lacks what the leader began with joins", _who_lacks_what_the_leader_began_with_joins, 13),
    PlantedBug("who was refused is forgotten", _who_was_refused_is_forgotten, 301),
    PlantedBug("acknowledged when written", _acknowledged_when_written),
    PlantedBug("stale alterations are taken", _stale_alterations_are_taken, 22),
    PlantedBug("the lives of a broker are not told apart", _lives_are_not_told_apart, 111),
    PlantedBug("unclean ends cost nothing", _unclean_ends_cost_nothing, 25),
    PlantedBug("anybody leads", _anybody_leads, 1),
    PlantedBug("unfenced before caught up", _unfenced_before_caught_up, 7),
    PlantedBug("followers do not know producers", _followers_do_not_know_producers),
    PlantedBug("consumers read to the end", _consumers_read_to_the_end),
    PlantedBug("consumers read followers to the end", _consumers_read_followers_to_the_end),
    PlantedBug("coordinators read to the high watermark", _coordinators_read_to_the_high_watermark, 7),
    PlantedBug("markers that were decided are forgotten", _decided_markers_are_forgotten, 5),
    PlantedBug("aborted transactions are not told", _aborted_transactions_are_not_told, 2),
    PlantedBug(
        "leader epochs of requests are not looked at", _leader_epochs_of_requests_are_not_looked_at, 20
    ),
    PlantedBug("partitions are given before they are free", _partitions_are_given_before_they_are_free, 18),
    PlantedBug("commits of earlier generations are taken", _commits_of_earlier_generations_are_taken, 21),
    PlantedBug("coordinators answer before it is committed", _coordinators_answer_before_it_is_committed, 5),
    PlantedBug("logins are renewed too late", _logins_are_renewed_too_late, 4),
    PlantedBug("controllers are shown what is for brokers", _controllers_are_shown_what_is_for_brokers),
]
