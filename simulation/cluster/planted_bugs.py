"""Planted bugs of nodes. Each removes one safeguard, and a test checks that the simulation finds it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from kwire.broker.api.records import fetch as consumers_fetch
from kwire.broker.api.records import follower_fetch
from kwire.broker.api.records.fetch_isolation import CONSUMER, FetchIsolation
from kwire.broker.controller import alter_partition, broker_registration
from kwire.broker.controller.commands import RegisterBroker
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.partition_change_builder import PartitionChangeBuilder
from kwire.broker.metadata.image import MetadataImage, PartitionImage
from kwire.broker.net import peer_link
from kwire.broker.net.peer_links import PeerLinks
from kwire.broker.net.tls_transport_layer import NOTHING, TlsTransportLayer
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

ANY_OFFSET = 1 << 60


def _do_nothing(*arguments: object, **named: object) -> None:
    return None


def _return_false(*arguments: object, **named: object) -> bool:
    return False


def _return_true(*arguments: object, **named: object) -> bool:
    return True


def _leader_epochs_are_not_compared(replace: SetAttribute) -> None:
    replace(follower_fetch, "find_divergence", _do_nothing)
    replace(consumers_fetch, "find_divergence", _do_nothing)


def _followers_do_not_truncate(replace: SetAttribute) -> None:
    replace(Follower, "truncate_to", _do_nothing)


def _followers_do_not_truncate_below_their_high_watermark(replace: SetAttribute) -> None:
    original = Follower.truncate_to

    def truncate_to(self: Follower, offset: int) -> Any:
        return original(self, max(offset, self.partition.log.high_watermark))

    replace(Follower, "truncate_to", truncate_to)


def _followers_fetch_before_a_truncation_is_synced(replace: SetAttribute) -> None:
    replace(Log, "awaits_sync", property(_return_false))


def _followers_truncate_to_their_high_watermark(replace: SetAttribute) -> None:
    """Truncate to the high watermark, as before KIP-101."""
    original = Partition.become_follower

    def become_follower(self: Partition, image: PartitionImage) -> None:
        original(self, image)
        self.log.truncate_to(self.log.high_watermark)

    replace(Partition, "become_follower", become_follower)


def _the_high_watermark_is_the_leaders_end_offset(replace: SetAttribute) -> None:
    replace(RemoteReplicas, "high_watermark", lambda self, written, end, least: written)


def _min_insync_replicas_is_ignored(replace: SetAttribute) -> None:
    replace(RemoteReplicas, "is_under_min_isr", _return_false)
    replace(RemoteReplicas, "is_maximal_isr_under_min", _return_false)


def _the_high_watermark_does_not_wait_for_joining_replicas(replace: SetAttribute) -> None:
    def set_isr(self: RemoteReplicas, isr: tuple[int, ...]) -> None:
        self.isr = isr
        for broker_id, state in self.followers.items():
            state.is_in_sync = broker_id in isr

    replace(RemoteReplicas, "_set_isr", set_isr)
    replace(RemoteReplicas, "_may_join_soon", _return_false)


def _lagging_replicas_join_the_isr(replace: SetAttribute) -> None:
    original = RemoteReplicas.prepare_expand

    def prepare_expand(
        self: RemoteReplicas, tp: Any, state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        end_offset, state.end_offset = state.end_offset, ANY_OFFSET
        try:
            return original(self, tp, state, high_watermark)
        finally:
            state.end_offset = end_offset

    replace(RemoteReplicas, "prepare_expand", prepare_expand)


def _replicas_join_the_isr_before_the_leader_epochs_start(replace: SetAttribute) -> None:
    original = RemoteReplicas.prepare_expand

    def prepare_expand(
        self: RemoteReplicas, tp: Any, state: FollowerState, high_watermark: int
    ) -> PendingIsr | None:
        self.epoch_start_offset = -1
        return original(self, tp, state, high_watermark)

    replace(RemoteReplicas, "prepare_expand", prepare_expand)


def _replicas_that_the_controller_rejected_stay_in_the_isr(replace: SetAttribute) -> None:
    def set_isr(self: RemoteReplicas, isr: tuple[int, ...]) -> None:
        self.isr = isr
        joining = None if self.pending is None else self.pending.new_member
        for broker_id, state in self.followers.items():
            state.is_in_sync = broker_id in isr or broker_id == joining

    replace(RemoteReplicas, "_set_isr", set_isr)


def _produce_is_acknowledged_before_replication(replace: SetAttribute) -> None:
    def acknowledge(self: Partition, delayed: Any) -> None:
        for _, on_done, _ in delayed:
            on_done(None)

    replace(Partition, "_acknowledge", acknowledge)


def _outdated_alterpartition_requests_are_accepted(replace: SetAttribute) -> None:
    replace(alter_partition, "_fault", _do_nothing)


def _broker_epochs_are_ignored(replace: SetAttribute) -> None:
    """Ignore broker epochs, as before KIP-903."""

    def is_eligible(image: MetadataImage, broker_id: int, broker_epoch: int) -> bool:
        broker = image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    replace(alter_partition, "_is_eligible", is_eligible)


def _brokers_stay_in_the_isr_after_an_unclean_shutdown(replace: SetAttribute) -> None:
    original = broker_registration.register_broker

    def register(command: RegisterBroker, image: MetadataImage, *arguments: Any, **named: Any) -> Any:
        result = original(command, image, *arguments, **named)
        return result._replace(records=result.records[-1:])

    replace(broker_registration, "register_broker", register)


def _replicas_outside_the_isr_become_leader(replace: SetAttribute) -> None:
    replace(PartitionChangeBuilder, "_is_in_sync", _return_true)


def _brokers_are_unfenced_before_they_have_caught_up(replace: SetAttribute) -> None:
    """Remove the broker's check and the controller's check."""

    def check_registration(self: BrokerLifecycleManager, image: MetadataImage) -> None:
        self._transition(LifecycleEvent.REGISTRATION_SEEN)
        self._host.call_soon(self._on_caught_up)

    replace(BrokerHeartbeatManager, "registration_offset", lambda self, broker: -1)
    replace(BrokerLifecycleManager, "_check_registration", check_registration)


def _followers_have_no_producer_state(replace: SetAttribute) -> None:
    original_append, original_update = Log.append_fetched, ProducerStateManager.update
    is_fetched = False

    def append_fetched(self: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> Any:
        nonlocal is_fetched
        is_fetched = True
        try:
            return original_append(self, records, leader_epoch=leader_epoch, now_ms=now_ms)
        finally:
            is_fetched = False

    def update(self: ProducerStateManager, header: Any) -> None:
        if not is_fetched:
            original_update(self, header)

    replace(Log, "append_fetched", append_fetched)
    replace(ProducerStateManager, "update", update)


def _consumers_read_beyond_the_high_watermark(replace: SetAttribute) -> None:
    _let_consumers_read_all(replace, (Role.LEADER, Role.FOLLOWER))


def _consumers_read_followers_beyond_the_high_watermark(replace: SetAttribute) -> None:
    _let_consumers_read_all(replace, (Role.FOLLOWER,))


def _let_consumers_read_all(replace: SetAttribute, roles: Container[Role]) -> None:
    """Let consumers read all written records of replicas with these roles."""
    original = FetchIsolation.readable_end

    def readable_end(isolation: FetchIsolation, partition: Partition, *other: Any) -> int:
        end_offset = original(isolation, partition, *other)
        is_consumer = isolation in CONSUMER.values()
        return partition.log.written_end_offset if is_consumer and partition.role in roles else end_offset

    replace(FetchIsolation, "readable_end", readable_end)


def _the_leader_epoch_of_requests_is_not_checked(replace: SetAttribute) -> None:
    replace(Partition, "check_leader_epoch", _do_nothing)


def _coordinators_load_only_up_to_the_high_watermark(replace: SetAttribute) -> None:
    read = StateTopic.stored_batches

    def stored_batches(self: StateTopic, index: int) -> Iterator[memoryview]:
        log = self._leader_partition(index).log
        return (data for data in read(self, index) if read_header(data).next_offset <= log.high_watermark)

    replace(StateTopic, "stored_batches", stored_batches)


def _prepared_transactions_are_not_completed_after_loading(replace: SetAttribute) -> None:
    replace(TransactionStateMachine, "on_loaded", _do_nothing)


def _fetch_responses_have_no_aborted_transactions(replace: SetAttribute) -> None:
    replace(Log, "aborted_transactions", lambda self, *arguments: [])


def _partitions_are_assigned_before_they_are_revoked(replace: SetAttribute) -> None:
    replace(ConsumerGroup, "owner_epoch", lambda self, topic_id, partition: NO_EPOCH)


def _commits_of_earlier_generations_are_accepted(replace: SetAttribute) -> None:
    def commit_offsets(
        self: GroupStateMachine, commit: OffsetCommit, *, is_transactional: bool = False
    ) -> Any:
        return self.offsets.commit(commit, self._context.now_ms())

    replace(GroupStateMachine, "commit_offsets", commit_offsets)


def _coordinators_respond_before_their_records_are_committed(replace: SetAttribute) -> None:
    original = CoordinatorShard.execute

    def execute(self: CoordinatorShard[Any], result: Any) -> None:
        result.committed(None)
        original(self, result._replace(committed=_do_nothing))

    replace(CoordinatorShard, "execute", execute)


def _nodes_reauthenticate_too_late(replace: SetAttribute) -> None:
    replace(peer_link, "REAUTHENTICATE_AT_SHARE", (1.5, 2.0))


def _controllers_get_the_credentials_for_brokers(replace: SetAttribute) -> None:
    original = PeerLinks.send

    def send(self: PeerLinks, *arguments: Any, to_controller: bool = False, **named: Any) -> None:
        original(self, *arguments, **named)

    replace(PeerLinks, "send", send)


def _decrypted_bytes_wait_for_an_event_of_the_socket(replace: SetAttribute) -> None:
    replace(TlsTransportLayer, "has_more", property(lambda layer: False, _do_nothing))


def _encrypted_bytes_that_the_socket_does_not_take_are_lost(replace: SetAttribute) -> None:
    original = TlsTransportLayer._flush

    def flush(self: TlsTransportLayer) -> None:
        try:
            original(self)
        except BlockingIOError:
            self._unsent = NOTHING
            raise

    replace(TlsTransportLayer, "_flush", flush)


PLANTED_BUGS = [
    PlantedBug("leader epochs are not compared", _leader_epochs_are_not_compared, 4),
    PlantedBug("followers do not truncate", _followers_do_not_truncate, 3),
    PlantedBug(
        "followers do not truncate below their high watermark",
        _followers_do_not_truncate_below_their_high_watermark,
        360,
    ),
    PlantedBug(
        "followers fetch before a truncation is synced", _followers_fetch_before_a_truncation_is_synced, 3
    ),
    PlantedBug("followers truncate to their high watermark", _followers_truncate_to_their_high_watermark),
    PlantedBug(
        "the high watermark is the leader's end offset", _the_high_watermark_is_the_leaders_end_offset
    ),
    PlantedBug("min.insync.replicas is ignored", _min_insync_replicas_is_ignored, 3),
    PlantedBug(
        "the high watermark does not wait for joining replicas",
        _the_high_watermark_does_not_wait_for_joining_replicas,
        12,
    ),
    PlantedBug("lagging replicas join the ISR", _lagging_replicas_join_the_isr, 10),
    PlantedBug(
        "replicas join the ISR before the leader epoch's start",
        _replicas_join_the_isr_before_the_leader_epochs_start,
        25,
    ),
    PlantedBug(
        "replicas that the controller rejected stay in the ISR",
        _replicas_that_the_controller_rejected_stay_in_the_isr,
        266,
    ),
    PlantedBug("produce is acknowledged before replication", _produce_is_acknowledged_before_replication),
    PlantedBug(
        "outdated AlterPartition requests are accepted", _outdated_alterpartition_requests_are_accepted, 22
    ),
    PlantedBug("broker epochs are ignored", _broker_epochs_are_ignored, 111),
    PlantedBug(
        "brokers stay in the ISR after an unclean shutdown",
        _brokers_stay_in_the_isr_after_an_unclean_shutdown,
        25,
    ),
    PlantedBug("replicas outside the ISR become leader", _replicas_outside_the_isr_become_leader, 1),
    PlantedBug(
        "brokers are unfenced before they have caught up",
        _brokers_are_unfenced_before_they_have_caught_up,
        27,
    ),
    PlantedBug("followers have no producer state", _followers_have_no_producer_state),
    PlantedBug("consumers read beyond the high watermark", _consumers_read_beyond_the_high_watermark),
    PlantedBug(
        "consumers read followers beyond the high watermark",
        _consumers_read_followers_beyond_the_high_watermark,
    ),
    PlantedBug(
        "coordinators load only up to the high watermark",
        _coordinators_load_only_up_to_the_high_watermark,
        25,
    ),
    PlantedBug(
        "prepared transactions are not completed after loading",
        _prepared_transactions_are_not_completed_after_loading,
        5,
    ),
    PlantedBug(
        "fetch responses have no aborted transactions", _fetch_responses_have_no_aborted_transactions, 2
    ),
    PlantedBug(
        "the leader epoch of requests is not checked", _the_leader_epoch_of_requests_is_not_checked, 5
    ),
    PlantedBug(
        "partitions are assigned before they are revoked",
        _partitions_are_assigned_before_they_are_revoked,
        18,
    ),
    PlantedBug(
        "commits of earlier generations are accepted", _commits_of_earlier_generations_are_accepted, 21
    ),
    PlantedBug(
        "coordinators respond before their records are committed",
        _coordinators_respond_before_their_records_are_committed,
        0,
    ),
    PlantedBug("nodes reauthenticate too late", _nodes_reauthenticate_too_late, 4),
    PlantedBug(
        "controllers get the credentials for brokers",
        _controllers_get_the_credentials_for_brokers,
    ),
    PlantedBug(
        "decrypted bytes wait for an event of the socket", _decrypted_bytes_wait_for_an_event_of_the_socket, 2
    ),
    PlantedBug(
        "encrypted bytes that the socket does not take are lost",
        _encrypted_bytes_that_the_socket_does_not_take_are_lost,
        2,
    ),
]
