"""A cluster as a partition leader sees it: brokers, and a controller whose responses the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.broker.replication.alter_partition_manager import IsrChange, IsrChangeResult
from kwire.broker.replication.remote_replicas import LeaderPartitions
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, TopicIdPartition

Done = Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None]


@dataclass
class LeaderSettings:
    """Configuration of a leader, with Kafka's defaults."""

    replica_lag_time_max_ms: int = 30_000
    replica_selector_class: str | None = None


@dataclass
class FakeCluster:
    """Brokers 1 to 3, with broker 1 as the leader; broker epochs are 10 times the ids."""

    host: VirtualHost
    settings: LeaderSettings = field(default_factory=LeaderSettings)
    image: MetadataImage = field(default_factory=MetadataImage)
    requests: list[tuple[Sequence[IsrChange], Done]] = field(default_factory=list)
    """AlterPartition requests without a response."""

    def __post_init__(self) -> None:
        self.set_brokers(1, 2, 3)
        self.leading = LeaderPartitions(
            self.host,
            self.settings,
            1,
            image=lambda: self.image,
            broker_epoch=lambda: 10,
            controller=self,
        )

    def set_brokers(
        self, *broker_ids: int, fenced: Iterable[int] = (), shutting_down: Iterable[int] = ()
    ) -> None:
        """Replace the registered brokers."""
        self.image.brokers = {
            broker_id: BrokerImage(
                broker_id,
                10 * broker_id,
                ZERO_UUID,
                {},
                {},
                fenced=broker_id in fenced,
                in_controlled_shutdown=broker_id in shutting_down,
            )
            for broker_id in broker_ids
        }

    def alter_isr(self, changes: Sequence[IsrChange], done: Done) -> None:
        self.requests.append((changes, done))

    def requested_isrs(self) -> list[tuple[int, ...]]:
        """Return the ISRs of the pending AlterPartition requests."""
        self.host.run_pending()
        return [
            tuple(broker_id for broker_id, _ in change.new_isr)
            for changes, _ in self.requests
            for change in changes
        ]

    def respond(self, error: ErrorCode = ErrorCode.NONE, **fields: int) -> None:
        """Respond to the oldest request: each partition gets this error, or the requested ISR."""
        self.host.run_pending()
        changes, done = self.requests.pop(0)
        done(
            {
                (change.topic_id, change.partition_index): IsrChangeResult(
                    error,
                    1,
                    fields.get("leader_epoch", change.leader_epoch),
                    tuple(broker_id for broker_id, _ in change.new_isr),
                    partition_epoch=fields.get("partition_epoch", change.partition_epoch + 1),
                )
                for change in changes
            }
        )
        self.host.run_pending()

    def reject(self, code: ErrorCode) -> None:
        """Fail the oldest request as a whole."""
        self.host.run_pending()
        _, done = self.requests.pop(0)
        done(ApiError(code))
        self.host.run_pending()
