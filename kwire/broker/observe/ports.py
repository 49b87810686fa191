"""Protocols for the parts of a node that this package uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kwire.broker.api.records.fetch_sessions import FetchSessionCache
    from kwire.broker.api.request.gate import Gate
    from kwire.broker.api.security.sasl_session import SaslSessions
    from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry
    from kwire.broker.config import BrokerConfig
    from kwire.broker.controller.runtime import ControllerRuntime
    from kwire.broker.metadata.image import MetadataImage
    from kwire.broker.metadata.publisher import MetadataPublisher
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.peer_links import PeerLinks
    from kwire.broker.net.running_node import FatalFailure
    from kwire.broker.net.socket_server import SocketServer
    from kwire.broker.raft.quorum import Quorum
    from kwire.broker.raft.snapshotter import Snapshotter
    from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
    from kwire.broker.replication.remote_replicas import LeaderPartitions
    from kwire.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
    from kwire.broker.replication.replica_manager import ReplicaManager
    from kwire.broker.security.users import Users
    from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
    from kwire.broker.storage.dirs.log_manager import LogManager
    from kwire.coordinator.groups.service import GroupCoordinatorService
    from kwire.coordinator.transactions.service import TransactionCoordinatorService
    from kwire.host.clock import Clock
    from kwire.host.host import Host


class ObservedMetadata(Protocol):
    """The metadata of a node, and its controller."""

    @property
    def publisher(self) -> MetadataPublisher: ...
    @property
    def runtime(self) -> ControllerRuntime | None:
        """The controller on this node; None if the node does not have the controller role."""

    @property
    def snapshotter(self) -> Snapshotter | None: ...


class Verifications(Protocol):
    """Counts and durations of the verifications of transactional appends (KIP-890)."""

    @property
    def count(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def recent_ms(self) -> Iterable[int]:
        """The durations of the last verifications in ms."""


class ObservedNode(Protocol):
    """A node with the broker role, the controller role or both."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def host(self) -> Host: ...
    @property
    def metadata(self) -> ObservedMetadata: ...
    @property
    def quorum(self) -> Quorum: ...
    @property
    def log_manager(self) -> LogManager: ...
    @property
    def sessions(self) -> SaslSessions | None:
        """The sessions of SASL listeners; None until a client has connected to a SASL listener."""

    @property
    def gate(self) -> Gate: ...
    @property
    def users(self) -> Users:
        """The SCRAM credentials of the cluster."""

    @property
    def stopping(self) -> bool: ...


class BrokerLifecycle(Protocol):
    """The life cycle of a broker in its cluster."""

    @property
    def kafka_state(self) -> int:
        """The broker's state, as the number in Kafka's BrokerState."""

    @property
    def not_ready_reason(self) -> str:
        """The reason why clients should not use the broker. It is empty if they may."""


class ObservedBroker(ObservedNode, Protocol):
    """A node with the broker role."""

    has_telemetry_receiver: bool
    """Whether this node exports pushed client metrics. The HTTP port sets this attribute."""

    delayed_delete_records: int
    """The number of DeleteRecords requests that wait for followers."""

    @property
    def node_id(self) -> int: ...
    @property
    def cleaner(self) -> LogCleaner: ...
    @property
    def fetch_sessions(self) -> FetchSessionCache: ...
    @property
    def transactions(self) -> TransactionCoordinatorService: ...
    @property
    def verification_metrics(self) -> Verifications: ...
    @property
    def lifecycle(self) -> BrokerLifecycle: ...
    @property
    def replica_manager(self) -> ReplicaManager: ...
    @property
    def leader_partitions(self) -> LeaderPartitions: ...
    @property
    def fetcher_manager(self) -> ReplicaFetcherManager: ...
    @property
    def topic_stats(self) -> BrokerTopicStats: ...
    @property
    def groups(self) -> GroupCoordinatorService: ...
    @property
    def telemetry(self) -> ClientTelemetry: ...


class RunningNode(Protocol):
    """A running node in this process (see `broker.net.running_node`)."""

    @property
    def node(self) -> ObservedNode: ...
    @property
    def broker(self) -> ObservedBroker | None:
        """The node if it has the broker role, otherwise None."""

    @property
    def loop(self) -> Loop: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def server(self) -> SocketServer: ...
    @property
    def peers(self) -> PeerLinks: ...
    @property
    def failure(self) -> FatalFailure: ...
    @property
    def cached_file_count(self) -> int:
        """The number of files that are open, but that the disk may close for others."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers. It is empty until clients may connect."""
