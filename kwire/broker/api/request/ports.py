"""What handlers need of the node that they are part of: as a broker, and as a controller.

Handlers of a broker are given the node in a `BrokerRole`, those of a controller in a `ControllerRole`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from logging import Logger

    from kwire.broker.config import BrokerConfig
    from kwire.broker.controller.port import ControllerPort
    from kwire.broker.metadata.image import MetadataImage
    from kwire.broker.raft.leading import Description
    from kwire.broker.raft.metadata_log import MetadataLog
    from kwire.broker.raft.voters import ReplicaKey
    from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
    from kwire.broker.replication.partition import Partition
    from kwire.broker.replication.replication_quota import ReplicationQuota
    from kwire.broker.security.delegation_tokens import TokenHmacs
    from kwire.broker.security.principal import Principal
    from kwire.broker.security.users import Users
    from kwire.broker.storage.dirs.log_manager import LogManager
    from kwire.coordinator.groups.service import GroupCoordinatorService
    from kwire.coordinator.transactions.service import TransactionCoordinatorService
    from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
    from kwire.host.host import Host, PeerAddress
    from kwire.wire.errors import ApiError, ErrorCode
    from kwire.wire.registry import RequestHeader
    from kwire.wire.schema import Message


class Endpoint(NamedTuple):
    """Where a broker can be reached through one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Features(NamedTuple):
    """Feature levels: what this node supports, and what its cluster has finalized."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


class ControllerRequestContext(Protocol):
    """A request as the controller sees it: its own client's, or one that a broker forwards."""

    @property
    def header(self) -> RequestHeader:
        """Who asks what; the version is that of its answer, too."""

    @property
    def api_version(self) -> int:
        """The version of the request, and of its answer."""

    @property
    def principal(self) -> Principal:
        """Who asks."""

    @property
    def peer_host(self) -> str:
        """The address that the client has asked from."""

    @property
    def listener(self) -> str:
        """The name of the listener that it came in by."""

    def complete(self, response: Message) -> None:
        """Answer. To be called exactly once, unless it is refused."""

    def refuse(self, error: ApiError) -> None:
        """Answer with an error of the whole request."""

    def close_connection(self) -> None:
        """Give no answer, and end the client's connection: it is to begin anew."""


class ForwardingManager(Protocol):
    """The way of clients' requests to the active controller, where that may be another node."""

    def forward(
        self,
        asked: ControllerRequestContext,
        request: Message,
        locally: Callable[[ControllerRequestContext], None],
    ) -> None:
        """Have the active controller answer it; `locally` does, while that is this node."""

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Which APIs the active controller serves, by key; nothing while that is not known."""


class ClusterView(Protocol):
    """The cluster as this node knows it."""

    @property
    def node_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def host(self) -> Host: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def controller(self) -> ControllerPort:
        """The active controller, wherever it is."""

    @property
    def users(self) -> Users:
        """Whose passwords and tokens are known."""

    @property
    def token_hmacs(self) -> TokenHmacs:
        """What the tokens that there are are shown by."""

    def features(self) -> Features:
        """Feature levels for ApiVersions."""

    def loggers(self) -> Mapping[str, Logger]:
        """The loggers whose levels are told and set, by name. KIP-412."""


class QuorumPort(Protocol):
    """The quorum of the metadata log, as one of its voters knows it, and the log of this one."""

    @property
    def log(self) -> MetadataLog: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def told_leader_id(self) -> int:
        """Who leads the epoch as others are told: also while this node wants another, or has resigned."""

    @property
    def epoch(self) -> int: ...
    @property
    def is_ending(self) -> bool:
        """Whether this node is about to stop."""

    @property
    def leads(self) -> bool:
        """Whether this node is the active controller."""

    @property
    def kraft_version(self) -> int: ...
    @property
    def high_watermark(self) -> int:
        """Up to where all is committed; -1 while a new leader does not know it."""

    def asked(self, request: Message, asker: ControllerRequestContext) -> None:
        """Have `asker` answered, now or later, on a vote, an epoch, or a change of the voters."""

    def when_kept(self, answer: Callable[[], None]) -> bool:
        """Whether all is durable that this node has promised; else `answer` is called when it is."""

    def describe(self) -> Description | None:
        """How everybody is doing; None where this node does not lead."""

    def leader_endpoint(self, listener: str) -> PeerAddress | None:
        """Where the leader is reached on a listener; None while that is not known."""

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether another node votes."""

    def is_fetched(self, key: ReplicaKey, offset: int) -> None:
        """Another node has everything before `offset`, and goes on from there."""

    def is_loaded(self, key: ReplicaKey) -> None:
        """Another node was sent some of a snapshot."""

    def wait(self, waiter: Callable[[], None], *, for_written: bool = False) -> None:
        """Call `waiter` once, when more is committed, or written, or the lead ends."""

    def wait_no_more(self, waiter: Callable[[], None]) -> None:
        """Do not call it, if it was not called yet."""


class ControllerRole(ClusterView, Protocol):
    """A node as its handlers of the controller's APIs see it."""

    @property
    def quorum(self) -> QuorumPort: ...
    @property
    def own_controller(self) -> ControllerPort:
        """The controller of this node, which refuses what it is asked while it is not the active one."""


class BrokerPartitions(Protocol):
    """The partitions of a broker, and what it knows of others."""

    @property
    def traffic(self) -> BrokerTopicStats:
        """What has come in and gone out, a topic."""

    @property
    def leader_throttle(self) -> ReplicationQuota:
        """How fast followers may be given what they have not got."""

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition, if this broker holds it."""

    def partition_exists(self, topic: str, index: int) -> bool:
        """Whether the cluster has such a partition, be it here or elsewhere."""

    def absence(self, topic: str, index: int) -> ApiError:
        """Why `partition` has none, as `led_partition` tells it."""

    def led_partition(self, topic: str, index: int) -> Partition:
        """The partition, led by this broker and online.

        ApiError: KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION.
        """

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        """The leader's id and epoch as the metadata has them; -1, -1 where there is none."""

    def write_marker(
        self,
        partition: tuple[str, int],
        ending: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write a transaction's end into a partition that it touched."""

    def ask_coordinator(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: tuple[str, int],
        *,
        adds: bool,
        told: Callable[[ErrorCode], None],
    ) -> None:
        """Whether the partition is part of the transaction; with `adds` it becomes part of it."""


class LogDirMover(Protocol):
    """Where a broker's partitions lie."""

    def move(self, topic: str, index: int, path: str) -> None:
        """Begin to move a partition, or remember where it is to be made. ApiError."""


class ProducerIdManager(Protocol):
    """Producer ids that the controller has given to this broker."""

    def next(self) -> int:
        """One that nobody has. ApiError where there is none yet."""


class BrokerRole(ClusterView, BrokerPartitions, Protocol):
    """A node as its handlers of the brokers' APIs see it."""

    @property
    def groups(self) -> GroupCoordinatorService: ...
    @property
    def transactions(self) -> TransactionCoordinatorService: ...
    @property
    def producer_ids(self) -> ProducerIdManager: ...
    @property
    def log_manager(self) -> LogManager: ...
    @property
    def log_dirs(self) -> LogDirMover: ...
    @property
    def has_telemetry_receiver(self) -> bool:
        """Whether anybody can be shown what clients push of their metrics."""

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Where these brokers are reached through a listener; those that are not are left out."""


class CombinedRole(BrokerRole, ControllerRole, Protocol):
    """A node of both roles."""

    @property
    def forwarding(self) -> ForwardingManager | None:
        """None where no other node can be the active controller."""
