"""A broker's replicas follow the metadata: taken up, led, followed, given up, offline with their logs."""

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
from tests.broker.replication.cluster import Cluster

TOPIC_ID = Uuid(bytes(15) + b"\1")
STATE = "__consumer_offsets"


class Coordinator:
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def elected(self, index: int, leader_epoch: int) -> None:
        self.heard.append(("elected", index, leader_epoch))

    def resigned(self, index: int, leader_epoch: int) -> None:
        self.heard.append(("resigned", index, leader_epoch))


class ReplicaManagerHarness:
    """The replicas of broker 1, on one directory, and a log of metadata to write to."""

    def __init__(self, disk: MemoryDisk | None = None, image: MetadataImage | None = None) -> None:
        self.host = VirtualHost(seed=1)
        self.disk = disk or MemoryDisk()
        self.image = image or MetadataImage()
        self.coordinator = Coordinator()
        self.left: list[Partition] = []
        self.followed: list[tuple[int, ...]] = []
        self.places: list[DirectoryAssignments] = []
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
            coordinators={STATE: self.coordinator},
            assignments=self,
            fetcher_manager=self,
            leader_partitions=Cluster(self.host).leading,
            on_removed=self.left.append,
            on_deleted=lambda: None,
        )
        if isinstance(self.disk, SlowDisk):
            self.disk.host = self.host
        self.replicas.start()

    def assign(self, places: DirectoryAssignments, done: OnAssigned) -> None:
        self.places.append(places)

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid], done: OnAssigned) -> None:
        raise AssertionError("nobody asked for it")

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        self.followed.append((leader_id, leader_epoch))

    def remove_fetcher(self, partition: Partition) -> None:
        self.followed.append(())

    def write(self, *records: Any) -> None:
        self.publish(*records)
        self.host.run_pending()

    def publish(self, *records: Any) -> None:
        """As `write`, but what is to be done in later turns is not."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), 1)
        self.replicas.apply_delta(delta)

    def create(self, name: str = "t", **fields: Any) -> None:
        self.write(TopicRecord(name=name, topic_id=TOPIC_ID), partition(**fields))

    def code(self, topic: str, index: int = 0) -> ErrorCode:
        try:
            self.replicas.led_partition(topic, index)
        except ApiError as error:
            return ErrorCode(error.code)
        return ErrorCode.NONE


class SlowDisk(MemoryDisk):
    """A directory takes as long as a slice, once the broker starts."""

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
def test_the_metadata_gives_a_replica_its_role(
    leader: int, replicas: tuple[int, ...], role: Role, code: ErrorCode
) -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=leader, replicas=replicas)
    assert (harness.replicas.role("t", 0), harness.code("t")) == (role, code)
    assert (harness.logs.get("t", 0) is not None) == (1 in replicas)
    assert harness.replicas.exists("t", 0)
    assert harness.code("t", 1) == harness.code("u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.logs.shutdown(harness.host.now_ms())
    again = ReplicaManagerHarness(harness.disk, harness.image)
    assert again.replicas.role("t", 0) is role


LAST = FIRST_SLICE - 1
"""The last that is taken up at once."""


class Slow:
    """A topic of so many replicas that the last three are not taken up in the turn of its creation."""

    def __init__(self) -> None:
        self.harness = harness = ReplicaManagerHarness(SlowDisk())
        harness.publish(
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *(partition(index=index) for index in range(FIRST_SLICE + 3)),
        )

    @property
    def roles(self) -> list[Role]:
        """Of the last four."""
        return [self.harness.replicas.role("t", LAST + number) for number in range(4)]


def test_many_new_replicas_are_taken_up_turn_by_turn() -> None:
    slow = Slow()
    harness = slow.harness
    assert slow.roles == [Role.LEADER, *[Role.ABSENT] * 3]
    assert harness.code("t", LAST + 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert harness.replicas.exists("t", LAST + 1)
    harness.publish(change(index=LAST + 3, leader=2), change(index=LAST, leader=2))
    assert slow.roles == [Role.FOLLOWER, *[Role.ABSENT] * 3]
    while slow.roles[1] is Role.ABSENT:
        harness.host.events.soon.popleft()()
    assert slow.roles == [Role.FOLLOWER, Role.LEADER, Role.ABSENT, Role.ABSENT]
    harness.host.run_pending()
    assert slow.roles == [Role.FOLLOWER, Role.LEADER, Role.LEADER, Role.FOLLOWER]
    assert harness.followed == [(2, 1), (2, 1)]


def test_a_broker_whose_directory_was_emptied_makes_its_logs_turn_by_turn() -> None:
    slow = Slow()
    slow.harness.host.run_pending()
    slow.harness.logs.shutdown(slow.harness.host.now_ms())
    slow.harness = harness = ReplicaManagerHarness(SlowDisk(), slow.harness.image)
    assert slow.roles == [Role.LEADER, *[Role.ABSENT] * 3]
    harness.publish(change(index=LAST + 3, leader=2))
    harness.host.run_pending()
    assert slow.roles == [Role.LEADER, Role.LEADER, Role.LEADER, Role.FOLLOWER]


def test_replicas_that_are_not_wanted_any_more_are_not_taken_up() -> None:
    slow = Slow()
    slow.harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert slow.roles == [Role.ABSENT] * 4
    assert slow.harness.logs.get("t", LAST + 1) is None


def test_a_broker_that_ends_takes_up_nothing_more() -> None:
    slow = Slow()
    slow.harness.replicas.complete_delayed_fetches()
    slow.harness.host.run_pending()
    assert slow.harness.logs.get("t", LAST + 1) is None


def test_coordinators_hear_of_the_lead_each_time_it_comes_and_goes() -> None:
    harness = ReplicaManagerHarness()
    harness.create(STATE)
    harness.write(change(isr=[1]))
    harness.write(change(leader=2))
    harness.write(change(isr=[1, 2]))
    harness.write(change(leader=1))
    epoch = harness.image.topics[STATE].partitions[0].leader_epoch
    assert epoch > 0
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    told = harness.coordinator.heard
    assert [what for what, *_ in told if what == "resigned"] == ["resigned"] * 2
    assert (told[0], told[-2:]) == (("elected", 0, 0), [("elected", 0, epoch), ("resigned", 0, epoch)])
    assert [epochs for _, _, epochs in told] == sorted(epochs for _, _, epochs in told)


def test_the_fetchers_hear_of_every_change_of_a_follower_and_of_its_end() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2, replicas=(1, 2, 3), epoch=4)
    assert harness.followed == [(2, 4)]
    harness.write(change(leader=3))
    harness.write(change(leader=-1))
    harness.write(change(leader=1))
    harness.write(change(isr=[1]))
    assert harness.followed[1:] == [(3, 5), (-1, 6), ()]
    harness.write(change(leader=2))
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert harness.followed[4:] == [(2, 8), ()]


def test_a_broker_that_ends_follows_what_it_is_still_in_sync_with() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2, replicas=(1, 2, 3))
    harness.write(RegisterBrokerRecord(broker_id=1, broker_epoch=5))
    harness.followed.clear()
    ends = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)
    harness.write(ends, change(isr=[2, 1]))
    assert harness.followed == [(2, 0)]
    harness.write(change(isr=[2]))
    assert harness.followed[1:] == [()]


def test_a_follower_whose_log_fails_follows_no_more() -> None:
    harness = ReplicaManagerHarness()
    harness.create(leader=2)
    log = harness.logs.get("t", 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    harness.write(change(leader=3))
    assert harness.followed == [(2, 0), ()]


def test_a_coordinator_whose_log_fails_is_none_any_more() -> None:
    harness = ReplicaManagerHarness()
    harness.create(STATE)
    log = harness.logs.get(STATE, 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    assert harness.coordinator.heard == [("elected", 0, 0), ("resigned", 0, 0)]


def test_a_replica_that_goes_elsewhere_takes_its_log_along() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    harness.write(change(leader=2, replicas=[2, 3], isr=[2, 3]))
    assert harness.replicas.role("t", 0) is Role.ABSENT
    assert harness.code("t") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ([one.role for one in harness.left], harness.logs.get("t", 0)) == ([Role.ABSENT], None)
    harness.write(change(leader=1, replicas=[1, 2], isr=[1, 2]))
    assert harness.replicas.role("t", 0) is Role.LEADER


def test_what_fails_with_its_directory_stays_offline_until_it_is_deleted() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    log = harness.logs.get("t", 0)
    assert log is not None
    harness.logs.handle_log_failure(log, StorageError("broken"))
    for leader in (1, 2, 1):
        assert (harness.replicas.role("t", 0), harness.code("t")) == (
            Role.OFFLINE,
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        harness.write(change(leader=leader))
    harness.write(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert harness.code("t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_log_that_the_cluster_knows_elsewhere_is_a_stray() -> None:
    harness = ReplicaManagerHarness()
    harness.create()
    harness.logs.shutdown(harness.host.now_ms())
    delta = MetadataDelta(harness.image)
    delta.replay(change(leader=2, replicas=[2, 3], isr=[2, 3]))
    again = ReplicaManagerHarness(harness.disk, delta.apply(9, 1))
    assert again.logs.get("t", 0) is None
    assert [name for name in harness.disk.names("/d") if name.startswith("t-0")] != ["t-0"]


def test_of_the_partitions_of_a_topic_those_alone_are_taken_up_that_have_changed() -> None:
    harness = ReplicaManagerHarness()
    second = partition(leader=2)
    second.partition_id = 1
    harness.write(TopicRecord(name="t", topic_id=TOPIC_ID), partition(leader=2), second)
    harness.followed.clear()
    harness.write(PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=3))
    assert harness.followed == [(3, 1)]
