"""The commands of the controller, and their results.

A command is data. The controller turns a command and an image into a `ControllerResult`: the records to
append, and the response that is sent once they are committed. The error of one item of a request is in the
response. An error of the complete request is raised as ApiError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar

from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import StoredRecord
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
    """The records and the response of a command. Neither has any effect before the records are committed."""

    records: Sequence[StoredRecord]
    response: R
    atomic: bool = True
    """Whether the records must be written in one batch, so that all or none of them survive a failure."""


class Fault(NamedTuple):
    """The error of one item of a request."""

    code: ErrorCode
    message: str | None = None


MAX_RECORDS_PER_REQUEST: Final = 10_000
"""Kafka's limit on the records of one request."""

TOO_MANY_RECORDS: Final = Fault(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)


class CreateTopics(NamedTuple):
    """Create topics. Response: `list[CreatableTopicResult]`."""

    topics: Sequence[CreatableTopic]
    validate_only: bool = False


class TopicToDelete(NamedTuple):
    """A topic by name or by id; the other is None."""

    name: str | None
    topic_id: Uuid | None


class DeletedTopic(NamedTuple):
    """The outcome for one topic of DeleteTopics."""

    name: str | None
    topic_id: Uuid | None
    fault: Fault | None


class DeleteTopics(NamedTuple):
    """Delete topics. Response: `list[DeletedTopic]`."""

    topics: Sequence[TopicToDelete]


class CreatePartitions(NamedTuple):
    """Add partitions to topics. Response: `list[tuple[str, Fault | None]]`."""

    topics: Sequence[CreatePartitionsTopic]
    validate_only: bool = False


class AlterOperation(IntEnum):
    """The operation that IncrementalAlterConfigs applies to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one config key."""

    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """The changes of one resource's configs."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]


class IncrementalAlterConfigs(NamedTuple):
    """Change single keys. Response: one `Fault | None` per resource, in the order of the request."""

    resources: Sequence[ResourceChange]
    validate_only: bool = False


class LegacyAlterConfigs(NamedTuple):
    """Replace complete configurations; every change is a SET. Response: as for IncrementalAlterConfigs."""

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
    """Register this broker, fenced. Response: its broker epoch."""

    broker_id: int
    incarnation_id: Uuid
    endpoints: Sequence[EndpointImage]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    log_dirs: Sequence[Uuid]
    previous_broker_epoch: int = -1
    """The epoch of the last clean shutdown. Any other registered epoch means an unclean one (KIP-966)."""
    is_migrating: bool = False
    kraft_version: int = 0
    """The finalized kraft.version, which images do not contain."""


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
    """The log directories that get no new replicas; None means unchanged. KIP-1066."""


class BrokerHeartbeatReply(NamedTuple):
    """The state of a broker after its heartbeat."""

    is_caught_up: bool
    """Whether the broker has applied its own registration."""
    is_fenced: bool
    should_shut_down: bool
    """Whether the broker may stop now."""
    in_controlled_shutdown: bool = False


class PartitionAlteration(NamedTuple):
    """The ISR that a leader requests for a partition, and the epochs that the leader knows."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]
    """(broker id, broker epoch); the epoch is -1 if the leader does not know it. KIP-903."""
    leader_recovery_state: int = 0


class AlterPartition(NamedTuple):
    """Change ISRs, as a leader requests. Response: `list[AlteredPartition]`, in the order of the request."""

    broker_id: int
    broker_epoch: int
    partitions: Sequence[PartitionAlteration]


class AlteredPartition(NamedTuple):
    """The state of a partition after AlterPartition; with an error, only the error."""

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

    Response: `dict[tuple[Uuid, int], ErrorCode]`, with the refused partitions only.
    """

    broker_id: int
    broker_epoch: int
    directories: Mapping[tuple[Uuid, int], Uuid]


class Election(IntEnum):
    """The kind of a leader election. The numbers are the protocol's; ONLINE is internal, as in Kafka."""

    ONLINE = -1
    """Any in-sync replica; the current leader keeps the partition if it can."""
    PREFERRED = 0
    """The preferred leader, which is the first replica, if it is in sync."""
    UNCLEAN = 1
    """Any active replica if none in sync is active. Acknowledged records may be lost."""


class FenceBroker(NamedTuple):
    """Fence a broker whose session timed out. Internal to the controller. Response: None."""

    broker_id: int
    broker_epoch: int


class RunPeriodicElection(NamedTuple):
    """Elect preferred leaders, or unclean leaders for offline partitions. Internal to the controller.

    Response: whether there may be more partitions to elect.
    """

    election: Election
    """PREFERRED for all partitions; UNCLEAN for partitions without a leader whose topic allows it."""


class ElectLeaders(NamedTuple):
    """Elect leaders; `topics` None means all partitions. Response: `list[ReplicaElectionResult]`."""

    election: Election
    topics: Sequence[tuple[str, Sequence[int]]] | None


class AlterPartitionReassignments(NamedTuple):
    """Start or cancel partition reassignments. Response: one `Fault | None` per partition, in order."""

    partitions: Sequence[tuple[str, int, Sequence[int] | None]]
    """Topic, partition, and the target replicas; None cancels the reassignment."""
    allow_replication_factor_change: bool = True


class FeatureUpdate(NamedTuple):
    """The new level of a feature, and the allowed direction."""

    level: int
    upgrade_type: int


class UpgradeType(IntEnum):
    """The direction of a feature update. The numbers are the protocol's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class UpdateFeatures(NamedTuple):
    """Set feature levels, all or none of them. Response: `Fault | None`."""

    updates: Mapping[str, FeatureUpdate]
    validate_only: bool = False
    kraft_version: int = 0
    """The finalized kraft.version, which images do not contain."""


class UnregisterBroker(NamedTuple):
    """Unregister a broker. Response: None."""

    broker_id: int


class AlterScramCredentials(NamedTuple):
    """Delete and upsert SCRAM credentials. Response: `dict[str, Fault | None]`, by user."""

    deletions: Sequence[ScramCredentialDeletion]
    upsertions: Sequence[ScramCredentialUpsertion]


class CreateToken(NamedTuple):
    """Create a delegation token. Response: `DelegationTokenRecord | Fault`."""

    requester: Principal
    owner: Principal
    renewers: Sequence[Principal]
    max_lifetime_ms: int
    """Limited by delegation.token.max.lifetime.ms, which also applies if this is not positive."""
    now_ms: int
    """Wall clock time, as in the other token commands."""


class RenewToken(NamedTuple):
    """Renew a delegation token. Response: its new expiration time in ms, or a `Fault`."""

    principal: Principal
    hmac: bytes
    period_ms: int
    """Limited by delegation.token.expiry.time.ms, which also applies if this is not positive."""
    now_ms: int

    def __repr__(self) -> str:
        return f"RenewToken({self.principal}, [hidden], {self.period_ms}, {self.now_ms})"


class ExpireToken(NamedTuple):
    """Set a token's expiration time; a negative period deletes the token. Response: as for RenewToken."""

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
    | CreateToken
    | RenewToken
    | ExpireToken
    | RemoveExpiredTokens
)


class ConfigRules(Protocol):
    """The checks of config keys that the controller needs. `BrokerConfigRules` implements them."""

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        """Return why these overrides are invalid for a topic, or None."""

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        """Return why this configuration is invalid for a group, or None."""

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        """Return why these configs cannot be set on a running broker, or on all brokers, or None."""

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """Return the stored configs of a broker that can be applied."""

    def is_list(self, resource_type: int, key: str) -> bool:
        """Return whether the key's type is LIST, so that APPEND and SUBTRACT apply."""

    def is_known_broker_key(self, key: str) -> bool:
        """Return whether brokers have a key of this name."""

    def default(self, resource_type: int, key: str) -> str | None:
        """Return Kafka's default of the key as text, regardless of the broker's settings."""


OnDone = Callable[[R | ApiError], None]
