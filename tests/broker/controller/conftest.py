"""A cluster that exists only as a metadata image: it runs controller commands and returns their responses."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kwire.broker.controller.bootstrap import activation_records
from kwire.broker.controller.commands import (
    AlterOperation,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    Command,
    ConfigChange,
    ControllerResult,
    CreateTopics,
    Fault,
    IncrementalAlterConfigs,
    RegisterBroker,
    ResourceChange,
)
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.topics import TopicDefaults
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import default_features, registered_features
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    EndpointImage,
    MetadataImage,
    TopicImage,
)
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import FeatureLevelRecord
from kwire.wire.registry import decode_metadata_record, encode_record
from kwire.wire.schema import Message

DIRECTORY = Uuid(b"directory-of-one")


def directory_of(broker_id: int) -> Uuid:
    """Return the log directory id of a broker."""
    return DIRECTORY if broker_id == 1 else Uuid(b"directory-of" + broker_id.to_bytes(4, "big"))


KNOWN = (
    "retention.ms",
    "cleanup.policy",
    "min.insync.replicas",
    "segment.ms",
    "unclean.leader.election.enable",
)


class StubConfigRules:
    """Config rules with a few keys, enough for valid and invalid configurations."""

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        for name, value in values.items():
            if name not in KNOWN:
                return f"Unknown topic config name: {name}"
            if name == "retention.ms" and not value.lstrip("-").isdigit():
                return f"Invalid value {value} for configuration retention.ms: Not a number of type LONG"
        return None

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        unknown = [name for name in values if name != "consumer.session.timeout.ms"]
        return f"Unknown group config name: {unknown[0]}" if unknown else None

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        if "log.dirs" in values:
            return Fault(ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: [log.dirs]")
        return None

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        return dict(stored)

    def is_list(self, resource_type: int, key: str) -> bool:
        return key in ("cleanup.policy", "log.cleanup.policy")

    def is_known_broker_key(self, key: str) -> bool:
        return key in ("log.cleanup.policy", "log.retention.ms")

    def default(self, resource_type: int, key: str) -> str | None:
        return "delete" if resource_type in (RESOURCE_TOPIC, RESOURCE_BROKER) else None


class ImageCluster:
    """A cluster that runs commands. Every record is encoded and decoded before the image applies it."""

    def __init__(self, features: Sequence[tuple[str, int]] = tuple(default_features())) -> None:
        self.image = MetadataImage()
        self.rng = random.Random(7)
        self.controller = Controller(
            1, StubConfigRules(), TopicDefaults(num_partitions=1, replication_factor=1)
        )
        self.heartbeats = BrokerHeartbeatManager(None, session_timeout_ms=9_000)
        self.records: list[StoredRecord] = []
        """The records of the last command."""
        levels: list[Message] = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in features
        ]
        self.apply(activation_records(levels, 1, is_transaction_open=False))

    def apply(self, records: list[StoredRecord]) -> MetadataDelta:
        delta = MetadataDelta(self.image)
        for record, version in records:
            delta.replay(decode_metadata_record(encode_record(record, version)))
        self.image = delta.apply(self.image.offset + len(records), 1)
        return delta

    def decide(self, command: Command) -> ControllerResult[Any]:
        return self.controller.handle(command, self.image, self.rng, self.heartbeats)

    def run(self, command: Command) -> Any:
        self.heartbeats.command_received(command)
        result = self.decide(command)
        self.records = list(result.records)
        self.delta = self.apply(self.records)
        self.heartbeats.command_decided(command, result.response, self.image.offset)
        return result.response

    def register(
        self,
        broker_id: int,
        *,
        previous_broker_epoch: int = -1,
        rack: str | None = None,
        features: Mapping[str, tuple[int, int]] | None = None,
        log_dirs: Sequence[Uuid] = (),
        incarnation_id: Uuid | None = None,
    ) -> int:
        epoch = self.run(
            RegisterBroker(
                broker_id,
                incarnation_id or Uuid(self.rng.randbytes(16)),
                [EndpointImage("PLAINTEXT", "127.0.0.1", 9091 + broker_id)],
                registered_features() if features is None else features,
                rack,
                log_dirs or [directory_of(broker_id)],
                previous_broker_epoch,
            )
        )
        assert isinstance(epoch, int)
        return epoch

    def start(self, broker_id: int, **registration: Any) -> int:
        epoch = self.register(broker_id, **registration)
        self.unfence(broker_id)
        return epoch

    def unfence(self, broker_id: int) -> None:
        """Send the heartbeat that unfences a broker."""
        epoch = self.image.brokers[broker_id].broker_epoch
        beat = BrokerHeartbeat(broker_id, epoch, self.image.offset, want_fence=False, want_shut_down=False)
        assert not self.run(beat).is_fenced

    def end_sessions(self) -> None:
        """Let every broker session time out."""
        self.heartbeats.now_ms += 9_001

    def stop(self, broker_id: int) -> None:
        """Send a heartbeat that requests fencing and shutdown, which the controller must grant at once."""
        epoch = self.image.brokers[broker_id].broker_epoch
        beat = BrokerHeartbeat(broker_id, epoch, self.image.offset, want_fence=True, want_shut_down=True)
        assert self.run(beat).should_shut_down

    def create(self, name: str, partitions: int = 1, replication_factor: int = 1) -> TopicImage:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[],
        )
        [result] = self.run(CreateTopics([topic]))
        assert result.error_code == ErrorCode.NONE, result
        return self.image.topics[name]

    def create_on(self, name: str, replicas: Sequence[Sequence[int]]) -> TopicImage:
        """Create a topic with these replica assignments."""
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(replicas)
        ]
        topic = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[]
        )
        [result] = self.run(CreateTopics([topic]))
        assert result.error_code == ErrorCode.NONE, result
        return self.image.topics[name]

    def assign(self, broker_id: int, directories: Mapping[tuple[str, int], Uuid]) -> None:
        """Report the log directories of a broker's replicas."""
        found = {
            (self.image.topics[name].topic_id, index): directory
            for (name, index), directory in directories.items()
        }
        epoch = self.image.brokers[broker_id].broker_epoch
        assert self.run(AssignReplicasToDirs(broker_id, epoch, found)) == {}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        """Set one config of a topic."""
        change = ResourceChange(RESOURCE_TOPIC, topic, [ConfigChange(name, AlterOperation.SET, value)])
        assert self.run(IncrementalAlterConfigs([change])) == [None]


@pytest.fixture
def cluster() -> ImageCluster:
    """Broker 1, unfenced."""
    created = ImageCluster()
    created.start(1)
    return created


@pytest.fixture
def bare_cluster() -> type[ImageCluster]:
    """Return the class, for clusters without brokers or with other features."""
    return ImageCluster
