"""The replica manager applies metadata changes: leaders, followers, removal and failed logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kwire.broker.config.load import load
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.replication.directory_moves import OnAssigned
from kwire.broker.replication.log_dirs import DirectoryAssignments
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replica_manager import FIRST_SLICE, SLICE_MS, ReplicaManager
from kwire.broker.replication.roles import Role
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tests.broker.replication.fake_cluster import FakeCluster

TOPIC_ID = Uuid(bytes(15) + b"\1")
OFFSETS_TOPIC = "__consumer_offsets"


class FakeCoordinator:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def elected(self, index: int, leader_epoch: int) -> None:
        self.events.append(("elected", index, leader_epoch))

    def resigned(self, index: int, leader_epoch: int) -> None:
        self.events.append(("resigned", index, leader_epoch))


class ReplicaManagerHarness:
    """The replicas of broker 1 in one directory, and metadata to write to."""

    def __init__(self, disk: MemoryDisk | None = None, image: MetadataImage | None = None) -> None:
        self.host = VirtualHost(seed=1)
        self.disk = disk or MemoryDisk()
        self.image = image or MetadataImage()
        self.coordinator = FakeCoordinator()
        self.removed: list[Partition] = []
        self.fetcher_changes: list[tuple[int, ...]] = []
        self.assignments: list[DirectoryAssignments] = []
        self.logs = LogManager(
            self.disk,
            ["/d"],
            logger=self.host.logger("kwire.storage"),
            rng=self.host.random("directories"),
            on_directory_failed=lambda directory, error: self.replicas.directory_failed(error),
        )
        self.logs.open(self.host.now_ms())
        self.replicas = ReplicaManager(
            load(None, {}, {"node.id": "1", "log.index.size.max.bytes": "65536"}),
            self.host,
            self.logs,
            image=lambda: self.image,
            coordinators={OFFSETS_TOPIC: self.coordinator},
            assignments=self,  # type: ignore[arg-type]
            fetcher_manager=self,
            leader_partitions=FakeCluster(self.host).leading,
            on_removed=self.removed.append,
            on_deleted=lambda: None,
        )
        if isinstance(self.disk, SlowDisk):
            self.disk.host = self.host
        self.replicas.start()

    def assign(self, assignments: DirectoryAssignments, done: OnAssigned | None = None) -> None:
        self.assignments.append(assignments)

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid], done: OnAssigned) -> None:
        raise AssertionError("unexpected report of directories")

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        self.fetcher_changes.append((leader_id, leader_epoch))

    def remove_fetcher(self, partition: Partition) -> None:
        self.fetcher_changes.append(())

    def write(self, *records: Any) -> None:
        self.apply(*records)
        self.host.run_pending()

    def apply(self, *records: Any) -> None:
        """Apply records without the work of later turns."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), 1)
        self.replicas.apply_delta(delta)

    def create(self, name: str = "t", **fields: Any) -> None:
        self.write(TopicRecord(name=name, topic_id=TOPIC_ID), partition(**fields))

    def leader_error(self, topic: str, index: int = 0) -> ErrorCode:
        try:
            self.replicas.led_partition(topic, index)
        except ApiError as error:
            return ErrorCode(error.code)
        return ErrorCode.NONE


class SlowDisk(MemoryDisk):
    """A disk that needs a complete time slice to create a directory."""

    host: VirtualHost | None = None

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        if self.host is not None:
            self.host.events.clock.advance(SLICE_MS)


def partition(
    leader: int = 1, replicas: tuple[int, ...] = (1, 2), epoch: int = 0, index: int = 0
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC_ID,
        replicas=list(replicas),
        isr=list(replicas),
        leader=leader,
        leader_epoch=epoch,
    )


def change(index: int = 0, **fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, **fields)


@pytest.mark.parametrize(
    ("leader", "replicas", "role", "code"),
    [
        (1, (1, 2), Role.LEADER, ErrorCode.NONE),
        (2, (1, 2), Role.FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, (1,), Role.FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, (2, 3), Role.ABSENT, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_role_of_a_replica_follows_the_metadata(
    leader: int, replicas: tuple[int, ...], role: Role, code: ErrorCode
) -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=leader, replicas=replicas)
    assert (harness.replicas.role("t", 0), harness.leader_error("t")) == (role, code)
    assert (harness.logs.get("t", 0) is not None) == (1 in replicas)
    assert harness.replicas.exists("t", 0)
    assert harness.leader_error("t", 1) == harness.leader_error("u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.logs.shutdown(harness.host.now_ms())
    again = ReplicaManagerHarness(harness.disk, harness.image)
    assert again.replicas.role("t", 0) is role


LAST_AT_ONCE = FIRST_SLICE - 1
"""The last partition that is created in the first turn."""


class SlowCreation:
    """Creation of a topic whose last three replicas do not fit into the first turn."""

    def __init__(self) -> None:
        self.harness = harness = ReplicaManagerHarness(SlowDisk())
        harness.apply(
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *(partition(index=index) for index in range(FIRST_SLICE + 3)),
        )

    @property
    def roles(self) -> list[Role]:
        """The roles of the last four partitions."""
        return [self.harness.replicas.role("t", LAST_AT_ONCE + number) for number in range(4)]


def test_many_new_replicas_are_created_over_several_turns() -> None:
    creation = SlowCreation()
    harness = creation.harness
    assert creation.roles == [Role.LEADER, *[Role.ABSENT] * 3]
    assert harness.leader_error("t", LAST_AT_ONCE + 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert harness.replicas.exists("t", LAST_AT_ONCE + 1)
    harness.apply(change(index=LAST_AT_ONCE + 3, leader=2), change(index=LAST_AT_ONCE, leader=2))
    assert creation.roles == [Role.FOLLOWER, *[Role.ABSENT] * 3]
    while creation.roles[1] is Role.ABSENT:
        harness.host.events.soon.popleft()()
    assert creation.roles == [Role.FOLLOWER, Role.LEADER, Role.ABSENT, Role.ABSENT]
    harness.host.run_pending()
    assert creation.roles == [Role.FOLLOWER, Role.LEADER, Role.LEADER, Role.FOLLOWER]
    assert harness.fetcher_changes == [(2, 1), (2, 1)]


def test_start_with_an_empty_directory_creates_logs_over_several_turns() -> None:
    creation = SlowCreation()
    creation.harness.host.run_pending()
    creation.harness.logs.shutdown(creation.harness.host.now_ms())
    creation.harness = harness = ReplicaManagerHarness(SlowDisk(), creation.harness.image)
    assert creation.roles == [Role.LEADER, *[Role.ABSENT] * 3]
    harness.apply(change(index=LAST_AT_ONCE + 3, leader=2))
    harness.host.run_pending()
    assert creation.roles == [Role.LEADER, Role.LEADER, Role.LEADER, Role.FOLLOWER]


def test_replicas_of_a_deleted_topic_are_not_created() -> None:
    creation = SlowCreation()
    creation.harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert creation.roles == [Role.ABSENT] * 4
    assert creation.harness.logs.get("t", LAST_AT_ONCE + 1) is None


def test_stopping_broker_creates_no_more_replicas() -> None:
    creation = SlowCreation()
    creation.harness.replicas.complete_delayed_fetches()
    creation.harness.host.run_pending()
    assert creation.harness.logs.get("t", LAST_AT_ONCE + 1) is None


def test_coordinator_is_elected_and_resigned_with_the_leader() -> None:
    harness = ReplicaManagerHarness()
    harness.create(OFFSETS_TOPIC)
    harness.write(change(isr=[1]))
    harness.write(change(leader=2))
    harness.write(change(isr=[1, 2]))
    harness.write(change(leader=1))
    epoch = harness.image.topics[OFFSETS_TOPIC].partitions[0].leader_epoch
    assert epoch > 0
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    events = harness.coordinator.events
    assert [what for what, *_ in events if what == "resigned"] == ["resigned"] * 2
    assert (events[0], events[-2:]) == (("elected", 0, 0), [("elected", 0, epoch), ("resigned", 0, epoch)])
    assert [epochs for _, _, epochs in events] == sorted(epochs for _, _, epochs in events)


def test_fetchers_get_every_leader_change_and_the_removal() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2, replicas=(1, 2, 3), epoch=4)
    assert harness.fetcher_changes == [(2, 4)]
    harness.write(change(leader=3))
    harness.write(change(leader=-1))
    harness.write(change(leader=1))
    harness.write(change(isr=[1]))
    assert harness.fetcher_changes[1:] == [(3, 5), (-1, 6), ()]
    harness.write(change(leader=2))
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert harness.fetcher_changes[4:] == [(2, 8), ()]


def test_controlled_shutdown_keeps_fetchers_of_isr_members() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2, replicas=(1, 2, 3))
    harness.write(RegisterBrokerRecord(broker_id=1, broker_epoch=5))
    harness.fetcher_changes.clear()
    ends = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)
    harness.write(ends, change(isr=[2, 1]))
    assert harness.fetcher_changes == [(2, 0)]
    harness.write(change(isr=[2]))
    assert harness.fetcher_changes[1:] == [()]


def test_log_failure_removes_the_fetcher() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2)
    log = harness.logs.get("t", 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    harness.write(change(leader=3))
    assert harness.fetcher_changes == [(2, 0), ()]


def test_log_failure_resigns_the_coordinator() -> None:
    harness = ReplicaManagerHarness()
    harness.create(OFFSETS_TOPIC)
    log = harness.logs.get(OFFSETS_TOPIC, 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    assert harness.coordinator.events == [("elected", 0, 0), ("resigned", 0, 0)]


def test_reassigned_replica_deletes_its_log() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    harness.write(change(leader=2, replicas=[2, 3], isr=[2, 3]))
    assert harness.replicas.role("t", 0) is Role.ABSENT
    assert harness.leader_error("t") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ([one.role for one in harness.removed], harness.logs.get("t", 0)) == ([Role.ABSENT], None)
    harness.write(change(leader=1, replicas=[1, 2], isr=[1, 2]))
    assert harness.replicas.role("t", 0) is Role.LEADER


def test_replica_stays_offline_until_its_topic_is_deleted() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    log = harness.logs.get("t", 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    for leader in (1, 2, 1):
        assert (harness.replicas.role("t", 0), harness.leader_error("t")) == (
            Role.OFFLINE,
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        harness.write(change(leader=leader))
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert harness.leader_error("t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_log_of_a_replica_assigned_to_other_brokers_is_stray() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    harness.logs.shutdown(harness.host.now_ms())
    delta = MetadataDelta(harness.image)
    delta.replay(change(leader=2, replicas=[2, 3], isr=[2, 3]))
    again = ReplicaManagerHarness(harness.disk, delta.apply(9, 1))
    assert again.logs.get("t", 0) is None
    assert [name for name in harness.disk.names("/d") if name.startswith("t-0")] != ["t-0"]


def test_only_changed_partitions_of_a_topic_are_updated() -> None:
    harness = ReplicaManagerHarness()
    second = partition(leader=2)
    second.partition_id = 1
    harness.write(TopicRecord(name="t", topic_id=TOPIC_ID), partition(leader=2), second)
    harness.fetcher_changes.clear()
    harness.write(PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=3))
    assert harness.fetcher_changes == [(3, 1)]
