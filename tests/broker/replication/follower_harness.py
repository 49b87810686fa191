"""Broker 1 with follower replicas; the test plays the leaders, brokers 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kwire.broker.config.load import load
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.replication.directory_moves import DirectoryMoves, OnAssigned
from kwire.broker.replication.log_dirs import DirectoryAssignments
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from kwire.broker.replication.replica_manager import ReplicaManager
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.log.log import Log
from kwire.host.host import OnResponse, PeerAddress, PeerUnreachable
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import build
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    BrokerEndpoint,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from kwire.wire.schema import Message
from tests.broker.replication.fake_cluster import FakeCluster

TOPIC_ID = Uuid(bytes(15) + b"\1")
SESSION = 77
BROKER_EPOCH = 55
NOW_MS = 1_700_000_000_000
METADATA_VERSION = 30
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Sent(NamedTuple):
    """A request to a leader."""

    to: PeerAddress
    purpose: str
    request: Any
    deadline_ms: int
    on_response: OnResponse
    max_version: int | None


def leader_batches(base_offset: int, *epochs: int, size_bytes: int = 1, **fields: Any) -> bytes:
    """Build a batch of one record per epoch, as a leader stores them."""
    return b"".join(
        bytes(
            build([(NOW_MS, None, bytes(size_bytes), [])], base_offset=offset, leader_epoch=epoch, **fields)
        )
        for offset, epoch in enumerate(epochs, base_offset)
    )


class FollowerHarness:
    """The replicas of broker 1, with leaders that the test plays."""

    def __init__(
        self,
        settings: Mapping[str, str] = NO_SETTINGS,
        *,
        directories: int = 1,
        disk: MemoryDisk | None = None,
    ) -> None:
        self.host = VirtualHost(seed=1)
        self.host.peers = self  # type: ignore[assignment]
        self.ended_backoffs: list[PeerAddress] = []
        self.ended_waits: list[tuple[PeerAddress, str]] = []
        """The address and purpose of each request that ends the wait of a Fetch."""
        self.disk = disk or MemoryDisk()
        self.image = MetadataImage()
        self.sent: list[Sent] = []
        """Requests without a response."""
        self.config = load(None, {}, {"node.id": "1", "log.index.size.max.bytes": "4096", **settings})
        self.logs = LogManager(
            self.disk,
            ["/d", "/e"][:directories],
            logger=self.host.logger("kwire.storage"),
            rng=self.host.random("directories"),
            config_for=lambda topic: self.replicas.log_config(topic),
            on_directory_failed=lambda directory, error: self.replicas.directory_failed(error),
        )
        self.fetchers = ReplicaFetcherManager(
            self.config,
            self.host,
            image=lambda: self.image,
            broker_epoch=lambda: BROKER_EPOCH,
            stage=lambda one: self.replicas.stage(one),
            on_truncated=lambda partition: self.moves.source_truncated(partition),
        )
        self.moves = DirectoryMoves(
            self.logs,
            self.host,
            assign=lambda log, directory, on_assigned: self.host.call_soon(on_assigned),
            is_cleaned=lambda log: False,
            bytes_per_second=lambda: None,
            on_moved=lambda old, new: None,
        )
        self.replicas = ReplicaManager(
            self.config,
            self.host,
            self.logs,
            image=lambda: self.image,
            coordinators={},
            assignments=self,  # type: ignore[arg-type]
            fetcher_manager=self.fetchers,
            leader_partitions=FakeCluster(self.host).leading,
            on_removed=lambda partition: None,
            on_deleted=lambda: None,
        )
        self.logs.open(self.host.now_ms())
        self.replicas.start()
        self.host.end_turn = self.replicas.end_turn
        self.write(
            FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION),
            *(
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    end_points=[
                        BrokerEndpoint(name="PLAINTEXT", host=f"b{broker_id}", port=9000 + broker_id)
                    ],
                )
                for broker_id in (2, 3)
            ),
        )

    # --- the metadata

    def assign(self, assignments: DirectoryAssignments, done: OnAssigned | None = None) -> None:
        pass

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid], done: OnAssigned) -> None:
        pass

    def write(self, *records: Any) -> None:
        """Commit metadata records and end the turn."""
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(self.image.offset + len(records), 1)
        self.replicas.apply_delta(delta)
        self.turn()

    def follow(self, partitions: int = 1, *, leader: int = 2, epoch: int = 4) -> None:
        """Create a topic whose partitions another broker leads."""
        self.write(
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *(
                PartitionRecord(
                    partition_id=index,
                    topic_id=TOPIC_ID,
                    replicas=[leader, 1],
                    isr=[leader],
                    leader=leader,
                    leader_epoch=epoch,
                )
                for index in range(partitions)
            ),
        )

    def change(self, index: int = 0, **fields: Any) -> None:
        """Change a partition."""
        self.write(PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, **fields))

    def turn(self) -> None:
        """End the turn of the loop."""
        self.replicas.end_turn()
        self.host.run_pending()

    def partition(self, index: int = 0) -> Partition:
        found = self.replicas.get("t", index)
        assert found is not None
        return found

    def log(self, index: int = 0) -> Log:
        return self.partition(index).log

    # --- the leaders

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        if isinstance(request, ApiVersionsRequest):
            self.ended_waits.append((to, purpose))
        else:
            self.sent.append(Sent(to, purpose, request, deadline_ms, on_response, max_version))

    def end_backoff(self, to: PeerAddress) -> None:
        self.ended_backoffs.append(to)

    def take(self, kind: type[Message] = FetchRequest) -> Sent:
        """Remove and return the only pending request of this kind."""
        (sent,) = [one for one in self.sent if isinstance(one.request, kind)]
        self.sent.remove(sent)
        return sent

    def respond(self, sent: Sent, answer: Message | PeerUnreachable) -> None:
        """Deliver a response."""
        self.host.call_soon(lambda: sent.on_response(answer))
        self.turn()

    def fetch(self, *partitions: PartitionData, session_id: int = SESSION, error: int = 0) -> Sent:
        """Respond to the pending fetch with these partitions."""
        sent = self.take()
        responses = (
            [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))] if partitions else []
        )
        self.respond(sent, FetchResponse(session_id=session_id, responses=responses, error_code=error))
        return sent

    def respond_empty(self) -> None:
        """Respond to the pending fetch, if any, without new records."""
        if any(isinstance(one.request, FetchRequest) for one in self.sent):
            self.fetch()

    def fail_fetch(self) -> Sent:
        """Let the pending fetch fail."""
        sent = self.take()
        self.respond(sent, PeerUnreachable("it is gone"))
        return sent

    @property
    def fetch_positions(self) -> dict[int, tuple[int, int, int]]:
        """Offset, leader epoch and last fetched epoch of each partition in the pending fetch."""
        assert len(self.sent) <= 1
        return {key: asked for sent in self.sent for key, asked in fetch_positions_of(sent).items()}


def fetch_positions_of(sent: Sent) -> dict[int, tuple[int, int, int]]:
    """Return offset, leader epoch and last fetched epoch of each partition in a fetch."""
    return {
        one.partition: (one.fetch_offset, one.current_leader_epoch, one.last_fetched_epoch)
        for topic in sent.request.topics
        for one in topic.partitions
    }


def data(
    records: bytes = b"",
    *,
    index: int = 0,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    error: int = 0,
    diverging: tuple[int, int] | None = None,
) -> PartitionData:
    """Build one partition of a leader's fetch response."""
    found = PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        records=records,
        aborted_transactions=None,
    )
    if diverging is not None:
        found.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    return found
