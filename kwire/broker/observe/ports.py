"""Protocols for the parts of a node that this package uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kwire.broker.api.security.sasl_session import SaslSessions
    from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry
    from kwire.broker.config import BrokerConfig
    from kwire.broker.metadata.image import MetadataImage
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.running_node import FatalFailure
    from kwire.broker.net.socket_server import SocketServer
    from kwire.broker.raft.metadata_log import MetadataLog
    from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
    from kwire.broker.replication.remote_replicas import LeaderPartitions
    from kwire.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
    from kwire.broker.replication.replica_manager import ReplicaManager
    from kwire.broker.storage.dirs.log_manager import LogManager
    from kwire.coordinator.groups.service import GroupCoordinatorService
    from kwire.host.clock import Clock


class Quorum(Protocol):
    """The state of the metadata quorum, as this node knows it."""

    @property
    def log(self) -> MetadataLog: ...
    @property
    def leader_id(self) -> int:
        """The node id of the active controller; -1 if it is unknown."""

    @property
    def epoch(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def leads(self) -> bool:
        """Whether this node is the active controller."""


class ObservedNode(Protocol):
    """A node with the broker role, the controller role or both."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def quorum(self) -> Quorum: ...
    @property
    def log_manager(self) -> LogManager: ...
    @property
    def sessions(self) -> SaslSessions | None:
        """The sessions of SASL listeners; None until a client has connected to a SASL listener."""

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

    @property
    def node_id(self) -> int: ...
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
    def failure(self) -> FatalFailure: ...
    @property
    def cached_file_count(self) -> int:
        """The number of files that are open, but that the disk may close for others."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers. It is empty until clients may connect."""
