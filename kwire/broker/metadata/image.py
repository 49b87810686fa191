"""The cluster's metadata as it stands at one offset of the metadata log.

An image never changes. Applying records gives a new one (`broker.metadata.delta`), which shares with the
old one every part that the records did not touch. A part that they did touch is copied once for a whole batch
of records, as a plain dict: for ten thousand topics that is some tenths of a millisecond, below the sync that
the same batch waits for. Persistent maps would cost more on every read and save nothing here.
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

# How far a leader is that was not in sync when it was elected (KIP-704).
RECOVERED: Final = 0
RECOVERING: Final = 1

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32

METADATA_VERSION: Final = "metadata.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"

# Directory ids with a meaning of their own (KIP-858).
DIRECTORY_MIGRATING: Final = Uuid(bytes(16))
DIRECTORY_UNASSIGNED: Final = Uuid(bytes(15) + b"\x01")
DIRECTORY_LOST: Final = Uuid(bytes(15) + b"\x02")

ConfigResource = tuple[int, str]
"""(resource type, resource name); a broker resource without a name is the cluster-wide default."""
QuotaEntity = tuple[tuple[str, str | None], ...]
"""((entity type, entity name), ...) in the order of the types; a name of None is that type's default."""

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class PartitionImage(NamedTuple):
    """One partition: who has it, who leads it, and since which epoch."""

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
        """The log directory that holds this broker's replica; None where it has none."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return None


class TopicImage(NamedTuple):
    """A topic and its partitions, in the order of their numbers and without gaps."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]


class EndpointImage(NamedTuple):
    """Where one listener of a node is reached."""

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
        """Whether replicas on this broker may join in-sync sets and lead."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_directory(self, directory: Uuid) -> bool:
        """Whether a replica said to be in `directory` can be there; not knowing is no reason to doubt it."""
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
    """Everything the metadata log says up to `offset`, which was written in `epoch`. Not to be changed."""

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
    """For names with '.' or '_': the name with '.' turned into '_' gives the topics that it stands for."""
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
        """The image of an empty log."""
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
        """The topic of this name, if there is one."""
        return self.topics.get(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic with this id, if there is one."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """One partition, None where the topic or the partition does not exist."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What is set for a resource by records; empty where nothing is."""
        return self.configs.get((resource_type, name), NO_CONFIGS)

    @property
    def metadata_version(self) -> int:
        """The level of metadata.version; 0 before the log says any."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def elr_enabled(self) -> bool:
        """Whether replicas that leave the in-sync set stay eligible to lead (KIP-966)."""
        return self.features.get(ELR_VERSION, 0) >= 1

    def alive_brokers(self) -> list[BrokerImage]:
        """The brokers that are not fenced, by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]


def has_collision_chars(name: str) -> bool:
    """Whether '.' and '_' could make this topic's metric names equal to another topic's."""
    return "." in name or "_" in name


def unify_collision_chars(name: str) -> str:
    """The form under which colliding names are equal."""
    return name.replace(".", "_")
