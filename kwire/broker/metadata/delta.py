"""Metadata deltas: records are replayed on top of an image, and the changes are summarized.

All 26 types of metadata records are supported, so that no record of a log from Apache Kafka is lost.
Transaction records (KIP-868) have no effect here, because `broker.metadata.batches` has already applied them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kwire.broker.metadata.image import (
    DIRECTORY_MIGRATING,
    NO_CONFIGS,
    NO_LEADER,
    RESOURCE_TOPIC,
    BrokerImage,
    ConfigResource,
    ControllerImage,
    EndpointImage,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    TopicImage,
    has_collision_chars,
    unify_collision_chars,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid, uuid_to_text
from kwire.wire.records import metadata as stored

K = TypeVar("K")
V = TypeVar("V")

NO_LEADER_CHANGE: Final = -2
NO_RECOVERY_CHANGE: Final = -1


class TopicChange(NamedTuple):
    """A topic before and after a change. `before` is None for a new topic, `after` for a deleted topic."""

    before: TopicImage | None
    after: TopicImage | None


class MetadataDelta:
    """The changes that records make to an image.

    Call `replay` for every record, then `apply`. The first change to a part of the image copies that part.
    The summary (`topic_changes`, `changed_configs`, ...) is complete once `apply` has returned.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """The image from before the records."""
        self.changed_configs: set[ConfigResource] = set()
        self.changed_brokers: set[int] = set()
        self.features_changed = False
        self.elections: list[tuple[PartitionImage, PartitionImage]] = []
        """For each election of a leader, the partition before and after it. Snapshots have no elections."""
        self._after = _copy(image)
        self._copied: set[str] = set()
        self._open_topics: dict[Uuid, dict[int, PartitionImage]] = {}
        self._states: dict[PartitionImage, PartitionImage] = {}
        self._touched: dict[Uuid, TopicImage | None] = {}

    @classmethod
    def between(cls, before: MetadataImage, after: MetadataImage) -> MetadataDelta:
        """Return a delta with the complete summary of the changes between two images."""
        delta = cls(before)
        delta._after = after
        for topic_id in {**before.topics_by_id, **after.topics_by_id}:
            topic = before.topics_by_id.get(topic_id)
            if topic != after.topics_by_id.get(topic_id):
                delta._touched[topic_id] = topic
        delta.changed_configs = _changed_keys(before.configs, after.configs)
        delta.changed_brokers = _changed_keys(before.brokers, after.brokers)
        delta.features_changed = before.features != after.features
        return delta

    # --- the summary

    @property
    def topic_changes(self) -> list[TopicChange]:
        """Every topic that was created, deleted or changed, unless it was created and then deleted."""
        after = self._after.topics_by_id
        changes = [TopicChange(before, after.get(topic_id)) for topic_id, before in self._touched.items()]
        return [change for change in changes if change.before is not change.after]

    @property
    def created_topics(self) -> list[TopicImage]:
        """The topics that did not exist before."""
        return [
            change.after
            for change in self.topic_changes
            if change.before is None and change.after is not None
        ]

    @property
    def deleted_topics(self) -> list[TopicImage]:
        """The topics that no longer exist.

        A topic that was deleted and created again is in `created_topics` and `deleted_topics`.
        """
        return [
            change.before
            for change in self.topic_changes
            if change.after is None and change.before is not None
        ]

    @property
    def altered_topics(self) -> list[TopicChange]:
        """The topics whose partitions changed in number or state."""
        return [
            change for change in self.topic_changes if change.before is not None and change.after is not None
        ]

    # --- replay

    def replay_all(self, records: Iterable[object]) -> None:
        for record in records:
            self.replay(record)

    def replay(self, record: object) -> None:
        """Replay one record. Raises ValueError if the record is not supported or contradicts the image."""
        handler = _REPLAY.get(type(record))
        if handler is None:
            raise ValueError(f"not a metadata record: {record!r:.200}")
        handler(self, record)

    def apply(self, offset: int, epoch: int) -> MetadataImage:
        """Return the image after the records. `offset` and `epoch` are those of the last record.

        Raises ValueError if the partition numbers of a topic have gaps.
        """
        for topic_id, open_partitions in self._open_topics.items():
            self._close_topic(topic_id, open_partitions)
        self._open_topics.clear()
        self._states.clear()
        after = self._after
        after.offset = offset
        after.epoch = epoch
        return after

    def _own(self, part: str) -> dict[Any, Any]:
        # Images are immutable once they are published. This copy is not published yet.
        if part not in self._copied:
            setattr(self._after, part, dict(getattr(self._after, part)))
            self._copied.add(part)
        owned: dict[Any, Any] = getattr(self._after, part)
        return owned

    # --- topics

    def _topic(self, record: stored.TopicRecord) -> None:
        existing = self._after.topics.get(record.name)
        if existing is not None and existing.topic_id != record.topic_id:
            raise ValueError(f"topic {record.name} already exists with another id")
        if existing is None:
            # A snapshot of Apache Kafka may still contain the configs of a topic that was deleted long ago.
            self._drop_configs((RESOURCE_TOPIC, record.name))
        topic = TopicImage(record.name, record.topic_id, ())
        self._touched.setdefault(record.topic_id, None)
        self._own("topics")[record.name] = topic
        self._own("topics_by_id")[record.topic_id] = topic
        self._open_topics.setdefault(record.topic_id, {})
        if has_collision_chars(record.name):
            unified = unify_collision_chars(record.name)
            names = self._own("colliding_names")
            if record.name not in names.get(unified, ()):
                names[unified] = (*names.get(unified, ()), record.name)

    def _open(self, topic_id: Uuid) -> dict[int, PartitionImage]:
        open_partitions = self._open_topics.get(topic_id)
        if open_partitions is None:
            topic = self._after.topics_by_id.get(topic_id)
            if topic is None:
                raise ValueError(f"partition of an unknown topic, topic id {uuid_to_text(topic_id)}")
            self._touched.setdefault(topic_id, self.image.topics_by_id.get(topic_id))
            open_partitions = dict(enumerate(topic.partitions))
            self._open_topics[topic_id] = open_partitions
        return open_partitions

    def _close_topic(self, topic_id: Uuid, open_partitions: dict[int, PartitionImage]) -> None:
        name = self._after.topics_by_id[topic_id].name
        if set(open_partitions) != set(range(len(open_partitions))):
            raise ValueError(f"partition numbers of topic {name} have gaps: {sorted(open_partitions)}")
        topic = TopicImage(
            name, topic_id, tuple(open_partitions[index] for index in range(len(open_partitions)))
        )
        self._own("topics")[name] = topic
        self._own("topics_by_id")[topic_id] = topic

    def _partition(self, record: stored.PartitionRecord) -> None:
        directories = record.directories or [DIRECTORY_MIGRATING] * len(record.replicas)
        state = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(directories),
            removing_replicas=tuple(record.removing_replicas),
            adding_replicas=tuple(record.adding_replicas),
            leader_recovery_state=record.leader_recovery_state,
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
        )
        self._open(record.topic_id)[record.partition_id] = self._shared(state)

    def _shared(self, state: PartitionImage) -> PartitionImage:
        """Return one shared object for all equal states, to save memory.

        After a start most states are equal.
        """
        return self._states.setdefault(state, state)

    def _partition_change(self, record: stored.PartitionChangeRecord) -> None:
        partitions = self._open(record.topic_id)
        before = partitions.get(record.partition_id)
        if before is None:
            raise ValueError(f"change of partition {record.partition_id}, which does not exist: {record!r}")
        after = partitions[record.partition_id] = self._shared(merge_change(before, record))
        if after.leader not in (before.leader, NO_LEADER):
            self.elections.append((before, after))

    def _remove_topic(self, record: stored.RemoveTopicRecord) -> None:
        topics_by_id = self._own("topics_by_id")
        topic = topics_by_id.pop(record.topic_id, None)
        if topic is None:
            raise ValueError(f"removal of an unknown topic, topic id {uuid_to_text(record.topic_id)}")
        self._touched.setdefault(record.topic_id, self.image.topics_by_id.get(record.topic_id))
        self._open_topics.pop(record.topic_id, None)
        del self._own("topics")[topic.name]
        # The topic's configs are deleted with the topic. The log has no records for that.
        self._drop_configs((RESOURCE_TOPIC, topic.name))
        if has_collision_chars(topic.name):
            unified = unify_collision_chars(topic.name)
            names = self._own("colliding_names")
            left = tuple(name for name in names.get(unified, ()) if name != topic.name)
            if left:
                names[unified] = left
            else:
                names.pop(unified, None)

    def _drop_configs(self, resource: ConfigResource) -> None:
        if resource in self._after.configs:
            del self._own("configs")[resource]
            self.changed_configs.add(resource)

    def _clear_elr(self, record: stored.ClearElrRecord) -> None:
        if record.topic_name:
            topic = self._after.topics.get(record.topic_name)
            topics = [] if topic is None else [topic]
        else:
            topics = list(self._after.topics.values())
        for topic in topics:
            partitions = self._open(topic.topic_id)
            for index, partition in partitions.items():
                if partition.elr or partition.last_known_elr:
                    partitions[index] = partition._replace(elr=(), last_known_elr=())

    # --- configuration, features, quotas

    def _config(self, record: stored.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        configs = self._own("configs")
        values: dict[str, str] = dict(configs.get(resource, NO_CONFIGS))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = values
        else:
            configs.pop(resource, None)
        self.changed_configs.add(resource)

    def _feature_level(self, record: stored.FeatureLevelRecord) -> None:
        features = self._own("features")
        if record.feature_level == 0:
            features.pop(record.name, None)
        else:
            features[record.name] = record.feature_level
        self.features_changed = True

    def _client_quota(self, record: stored.ClientQuotaRecord) -> None:
        entity: QuotaEntity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        quotas = self._own("quotas")
        values = dict(quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            quotas[entity] = values
        else:
            quotas.pop(entity, None)

    def _producer_ids(self, record: stored.ProducerIdsRecord) -> None:
        self._after.next_producer_id = record.next_producer_id

    def _zk_migration(self, record: stored.ZkMigrationStateRecord) -> None:
        self._after.zk_migration_state = record.zk_migration_state

    # --- nodes

    def _register_broker(self, record: stored.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._own("brokers")[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating=record.is_migrating_zk_broker,
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if cordoned is None else tuple(cordoned),
        )
        self.changed_brokers.add(record.broker_id)

    def _unregister_broker(self, record: stored.UnregisterBrokerRecord) -> None:
        self._known_broker(record.broker_id, record.broker_epoch)
        del self._own("brokers")[record.broker_id]
        self.changed_brokers.add(record.broker_id)

    def _fence_broker(self, record: stored.FenceBrokerRecord) -> None:
        self._set_broker(self._known_broker(record.id, record.epoch)._replace(fenced=True))

    def _unfence_broker(self, record: stored.UnfenceBrokerRecord) -> None:
        self._set_broker(self._known_broker(record.id, record.epoch)._replace(fenced=False))

    def _broker_registration_change(self, record: stored.BrokerRegistrationChangeRecord) -> None:
        broker = self._known_broker(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = broker._replace(fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = broker._replace(in_controlled_shutdown=record.in_controlled_shutdown > 0)
        if record.log_dirs:
            broker = broker._replace(log_dirs=tuple(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = broker._replace(cordoned_log_dirs=tuple(record.cordoned_log_dirs))
        self._set_broker(broker)

    def _known_broker(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._after.brokers.get(broker_id)
        if broker is None:
            raise ValueError(f"change of broker {broker_id}, which is not registered")
        if broker.broker_epoch != broker_epoch:
            raise ValueError(
                f"change of broker {broker_id} with broker epoch {broker_epoch}, not {broker.broker_epoch}"
            )
        return broker

    def _set_broker(self, broker: BrokerImage) -> None:
        self._own("brokers")[broker.broker_id] = broker
        self.changed_brokers.add(broker.broker_id)

    def _register_controller(self, record: stored.RegisterControllerRecord) -> None:
        self._own("controllers")[record.controller_id] = ControllerImage(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            zk_migration_ready=record.zk_migration_ready,
        )

    # --- security: the image keeps these records without any conversion

    def _access_control_entry(self, record: stored.AccessControlEntryRecord) -> None:
        self._own("acls")[record.id] = record

    def _remove_access_control_entry(self, record: stored.RemoveAccessControlEntryRecord) -> None:
        self._own("acls").pop(record.id, None)

    def _user_scram_credential(self, record: stored.UserScramCredentialRecord) -> None:
        self._own("scram_credentials")[(record.mechanism, record.name)] = record

    def _remove_user_scram_credential(self, record: stored.RemoveUserScramCredentialRecord) -> None:
        self._own("scram_credentials").pop((record.mechanism, record.name), None)

    def _delegation_token(self, record: stored.DelegationTokenRecord) -> None:
        self._own("delegation_tokens")[record.token_id] = record

    def _remove_delegation_token(self, record: stored.RemoveDelegationTokenRecord) -> None:
        self._own("delegation_tokens").pop(record.token_id, None)

    def _no_op(self, record: object) -> None:
        """Ignore a record that changes no image, such as a NoOpRecord or a transaction record."""


_REPLAY: Final[dict[type, Callable[[MetadataDelta, Any], None]]] = {
    stored.RegisterBrokerRecord: MetadataDelta._register_broker,
    stored.UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    stored.TopicRecord: MetadataDelta._topic,
    stored.PartitionRecord: MetadataDelta._partition,
    stored.ConfigRecord: MetadataDelta._config,
    stored.PartitionChangeRecord: MetadataDelta._partition_change,
    stored.FenceBrokerRecord: MetadataDelta._fence_broker,
    stored.UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    stored.RemoveTopicRecord: MetadataDelta._remove_topic,
    stored.DelegationTokenRecord: MetadataDelta._delegation_token,
    stored.UserScramCredentialRecord: MetadataDelta._user_scram_credential,
    stored.FeatureLevelRecord: MetadataDelta._feature_level,
    stored.ClientQuotaRecord: MetadataDelta._client_quota,
    stored.ProducerIdsRecord: MetadataDelta._producer_ids,
    stored.BrokerRegistrationChangeRecord: MetadataDelta._broker_registration_change,
    stored.AccessControlEntryRecord: MetadataDelta._access_control_entry,
    stored.RemoveAccessControlEntryRecord: MetadataDelta._remove_access_control_entry,
    stored.NoOpRecord: MetadataDelta._no_op,
    stored.ZkMigrationStateRecord: MetadataDelta._zk_migration,
    stored.RemoveUserScramCredentialRecord: MetadataDelta._remove_user_scram_credential,
    stored.BeginTransactionRecord: MetadataDelta._no_op,
    stored.EndTransactionRecord: MetadataDelta._no_op,
    stored.AbortTransactionRecord: MetadataDelta._no_op,
    stored.RemoveDelegationTokenRecord: MetadataDelta._remove_delegation_token,
    stored.RegisterControllerRecord: MetadataDelta._register_controller,
    stored.ClearElrRecord: MetadataDelta._clear_elr,
}


def merge_change(before: PartitionImage, record: stored.PartitionChangeRecord) -> PartitionImage:
    """Return the partition after a change, with the new leader epoch and partition epoch."""
    replicas = before.replicas if record.replicas is None else tuple(record.replicas)
    directories = before.directories if record.directories is None else tuple(record.directories)
    if record.directories is None and record.replicas is not None:
        placed = dict(zip(before.replicas, before.directories, strict=False))
        directories = tuple(placed.get(replica, DIRECTORY_MIGRATING) for replica in replicas)
    leader = before.leader
    leader_epoch = before.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        # A record that sets a leader bumps the leader epoch, even if the leader stays the same.
        leader = record.leader
        leader_epoch += 1
    recovery = record.leader_recovery_state
    return PartitionImage(
        replicas=replicas,
        isr=before.isr if record.isr is None else tuple(record.isr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        directories=directories,
        removing_replicas=(
            before.removing_replicas if record.removing_replicas is None else tuple(record.removing_replicas)
        ),
        adding_replicas=(
            before.adding_replicas if record.adding_replicas is None else tuple(record.adding_replicas)
        ),
        leader_recovery_state=before.leader_recovery_state if recovery == NO_RECOVERY_CHANGE else recovery,
        elr=before.elr if record.eligible_leader_replicas is None else tuple(record.eligible_leader_replicas),
        last_known_elr=before.last_known_elr
        if record.last_known_elr is None
        else tuple(record.last_known_elr),
    )


def _copy(image: MetadataImage) -> MetadataImage:
    twin = MetadataImage.__new__(MetadataImage)
    for slot in MetadataImage.__slots__:
        setattr(twin, slot, getattr(image, slot))
    return twin


def _changed_keys(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    return {key for key in {**before, **after} if before.get(key) != after.get(key)}


def _endpoints(end_points: Iterable[Any]) -> Mapping[str, EndpointImage]:
    return {
        endpoint.name: EndpointImage(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
        for endpoint in end_points
    }


def _features(features: Iterable[Any]) -> Mapping[str, tuple[int, int]]:
    return {
        feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in features
    }


__all__ = ["NO_LEADER", "MetadataDelta", "TopicChange", "merge_change"]
