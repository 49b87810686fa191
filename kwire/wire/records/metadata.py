"""Records of the cluster metadata log. KIP-631 and later KIPs."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Str,
    UInt16,
    field,
    message,
)


@message(key=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord(Message):
    """A broker registered with a new epoch."""

    broker_id: Int32 = field()
    is_migrating_zk_broker: Bool = field("2+")
    incarnation_id: Uuid = field()
    broker_epoch: Int64 = field()
    end_points: list[BrokerEndpoint] = field()
    features: list[BrokerFeature] = field()
    rack: Str | None = field(nullable="0+")
    fenced: Bool = field(default=True)
    in_controlled_shutdown: Bool = field("1+")
    log_dirs: list[Uuid] = field("3+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("4+", nullable="4+", tag=1, default=None)


class BrokerEndpoint(Message):
    """A listener of a broker."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()
    security_protocol: Int16 = field()


class BrokerFeature(Message):
    """A feature and the range of levels that the broker supports."""

    name: Str = field()
    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(key=1, versions="0", flexible="0+")
class UnregisterBrokerRecord(Message):
    """A broker's registration was removed."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field()


@message(key=2, versions="0", flexible="0+")
class TopicRecord(Message):
    """A topic was created. Its partitions follow."""

    name: Str = field()
    topic_id: Uuid = field()


@message(key=3, versions="0-2", flexible="0+")
class PartitionRecord(Message):
    """The complete state of a partition."""

    partition_id: Int32 = field(default=-1)
    topic_id: Uuid = field()
    replicas: list[Int32] = field()
    isr: list[Int32] = field()
    removing_replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    leader: Int32 = field(default=-1)
    leader_recovery_state: Int8 = field(tag=0)
    leader_epoch: Int32 = field(default=-1)
    partition_epoch: Int32 = field(default=-1)
    directories: list[Uuid] = field("1+")
    eligible_leader_replicas: list[Int32] | None = field("2+", nullable="2+", tag=1, default=None)
    last_known_elr: list[Int32] | None = field("2+", nullable="2+", tag=2, default=None)


@message(key=4, versions="0", flexible="0+")
class ConfigRecord(Message):
    """A configuration value was set, or removed (null)."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    name: Str = field()
    value: Str | None = field(nullable="0+")


@message(key=5, versions="0-2", flexible="0+")
class PartitionChangeRecord(Message):
    """Changes of a partition. Fields with their default values have not changed."""

    partition_id: Int32 = field(default=-1)
    topic_id: Uuid = field()
    isr: list[Int32] | None = field(nullable="0+", tag=0, default=None)
    leader: Int32 = field(tag=1, default=-2)
    replicas: list[Int32] | None = field(nullable="0+", tag=2, default=None)
    removing_replicas: list[Int32] | None = field(nullable="0+", tag=3, default=None)
    adding_replicas: list[Int32] | None = field(nullable="0+", tag=4, default=None)
    leader_recovery_state: Int8 = field(tag=5, default=-1)
    directories: list[Uuid] | None = field("1+", nullable="1+", tag=8, default=None)
    eligible_leader_replicas: list[Int32] | None = field("2+", nullable="2+", tag=6, default=None)
    last_known_elr: list[Int32] | None = field("2+", nullable="2+", tag=7, default=None)


@message(key=7, versions="0", flexible="0+")
class FenceBrokerRecord(Message):
    """A broker was fenced."""

    id: Int32 = field()
    epoch: Int64 = field()


@message(key=8, versions="0", flexible="0+")
class UnfenceBrokerRecord(Message):
    """A broker was unfenced."""

    id: Int32 = field()
    epoch: Int64 = field()


@message(key=9, versions="0", flexible="0+")
class RemoveTopicRecord(Message):
    """A topic was deleted, with its partitions and configuration."""

    topic_id: Uuid = field()


@message(key=10, versions="0", flexible="0+")
class DelegationTokenRecord(Message):
    """A delegation token was issued or renewed."""

    owner: Str = field()
    requester: Str = field()
    renewers: list[Str] = field()
    issue_timestamp: Int64 = field()
    max_timestamp: Int64 = field()
    expiration_timestamp: Int64 = field()
    token_id: Str = field()


@message(key=11, versions="0", flexible="0+")
class UserScramCredentialRecord(Message):
    """A user's SCRAM credential was set."""

    name: Str = field()
    mechanism: Int8 = field()
    salt: Bytes = field()
    stored_key: Bytes = field()
    server_key: Bytes = field()
    iterations: Int32 = field()


@message(key=12, versions="0", flexible="0+")
class FeatureLevelRecord(Message):
    """A feature was set to a level; 0 removes it."""

    name: Str = field()
    feature_level: Int16 = field()


@message(key=14, versions="0", flexible="0+")
class ClientQuotaRecord(Message):
    """A client quota was set or removed."""

    entity: list[EntityData] = field()
    key: Str = field()
    value: Float64 = field()
    remove: Bool = field()


class EntityData(Message):
    """A component of a quota's entity: a user, a client id or an IP address. Null means the default."""

    entity_type: Str = field()
    entity_name: Str | None = field(nullable="0+")


@message(key=15, versions="0", flexible="0+")
class ProducerIdsRecord(Message):
    """A block of producer ids was allocated to a broker."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field(default=-1)
    next_producer_id: Int64 = field()


@message(key=17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord(Message):
    """Changes of a broker's registration. Fields with their default values have not changed."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field()
    fenced: Int8 = field(tag=0)
    in_controlled_shutdown: Int8 = field("1+", tag=1)
    log_dirs: list[Uuid] = field("2+", tag=2)
    cordoned_log_dirs: list[Uuid] | None = field("3+", nullable="3+", tag=3, default=None)


@message(key=18, versions="0", flexible="0+")
class AccessControlEntryRecord(Message):
    """An access control entry was created."""

    id: Uuid = field()
    resource_type: Int8 = field()
    resource_name: Str = field()
    pattern_type: Int8 = field()
    principal: Str = field()
    host: Str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


@message(key=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord(Message):
    """An access control entry was deleted."""

    id: Uuid = field()


@message(key=20, versions="0", flexible="0+")
class NoOpRecord(Message):
    """No change. The record only advances the log end offset."""


@message(key=21, versions="0", flexible="0+")
class ZkMigrationStateRecord(Message):
    """The state of a migration from ZooKeeper. Kafka 4 does not write this record."""

    zk_migration_state: Int8 = field()


@message(key=22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord(Message):
    """A user's SCRAM credential was deleted."""

    name: Str = field()
    mechanism: Int8 = field()


@message(key=23, versions="0", flexible="0+")
class BeginTransactionRecord(Message):
    """The start of a metadata transaction (KIP-868). Its records take effect when the transaction ends."""

    name: Str | None = field(nullable="0+", tag=0, default=None)


@message(key=24, versions="0", flexible="0+")
class EndTransactionRecord(Message):
    """The end of a metadata transaction. The records of the transaction take effect."""


@message(key=25, versions="0", flexible="0+")
class AbortTransactionRecord(Message):
    """The abort of a metadata transaction. The records of the transaction are discarded."""

    reason: Str | None = field(nullable="0+", tag=0, default=None)


@message(key=26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord(Message):
    """A delegation token was deleted or has expired."""

    token_id: Str = field()


@message(key=27, versions="0", flexible="0+")
class RegisterControllerRecord(Message):
    controller_id: Int32 = field()
    incarnation_id: Uuid = field()
    zk_migration_ready: Bool = field()
    end_points: list[ControllerEndpoint] = field()
    features: list[ControllerFeature] = field()


class ControllerEndpoint(Message):
    """A listener of a controller."""

    name: Str = field()
    host: Str = field()
    port: UInt16 = field()
    security_protocol: Int16 = field()


class ControllerFeature(Message):
    """A feature and the range of levels that the controller supports."""

    name: Str = field()
    min_supported_version: Int16 = field()
    max_supported_version: Int16 = field()


@message(key=28, versions="0", flexible="0+")
class ClearElrRecord(Message):
    """The eligible leader replicas of a topic, or of all topics if the name is empty, were removed."""

    topic_name: Str = field()


RECORDS: dict[int, type[Message]] = {
    record.API_KEY: record
    for record in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        ZkMigrationStateRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
    )
}
"""The record classes by record type."""
