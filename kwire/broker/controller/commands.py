"""The commands of the controller, and their results.

A command is plain data. The controller turns a command and a metadata image into a `ControllerResult`: the
records to append, and the response to send once these records are committed. If one item of a request fails,
its error is part of the response. If the complete request fails, ApiError is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar

from kwire.broker.metadata.image import EndpointImage, QuotaEntity
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.security.acl import Acl, AclFilter
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kwire.wire.messages.create_partitions import CreatePartitionsTopic
from kwire.wire.messages.create_topics import CreatableTopic
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

R = TypeVar("R")


class ControllerResult(NamedTuple, Generic[R]):
    """The records and the response of a command. The response is sent once the records are committed."""

    records: Sequence[StoredRecord]
    response: R
    atomic: bool = True
    """Whether the records must be written in one batch, so that a failure cannot keep only some of them."""


class Fault(NamedTuple):
    """The error of one item of a request: an error code, and a message for the client or None."""

    code: ErrorCode
    message: str | None = None


MAX_RECORDS_PER_REQUEST: Final = 10_000
"""The maximum number of records that one request may write, as in Kafka."""

TOO_MANY_RECORDS: Final = Fault(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)


class MutationQuota(Protocol):
    """The quota of one request for the partitions that it creates and deletes. KIP-599."""

    def take(self, partitions: int) -> bool:
        """Record partitions. Return False if the quota does not allow them."""

    def throttle_time_ms(self) -> int:
        """Return for how long to mute the client's connection, in ms."""


THROTTLING_QUOTA_EXCEEDED: Final = Fault(ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class CreateTopics(NamedTuple):
    """Create topics. Response: `list[CreatableTopicResult]`."""

    topics: Sequence[CreatableTopic]
    validate_only: bool = False
    client: tuple[Principal, str] | None = None
    """The client that needs the topics, and its address; None if the broker itself needs them."""
    client_id: str = ""
    quota: MutationQuota | None = None


class TopicToDelete(NamedTuple):
    """A topic by name or by id; the other one is None."""

    name: str | None
    topic_id: Uuid | None


class DeletedTopic(NamedTuple):
    """The result for one topic of DeleteTopics."""

    name: str | None
    topic_id: Uuid | None
    fault: Fault | None


class DeleteTopics(NamedTuple):
    """Delete topics. Response: `list[DeletedTopic]`."""

    topics: Sequence[TopicToDelete]
    quota: MutationQuota | None = None


class CreatePartitions(NamedTuple):
    """Add partitions to topics. Response: `list[tuple[str, Fault | None]]`."""

    topics: Sequence[CreatePartitionsTopic]
    validate_only: bool = False
    quota: MutationQuota | None = None


class AlterOperation(IntEnum):
    """The operation of IncrementalAlterConfigs on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one config key. `operation` is the number of an AlterOperation."""

    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """The changes of one resource's configs."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]


class IncrementalAlterConfigs(NamedTuple):
    """Change single keys.

    Response: a list of `Fault | None`, one per resource in the order of the request.
    """

    resources: Sequence[ResourceChange]
    validate_only: bool = False


class LegacyAlterConfigs(NamedTuple):
    """Replace complete configurations; each change must be a SET. Response as for IncrementalAlterConfigs."""

    resources: Sequence[ResourceChange]
    validate_only: bool = False


class AllocateProducerIds(NamedTuple):
    """Reserve the next block of producer ids. Response: `ProducerIdBlock`."""

    broker_id: int
    broker_epoch: int


class ProducerIdBlock(NamedTuple):
    """A block of producer ids, reserved for one broker: `size` ids, starting at `first`."""

    first: int
    size: int


class RegisterController(NamedTuple):
    """Register this controller. Response: None."""

    controller_id: int
    incarnation_id: Uuid
    endpoints: Sequence[EndpointImage]
    features: Mapping[str, tuple[int, int]]


class RegisterBroker(NamedTuple):
    """Register this broker. Response: its broker epoch."""

    broker_id: int
    incarnation_id: Uuid
    endpoints: Sequence[EndpointImage]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    log_dirs: Sequence[Uuid]
    previous_broker_epoch: int = -1
    """The broker epoch at the last clean shutdown. If another epoch is registered, the shutdown was unclean
    (KIP-966)."""
    is_migrating: bool = False
    kraft_version: int = 0
    """The finalized kraft.version, which metadata images do not contain."""


class BrokerHeartbeat(NamedTuple):
    """Extend the session of a broker, and change its state. Response: `BrokerHeartbeatReply`."""

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    """The last metadata offset that the broker has applied."""
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Sequence[Uuid] = ()
    """The log directories that failed. KIP-858."""
    cordoned_log_dirs: Sequence[Uuid] | None = None
    """The log directories that get no new replicas; None if they have not changed. KIP-1066."""


class BrokerHeartbeatReply(NamedTuple):
    """The state of a broker after its heartbeat."""

    is_caught_up: bool
    """Whether the broker has applied the metadata record of its own registration."""
    is_fenced: bool
    should_shut_down: bool
    """Whether the broker may stop now."""
    in_controlled_shutdown: bool = False


class PartitionAlteration(NamedTuple):
    """The ISR that a leader proposes for a partition, and the epochs on which the proposal is based."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]
    """(broker id, broker epoch) pairs; an epoch is -1 if the leader does not know it. KIP-903."""
    leader_recovery_state: int = 0


class AlterPartition(NamedTuple):
    """Change ISRs of partitions that a broker leads. Response: `list[AlteredPartition]`, in request order."""

    broker_id: int
    broker_epoch: int
    partitions: Sequence[PartitionAlteration]


class AlteredPartition(NamedTuple):
    """The state of a partition after AlterPartition. If there is an error, the state is not set."""

    topic_id: Uuid
    partition_index: int
    error: ErrorCode
    leader_id: int = 0
    leader_epoch: int = 0
    isr: Sequence[int] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AssignReplicasToDirs(NamedTuple):
    """Record the log directories of a broker's replicas, by topic id and partition.

    Response: `dict[tuple[Uuid, int], ErrorCode]`, which has only the refused partitions.
    """

    broker_id: int
    broker_epoch: int
    directories: Mapping[tuple[Uuid, int], Uuid]


class Election(IntEnum):
    """The kind of a leader election, with the protocol's numbers. ONLINE is internal, as in Kafka."""

    ONLINE = -1
    """Elects any in-sync replica. The current leader stays leader if it can."""
    PREFERRED = 0
    """Elects the preferred leader (the first replica) if it is in sync and active, otherwise as ONLINE."""
    UNCLEAN = 1
    """Elects any active replica if no in-sync replica is active. Acknowledged records may be lost."""


class FenceBroker(NamedTuple):
    """Fence a broker whose session timed out. Internal to the controller. Response: None."""

    broker_id: int
    broker_epoch: int


class RunPeriodicElection(NamedTuple):
    """Elect preferred leaders, or unclean leaders for offline partitions. Internal to the controller.

    Response: whether more partitions may need an election.
    """

    election: Election
    """PREFERRED: all partitions. UNCLEAN: partitions without a leader, if their topics allow it."""


class ElectLeaders(NamedTuple):
    """Elect leaders. Response: `list[ReplicaElectionResult]`."""

    election: Election
    topics: Sequence[tuple[str, Sequence[int]]] | None
    """(topic, partition indexes) pairs; None for all partitions."""


class AlterPartitionReassignments(NamedTuple):
    """Start or cancel partition reassignments.

    Response: a list of `Fault | None`, one per partition in order.
    """

    partitions: Sequence[tuple[str, int, Sequence[int] | None]]
    """Topic, partition and target replicas; None instead of the replicas cancels the reassignment."""
    allow_replication_factor_change: bool = True


class FeatureUpdate(NamedTuple):
    """The new level of a feature, and the directions that are allowed."""

    level: int
    upgrade_type: int


class UpgradeType(IntEnum):
    """The allowed directions of a feature update, with the protocol's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class UpdateFeatures(NamedTuple):
    """Set feature levels: either all of them or none. Response: `Fault | None`."""

    updates: Mapping[str, FeatureUpdate]
    validate_only: bool = False
    kraft_version: int = 0
    """The finalized kraft.version, which metadata images do not contain."""


class UnregisterBroker(NamedTuple):
    """Unregister a broker. Response: None."""

    broker_id: int


class AlterScramCredentials(NamedTuple):
    """Delete and upsert SCRAM credentials. Response: `dict[str, Fault | None]` by user."""

    deletions: Sequence[ScramCredentialDeletion]
    upsertions: Sequence[ScramCredentialUpsertion]


class AlterClientQuotas(NamedTuple):
    """Change quotas of clients. Response: `dict[QuotaEntity, Fault | None]`."""

    entries: Sequence[tuple[QuotaEntity, Sequence[tuple[str, float | None]]]]
    """Entities, and for each the keys with their new values. The value None removes a quota."""
    validate_only: bool = False


class CreateAcls(NamedTuple):
    """Create ACLs that do not exist yet. Response: `list[Fault | None]`."""

    acls: Sequence[Acl]


class DeleteAcls(NamedTuple):
    """Delete the ACLs that filters describe. Response: `list[list[Acl] | Fault]`, one per filter."""

    filters: Sequence[AclFilter]


class CreateToken(NamedTuple):
    """Create a delegation token. Response: `DelegationTokenRecord | Fault`."""

    requester: Principal
    owner: Principal
    renewers: Sequence[Principal]
    max_lifetime_ms: int
    """The requested lifetime. If it is not positive or too long, delegation.token.max.lifetime.ms applies."""
    now_ms: int
    """The wall clock time, as in the other token commands."""


class RenewToken(NamedTuple):
    """Renew a delegation token. Response: the token's new expiration time in ms, or a `Fault`."""

    principal: Principal
    hmac: bytes
    period_ms: int
    """The requested period. If it is not positive or too long, delegation.token.expiry.time.ms applies."""
    now_ms: int

    def __repr__(self) -> str:
        return f"RenewToken({self.principal}, [hidden], {self.period_ms}, {self.now_ms})"


class ExpireToken(NamedTuple):
    """Set a token's expiration time; a negative period deletes the token. Response as for RenewToken."""

    principal: Principal
    hmac: bytes
    period_ms: int
    now_ms: int

    def __repr__(self) -> str:
        return f"ExpireToken({self.principal}, [hidden], {self.period_ms}, {self.now_ms})"


class RemoveExpiredTokens(NamedTuple):
    """Delete expired delegation tokens. Internal to the controller. Response: None."""

    now_ms: int


Command = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | IncrementalAlterConfigs
    | LegacyAlterConfigs
    | AllocateProducerIds
    | RegisterController
    | RegisterBroker
    | BrokerHeartbeat
    | AlterPartition
    | AssignReplicasToDirs
    | FenceBroker
    | RunPeriodicElection
    | ElectLeaders
    | AlterPartitionReassignments
    | UpdateFeatures
    | UnregisterBroker
    | AlterScramCredentials
    | AlterClientQuotas
    | CreateAcls
    | DeleteAcls
    | CreateToken
    | RenewToken
    | ExpireToken
    | RemoveExpiredTokens
)


class ConfigRules(Protocol):
    """The checks of config keys that the controller needs. `BrokerConfigRules` implements this protocol."""

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        """Return why these overrides are invalid for a topic, or None if they are valid."""

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        """Return why this configuration is invalid for a group, or None if it is valid."""

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        """Return why these configs cannot be set on running brokers (KIP-226), or None if they can.

        `per_broker`: the configs are for one broker; otherwise they are for all brokers.
        """

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """Return those stored configs of a broker that have valid values and can be applied."""

    def is_list(self, resource_type: int, key: str) -> bool:
        """Return whether the key has the type LIST, which APPEND and SUBTRACT require."""

    def is_known_broker_key(self, key: str) -> bool:
        """Return whether brokers have a config key of this name."""

    def default(self, resource_type: int, key: str) -> str | None:
        """Return Kafka's default of the key, or None. The broker's own settings are ignored."""


OnDone = Callable[[R | ApiError], None]
