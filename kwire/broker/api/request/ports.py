"""Protocols of the node, with the parts that request handlers use.

Handlers of broker APIs get the node as a `BrokerRole`, handlers of controller APIs as a `ControllerRole`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.requester import Requester
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from logging import Logger

    from kwire.broker.api.request.client_quotas import ClientQuotas
    from kwire.broker.config import BrokerConfig
    from kwire.broker.controller.port import ControllerPort
    from kwire.broker.metadata.image import MetadataImage
    from kwire.broker.raft.leading import Description
    from kwire.broker.raft.metadata_log import MetadataLog
    from kwire.broker.raft.voters import ReplicaKey
    from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
    from kwire.broker.replication.partition import Partition
    from kwire.broker.replication.remote_replicas import LeaderPartitions
    from kwire.broker.replication.replication_quota import ReplicationQuota
    from kwire.broker.security.delegation_tokens import TokenHmacs
    from kwire.broker.security.users import Users
    from kwire.broker.storage.dirs.log_manager import LogManager
    from kwire.coordinator.groups.service import GroupCoordinatorService
    from kwire.coordinator.transactions.service import TransactionCoordinatorService
    from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
    from kwire.host.host import Host, PeerAddress
    from kwire.wire.errors import ApiError, ErrorCode
    from kwire.wire.schema import Message


class Endpoint(NamedTuple):
    """The address of a broker on one of its listeners."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Features(NamedTuple):
    """The supported feature levels of this node, and the finalized levels of the cluster."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


class ControllerRequestContext(Requester, Protocol):
    """A request to the controller, from a client of its own listener or forwarded by a broker."""

    @property
    def listener(self) -> str:
        """The name of the listener that received the request."""

    def complete(self, response: Message) -> None:
        """Send the response. Call exactly one of `complete`, `refuse` and `close_connection`, once."""

    def refuse(self, error: ApiError) -> None:
        """Respond with an error for the whole request."""

    def close_connection(self) -> None:
        """Close the client's connection without a response, so that the client reconnects."""


class ForwardingManager(Protocol):
    """Forwards client requests to the active controller, which may be another node."""

    def forward(
        self,
        context: ControllerRequestContext,
        request: Message,
        locally: Callable[[ControllerRequestContext], None],
    ) -> None:
        """Forward the request of `context`. If this node is the active controller, call `locally` instead."""

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Return the API versions of the active controller by API key; empty while they are unknown."""


class ClusterView(Protocol):
    """The cluster as this node sees it."""

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
    def gate(self) -> Gate:
        """The authorization of requests."""

    @property
    def client_quotas(self) -> ClientQuotas:
        """The quotas of clients."""

    @property
    def stopping(self) -> bool:
        """Whether the node has completed its delayed requests, to shut down."""

    @property
    def controller(self) -> ControllerPort:
        """The active controller, on this node or another one."""

    @property
    def users(self) -> Users:
        """The SCRAM credentials and delegation tokens of the cluster."""

    @property
    def token_hmacs(self) -> TokenHmacs:
        """The HMACs of the delegation tokens."""

    def features(self) -> Features:
        """Return the feature levels that ApiVersions responses contain."""

    def loggers(self) -> Mapping[str, Logger]:
        """Return the loggers whose levels can be described and altered, by name. KIP-412."""


class QuorumPort(Protocol):
    """The metadata quorum and the metadata log, as a voter sees them."""

    @property
    def log(self) -> MetadataLog: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def advertised_leader_id(self) -> int:
        """The id of the quorum leader for responses; -1 if it is unknown.

        If this node was the leader, this is its id even after it has resigned, or while it is a candidate in
        a later epoch.
        """

    @property
    def epoch(self) -> int: ...
    @property
    def is_shutting_down(self) -> bool:
        """Whether this node is shutting down."""

    @property
    def leads(self) -> bool:
        """Whether this node is the active controller."""

    @property
    def kraft_version(self) -> int: ...
    @property
    def high_watermark(self) -> int:
        """The high watermark of the metadata log; -1 while a new leader does not know it."""

    def handle_request(self, request: Message, requester: ControllerRequestContext) -> None:
        """Handle Vote, Begin/EndQuorumEpoch or a voter change. Complete `requester` now or later."""

    def when_synced(self, callback: Callable[[], None]) -> bool:
        """Return whether all votes and epochs are synced to disk. If not, call `callback` after the sync."""

    def describe(self) -> Description | None:
        """Return the state of all voters and observers; None if this node is not the leader."""

    def leader_endpoint(self, listener: str) -> PeerAddress | None:
        """Return the leader's address on a listener; None while it is unknown."""

    def is_voter(self, key: ReplicaKey) -> bool: ...
    def record_fetch(self, key: ReplicaKey, offset: int) -> None:
        """Record a Fetch, which shows that the replica has all records before `offset`."""

    def heard_from(self, replica_id: int) -> None:
        """Record that a replica runs: it has sent a Fetch while this node is not the leader."""

    def record_snapshot_fetch(self, key: ReplicaKey) -> None:
        """Record that the replica was sent a part of a snapshot."""

    def wait(self, waiter: Callable[[], None], *, for_written: bool = False) -> None:
        """Call `waiter` one time, when more records are committed or the leader changes.

        With `for_written`, already call it when more records are written.
        """

    def cancel_wait(self, waiter: Callable[[], None]) -> None:
        """Cancel a `wait` whose `waiter` was not called yet."""


class ControllerRole(ClusterView, Protocol):
    """A node as the handlers of controller APIs see it."""

    @property
    def quorum(self) -> QuorumPort: ...
    @property
    def own_controller(self) -> ControllerPort:
        """The controller on this node. Its commands fail with NOT_CONTROLLER unless it is active."""


class BrokerPartitions(Protocol):
    """The partitions of a broker, and the metadata of all other partitions."""

    @property
    def topic_stats(self) -> BrokerTopicStats:
        """The counters of bytes and requests per topic."""

    @property
    def leader_partitions(self) -> LeaderPartitions:
        """The state that all partitions share that this broker leads."""

    @property
    def leader_quota(self) -> ReplicationQuota:
        """The leader replication throttle, in bytes per second for followers outside of the ISR."""

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return this broker's replica of the partition; None if the broker has no replica."""

    def partition_exists(self, topic: str, index: int) -> bool:
        """Return whether the cluster has the partition on any broker."""

    def missing_partition_error(self, topic: str, index: int) -> ApiError:
        """Return the error that `led_partition` raises for a partition without a replica on this broker."""

    def led_partition(self, topic: str, index: int) -> Partition:
        """Return a partition that is online and that this broker leads.

        Raises ApiError KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION.
        """

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        """Return the leader's id and leader epoch in the metadata; (-1, -1) if the partition is unknown."""

    def write_marker(
        self,
        partition: tuple[str, int],
        txn_marker: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write a marker to a partition that this broker leads. `done` may be called within this call."""

    def add_or_verify_partition(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: tuple[str, int],
        *,
        adds: bool,
        callback: Callable[[ErrorCode], None],
    ) -> None:
        """Verify that a partition is part of a transaction; with `adds`, add it if necessary. KIP-890."""


class LogDirMover(Protocol):
    """Moves replicas between the broker's log directories."""

    def move(self, topic: str, index: int, path: str) -> None:
        """Start to move a replica to the log directory `path`. Raises ApiError.

        If this broker has no replica of the partition, remember the directory for a later replica.
        """


class ProducerIdManager(Protocol):
    """The producer ids in the blocks that the controller has allocated to this broker."""

    def next(self) -> int:
        """Return an unused id. Raises ApiError COORDINATOR_LOAD_IN_PROGRESS until a block is available."""


class BrokerRole(ClusterView, BrokerPartitions, Protocol):
    """A node as the handlers of broker APIs see it."""

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

    delayed_delete_records: int
    """The number of DeleteRecords requests that wait for followers."""

    @property
    def has_telemetry_receiver(self) -> bool:
        """Whether this node exports pushed client metrics, for which it needs an HTTP port."""

    @property
    def has_client_metrics_subscriptions(self) -> bool:
        """Whether there is a valid client metrics subscription."""

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Return the endpoints of the brokers on a listener. Brokers without that listener are omitted."""


class NodeRole(BrokerRole, ControllerRole, Protocol):
    """A node with all APIs. Its process.roles may be broker, controller or both."""

    @property
    def forwarding(self) -> ForwardingManager | None:
        """The forwarding of requests; None if no other node can be the active controller."""
