"""The quorum's configuration on one node, and the interface of the log that the state machine reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.raft.endpoints import quorum_addresses
from kwire.broker.raft.positions import Positions
from kwire.broker.raft.voters import ReplicaKey, VoterSet
from kwire.broker.security.settings import missing_node_rights
from kwire.host.host import PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.records.raft import Endpoint


class Terms(NamedTuple):
    """A node's identity and settings in the quorum. The times are Kafka's controller.quorum.* configs."""

    node_id: int
    directory_id: Uuid
    cluster_id: str
    servers: Sequence[PeerAddress]
    """The addresses at which to look for the leader: the bootstrap servers, or else the static voters."""
    may_vote: bool
    """Whether this node is a controller and can be a voter. If it can, its appends are synced."""
    listener: str
    """The first of controller.listener.names, to which other voters connect."""
    endpoints: Sequence[Endpoint]
    """The endpoints of this node's controller listeners."""
    auto_join: bool
    """Whether this node adds itself as a voter (controller.quorum.auto.join.enable)."""
    election_timeout_ms: int
    election_backoff_max_ms: int
    fetch_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    fetch_max_bytes: int
    snapshot_max_bytes: int
    missing_rights: str
    """The advice for operators if controllers deny the requests of this node."""

    @classmethod
    def from_config(
        cls,
        config: BrokerConfig,
        node_id: int,
        directory_id: Uuid,
        cluster_id: str,
        *,
        may_vote: bool,
        endpoints: Sequence[EndpointImage],
    ) -> Terms:
        """Return the terms of a node with this configuration and identity."""

        def number(key: str) -> int:
            return cast(int, config.value("controller.quorum." + key))

        return cls(
            node_id=node_id,
            directory_id=directory_id,
            cluster_id=cluster_id,
            servers=quorum_addresses(config).servers,
            may_vote=may_vote,
            listener=next(iter(config.controller_listener_names), ""),
            endpoints=[Endpoint(name=one.name, host=one.host, port=one.port) for one in endpoints],
            auto_join=config.value("controller.quorum.auto.join.enable") is True,
            election_timeout_ms=number("election.timeout.ms"),
            election_backoff_max_ms=number("election.backoff.max.ms"),
            fetch_timeout_ms=number("fetch.timeout.ms"),
            request_timeout_ms=number("request.timeout.ms"),
            retry_backoff_ms=number("retry.backoff.ms"),
            fetch_max_bytes=number("fetch.max.bytes"),
            snapshot_max_bytes=number("fetch.snapshot.max.bytes"),
            missing_rights=missing_node_rights(config),
        )

    @property
    def key(self) -> ReplicaKey:
        """This node's key as a voter or observer."""
        return ReplicaKey(self.node_id, self.directory_id)


class QuorumLog(Positions, Protocol):
    """The part of the log that the state machine reads. It is always up to date."""

    @property
    def high_watermark(self) -> int:
        """The end of the records that are known to be committed."""

    @property
    def awaits_sync(self) -> bool:
        """Whether the log was truncated or restarted, so that a sync must precede the next append."""

    @property
    def voters(self) -> VoterSet:
        """The latest voters in the log, committed or not; without voters in the log, the configured voters.

        Empty on an observer that does not know any voter yet.
        """

    @property
    def voters_offset(self) -> int:
        """The offset of the record with the latest voters.

        If the voters come from a snapshot, this is the offset of the last record that the snapshot covers. It
        is `voters.OF_CONFIGURATION` if they come from the configuration, or from the initial snapshot 0-0.
        """

    @property
    def may_lead(self) -> bool:
        """Whether the controller on this node could become active: it has bootstrap metadata, or records."""

    @property
    def former_voters(self) -> VoterSet:
        """The voters before the latest ones: `VoterHistory.former_voters`."""

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version in the log, committed or not: 0 or 1."""
