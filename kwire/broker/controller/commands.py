"""What can be asked of the controller, and what it answers.

A command is data. The controller turns a command and an image into a `ControllerResult`: the records to
append, and the response to release once they are committed. If one item of a request is refused, the response
says so; if the complete command is refused, the controller raises ApiError.
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
    """The outcome of a command: nothing happens before its records are committed."""

    records: Sequence[StoredRecord]
    response: R
    atomic: bool = True
    """Whether the records must be in one batch, so that all or none of them survive."""


class Fault(NamedTuple):
    """Why one item of a request was refused."""

    code: ErrorCode
    message: str | None = None


MAX_RECORDS_PER_REQUEST: Final = 10_000
"""Kafka's bound on what one request may change."""

TOO_MANY_RECORDS: Final = Fault(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)


class CreateTopics(NamedTuple):
    """Create topics. Replies with `list[CreatableTopicResult]`."""

    topics: Sequence[CreatableTopic]
    validate_only: bool = False


class TopicToDelete(NamedTuple):
    """A topic by name or by id; the other one is None."""

    name: str | None
    topic_id: Uuid | None


class DeletedTopic(NamedTuple):
    """What became of a topic that was to be deleted."""

    name: str | None
    topic_id: Uuid | None
    fault: Fault | None


class DeleteTopics(NamedTuple):
    """Delete topics. Replies with `list[DeletedTopic]`."""

    topics: Sequence[TopicToDelete]


class CreatePartitions(NamedTuple):
    """Add partitions to topics. Replies with `list[tuple[str, Fault | None]]`."""

    topics: Sequence[CreatePartitionsTopic]
    validate_only: bool = False


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One key of one resource."""

    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """What is to become of one resource's configuration."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]


class IncrementalAlterConfigs(NamedTuple):
    """Change single keys. Replies with one `Fault | None` a resource, in the order asked."""

    resources: Sequence[ResourceChange]
    validate_only: bool = False


class LegacyAlterConfigs(NamedTuple):
    """Replace whole configurations: the changes are all SET. Replies as IncrementalAlterConfigs does."""

    resources: Sequence[ResourceChange]
    validate_only: bool = False


class AllocateProducerIds(NamedTuple):
    """Reserve the next block of producer ids. Replies with `ProducerIdBlock`."""

    broker_id: int
    broker_epoch: int


class ProducerIdBlock(NamedTuple):
    """Producer ids from `first` on, `size` of them, that nobody else will get."""

    first: int
    size: int


class RegisterController(NamedTuple):
    """Make this controller known. Replies with None."""

    controller_id: int
    incarnation_id: Uuid
    endpoints: Sequence[EndpointImage]
    features: Mapping[str, tuple[int, int]]


class RegisterBroker(NamedTuple):
    """Make this broker known, fenced. Replies with its broker epoch."""

    broker_id: int
    incarnation_id: Uuid
    endpoints: Sequence[EndpointImage]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    log_dirs: Sequence[Uuid]
    previous_broker_epoch: int = -1
    """The epoch with which this broker last ended cleanly; any other means that it did not (KIP-966)."""
    is_migrating: bool = False
    kraft_version: int = 0
    """The version of the quorum's protocol, which is no part of an image."""


class BrokerHeartbeat(NamedTuple):
    """A broker lives, and says what it wants to be. Replies with `BrokerHeartbeatReply`."""

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    """How far the broker has followed the metadata."""
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Sequence[Uuid] = ()
    """The directories that have failed. KIP-858."""
    cordoned_log_dirs: Sequence[Uuid] | None = None
    """The directories that take nothing new; None leaves them as they are. KIP-1066."""


class BrokerHeartbeatReply(NamedTuple):
    """What the controller has decided about a broker."""

    is_caught_up: bool
    """Whether the broker's metadata has its registration."""
    is_fenced: bool
    should_shut_down: bool
    """Whether nothing counts on the broker any more, so that it may end."""
    in_controlled_shutdown: bool = False


class PartitionAlteration(NamedTuple):
    """The in-sync set that a leader wants for a partition, and what it believes the partition to be."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]
    """(id, broker epoch); -1 where the leader cannot tell the epoch. KIP-903."""
    leader_recovery_state: int = 0


class AlterPartition(NamedTuple):
    """A leader alters in-sync sets. Replies with `list[AlteredPartition]`, in the order asked."""

    broker_id: int
    broker_epoch: int
    partitions: Sequence[PartitionAlteration]


class AlteredPartition(NamedTuple):
    """What a partition is after an alteration; or, with an error, only why it was refused."""

    topic_id: Uuid
    partition_index: int
    error: ErrorCode
    leader_id: int = 0
    leader_epoch: int = 0
    isr: Sequence[int] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AssignReplicasToDirs(NamedTuple):
    """Where replicas of a broker lie, by topic id and partition.

    Replies with `dict[tuple[Uuid, int], ErrorCode]`: of those that are refused, why.
    """

    broker_id: int
    broker_epoch: int
    directories: Mapping[tuple[Uuid, int], Uuid]


class Election(IntEnum):
    """How a leader is chosen. The numbers are the protocol's; ONLINE is none of its choices."""

    ONLINE = -1
    """Whoever is in sync, the present leader first."""
    PREFERRED = 0
    """The first replica, if it is in sync."""
    UNCLEAN = 1
    """Any replica that lives, where nobody is in sync."""


class FenceBroker(NamedTuple):
    """Nobody has heard of this life of a broker any more. Of the controller itself. Replies with None."""

    broker_id: int
    broker_epoch: int


class RunPeriodicElection(NamedTuple):
    """Elect leaders that are better than the present ones, or than none. Of the controller itself.

    Replies with whether there may be more than it has elected.
    """

    election: Election
    """PREFERRED for all partitions; UNCLEAN for those without a leader whose topic allows it."""


class ElectLeaders(NamedTuple):
    """Elect leaders; `topics` None means all partitions. Replies with `list[ReplicaElectionResult]`."""

    election: Election
    topics: Sequence[tuple[str, Sequence[int]]] | None


class AlterPartitionReassignments(NamedTuple):
    """Move partitions, or stop moving them. Replies with one `Fault | None` a partition, as asked."""

    partitions: Sequence[tuple[str, int, Sequence[int] | None]]
    """Topic, partition, and the replicas that it shall have: None to stop a move."""
    allow_replication_factor_change: bool = True


class FeatureUpdate(NamedTuple):
    """The level that a feature shall have, and in which way it may come to it (`UpgradeType`)."""

    level: int
    upgrade_type: int


class UpgradeType(IntEnum):
    """Which way a feature may go. The numbers are the protocol's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class UpdateFeatures(NamedTuple):
    """Set levels of features. Replies with `Fault | None`: all of them are set, or none."""

    updates: Mapping[str, FeatureUpdate]
    validate_only: bool = False
    kraft_version: int = 0
    """The version of the quorum's protocol, which is no part of an image."""


class UnregisterBroker(NamedTuple):
    """Forget a broker. Replies with None."""

    broker_id: int


class AlterScramCredentials(NamedTuple):
    """Take users' credentials away, and give others. Replies with `dict[str, Fault | None]`, by user."""

    deletions: Sequence[ScramCredentialDeletion]
    upsertions: Sequence[ScramCredentialUpsertion]


class CreateToken(NamedTuple):
    """Issue a delegation token. Replies with `DelegationTokenRecord | Fault`."""

    requester: Principal
    owner: Principal
    renewers: Sequence[Principal]
    max_lifetime_ms: int
    """As far as the cluster allows; none of one's own where it is not positive."""
    now_ms: int
    """By the wall clock, as in the other commands on tokens."""


class RenewToken(NamedTuple):
    """Let a token be good for longer. Replies with when it ends, or a `Fault`."""

    principal: Principal
    hmac: bytes
    period_ms: int
    """As far as the cluster allows; the cluster's own where it is not positive."""
    now_ms: int

    def __repr__(self) -> str:
        return f"RenewToken({self.principal}, [hidden], {self.period_ms}, {self.now_ms})"


class ExpireToken(NamedTuple):
    """Have a token end after some time, or, where that is negative, now. Replies as RenewToken does."""

    principal: Principal
    hmac: bytes
    period_ms: int
    now_ms: int

    def __repr__(self) -> str:
        return f"ExpireToken({self.principal}, [hidden], {self.period_ms}, {self.now_ms})"


class RemoveExpiredTokens(NamedTuple):
    """Forget the tokens that have run out. Of the controller itself. Replies with None."""

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
    """What the controller must know of configuration keys; `broker.config` knows it."""

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        """Why these cannot be a topic's overrides; None where they can."""

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        """Why these cannot be a group's configuration; None where they can."""

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        """Why these cannot be set on a running broker (or, not `per_broker`, on all of them)."""

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """What of a broker's stored settings can be applied at all."""

    def is_list(self, resource_type: int, key: str) -> bool:
        """Whether values can be appended to this key."""

    def is_known_broker_key(self, key: str) -> bool:
        """Whether a broker knows this key at all."""

    def default(self, resource_type: int, key: str) -> str | None:
        """The key's default as text: Kafka's own, whatever the broker's settings make of it."""


OnDone = Callable[[R | ApiError], None]
