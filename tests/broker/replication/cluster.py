"""A cluster as the leader of a partition sees it: brokers, and a controller that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.broker.replication.alter_partition_manager import IsrChange, IsrChangeResult, TopicIdPartition
from kwire.broker.replication.remote_replicas import LeaderPartitions
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID

Done = Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None]


@dataclass
class Settings:
    """What leaders go by, with Kafka's defaults."""

    replica_lag_time_max_ms: int = 30_000
    replica_selector_class: str | None = None


@dataclass
class Cluster:
    """Brokers 1 to 3, of which 1 leads; broker epochs are 10 times the ids."""

    host: VirtualHost
    settings: Settings = field(default_factory=Settings)
    image: MetadataImage = field(default_factory=MetadataImage)
    asked: list[tuple[Sequence[IsrChange], Done]] = field(default_factory=list)
    """What the controller was asked, and has not answered."""

    def __post_init__(self) -> None:
        self.live(1, 2, 3)
        self.leading = LeaderPartitions(
            self.host,
            self.settings,
            1,
            image=lambda: self.image,
            broker_epoch=lambda: 10,
            controller=self,
        )

    def live(self, *broker_ids: int, fenced: Iterable[int] = (), leaving: Iterable[int] = ()) -> None:
        """These are the brokers from now on."""
        self.image.brokers = {
            broker_id: BrokerImage(
                broker_id,
                10 * broker_id,
                ZERO_UUID,
                {},
                {},
                fenced=broker_id in fenced,
                in_controlled_shutdown=broker_id in leaving,
            )
            for broker_id in broker_ids
        }

    def alter_isr(self, changes: Sequence[IsrChange], done: Done) -> None:
        """As the controller."""
        self.asked.append((changes, done))

    def wanted(self) -> list[tuple[int, ...]]:
        """The ISRs that it is asked for, by now."""
        self.host.run_pending()
        return [
            tuple(broker_id for broker_id, _ in change.new_isr)
            for changes, _ in self.asked
            for change in changes
        ]

    def answer(self, error: ErrorCode = ErrorCode.NONE, **fields: int) -> None:
        """Answer what was asked first: each partition with this error, or with what it asked for."""
        self.host.run_pending()
        changes, done = self.asked.pop(0)
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

    def refuse(self, code: ErrorCode) -> None:
        """Refuse the whole request that was made first."""
        self.host.run_pending()
        _, done = self.asked.pop(0)
        done(ApiError(code))
        self.host.run_pending()
