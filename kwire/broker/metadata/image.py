"""Metadata images: the cluster metadata at one offset of the metadata log.

An image never changes. A `MetadataDelta` makes the next image, which shares every unchanged part with the old
image. A changed part is a dict, which is copied once per batch of records. With 10,000 topics the copy takes
less than a millisecond, which is less than the sync of the same batch. Persistent maps would make every read
slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)

NO_LEADER: Final = -1

# Whether the leader has recovered from an unclean election (KIP-704).
RECOVERED: Final = 0
RECOVERING: Final = 1

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32

METADATA_VERSION: Final = "metadata.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"

# Reserved directory ids (KIP-858).
DIRECTORY_MIGRATING: Final = Uuid(bytes(16))
DIRECTORY_UNASSIGNED: Final = Uuid(bytes(15) + b"\x01")
DIRECTORY_LOST: Final = Uuid(bytes(15) + b"\x02")

ConfigResource = tuple[int, str]
"""(resource type, resource name). For brokers, the empty name is the resource of the cluster-wide
defaults."""
QuotaEntity = tuple[tuple[str, str | None], ...]
"""((entity type, entity name), ...), sorted by type. The name None is the default entity of the type."""

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class PartitionImage(NamedTuple):
    """One partition: its replicas, ISR, leader and epochs."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[Uuid, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> Uuid | None:
        """Return the log directory of this broker's replica, or None if there is no replica or directory."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return None


class TopicImage(NamedTuple):
    """A topic and its partitions, by partition index."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]


class EndpointImage(NamedTuple):
    """The address of one listener of a node."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerImage(NamedTuple):
    """A registered broker."""

    broker_id: int
    broker_epoch: int
    incarnation_id: Uuid
    endpoints: Mapping[str, EndpointImage]
    features: Mapping[str, tuple[int, int]]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating: bool = False
    log_dirs: tuple[Uuid, ...] = ()
    cordoned_log_dirs: tuple[Uuid, ...] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the replicas on this broker may join ISRs and become leader."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_directory(self, directory: Uuid) -> bool:
        """Return whether a replica in `directory` can be online: it is registered, unassigned or migrating.

        If the broker registered no directories, all count as online, except DIRECTORY_LOST.
        """
        if directory == DIRECTORY_LOST:
            return False
        return not self.log_dirs or directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING, *self.log_dirs)


class ControllerImage(NamedTuple):
    """A registered controller."""

    controller_id: int
    incarnation_id: Uuid
    endpoints: Mapping[str, EndpointImage]
    features: Mapping[str, tuple[int, int]]
    zk_migration_ready: bool = False


class MetadataImage:
    """The immutable content of the metadata log up to `offset`, in leader epoch `epoch`."""

    __slots__ = (
        "acls",
        "brokers",
        "colliding_names",
        "configs",
        "controllers",
        "delegation_tokens",
        "epoch",
        "features",
        "next_producer_id",
        "offset",
        "quotas",
        "scram_credentials",
        "topics",
        "topics_by_id",
        "zk_migration_state",
    )

    offset: int
    epoch: int
    topics: Mapping[str, TopicImage]
    topics_by_id: Mapping[Uuid, TopicImage]
    colliding_names: Mapping[str, tuple[str, ...]]
    """Topics with '.' or '_' in their names. The key is the name with each '.' replaced by '_'."""
    configs: Mapping[ConfigResource, Mapping[str, str]]
    features: Mapping[str, int]
    brokers: Mapping[int, BrokerImage]
    controllers: Mapping[int, ControllerImage]
    next_producer_id: int
    scram_credentials: Mapping[tuple[int, str], UserScramCredentialRecord]
    quotas: Mapping[QuotaEntity, Mapping[str, float]]
    acls: Mapping[Uuid, AccessControlEntryRecord]
    delegation_tokens: Mapping[str, DelegationTokenRecord]
    zk_migration_state: int

    def __init__(self) -> None:
        """Create the image of an empty log."""
        self.offset = -1
        self.epoch = -1
        self.topics = {}
        self.topics_by_id = {}
        self.colliding_names = {}
        self.configs = {}
        self.features = {}
        self.brokers = {}
        self.controllers = {}
        self.next_producer_id = 0
        self.scram_credentials = {}
        self.quotas = {}
        self.acls = {}
        self.delegation_tokens = {}
        self.zk_migration_state = 0

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with this id, or None."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """Return one partition, or None if the topic or the partition does not exist."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the configs that the metadata log has for a resource, without defaults."""
        return self.configs.get((resource_type, name), NO_CONFIGS)

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version; 0 if the log has none yet."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas are enabled (KIP-966)."""
        return self.features.get(ELR_VERSION, 0) >= 1

    def alive_brokers(self) -> list[BrokerImage]:
        """Return the brokers that are not fenced, sorted by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]


def has_collision_chars(name: str) -> bool:
    """Return whether the topic's metric names could collide with those of another topic."""
    return "." in name or "_" in name


def unify_collision_chars(name: str) -> str:
    """Return the name with each '.' replaced by '_'. Colliding names are equal in this form."""
    return name.replace(".", "_")
