"""Invariants of partitions that hold after every command, in random order.

Five brokers start, stop, crash and return with or without their data. Leaders change the ISR, also
with outdated epochs. Partitions are reassigned, leaders are elected, and configs change.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AlterOperation,
    AlterPartition,
    AlterPartitionReassignments,
    BrokerHeartbeat,
    ConfigChange,
    CreatePartitions,
    Election,
    ElectLeaders,
    FenceBroker,
    IncrementalAlterConfigs,
    PartitionAlteration,
    ResourceChange,
    RunPeriodicElection,
    UnregisterBroker,
)
from kwire.broker.metadata.image import (
    NO_LEADER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kwire.wire.errors import ApiError
from kwire.wire.messages.create_partitions import CreatePartitionsTopic
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import ImageCluster

BROKERS = (1, 2, 3, 4, 5)
STEPS = 150
FEATURES = {
    "4.3": None,
    "without ELR": (("metadata.version", 22),),
    "3.5": (("metadata.version", 11),),
}


class RandomCommands:
    """One cluster and random commands for it."""

    def __init__(self, cluster: ImageCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        for broker_id in BROKERS:
            cluster.start(broker_id, rack=f"r{broker_id % 2}", log_dirs=self.directories(broker_id))
        for number, factor in enumerate((1, 2, 3, 5)):
            cluster.create(f"t{number}", 3, factor)
        self.steps: list[Callable[[], object]] = [
            self.heartbeat,
            self.heartbeat,
            self.restart,
            self.fence,
            self.alter,
            self.alter,
            self.alter,
            self.reassign,
            self.elect,
            self.configure,
            self.add_partitions,
            self.unregister,
        ]

    def directories(self, broker_id: int) -> list[Uuid]:
        return [Uuid(bytes([broker_id, number]) * 8) for number in (1, 2)]

    def broker(self) -> int:
        return self.rng.choice(sorted(self.cluster.image.brokers) or [0])

    def partition(self) -> tuple[TopicImage, int, PartitionImage]:
        topic = self.rng.choice(list(self.cluster.image.topics.values()))
        index = self.rng.randrange(len(topic.partitions))
        return topic, index, topic.partitions[index]

    def some(self, of: Any) -> list[int]:
        return self.rng.sample(list(of), self.rng.randint(0, len(list(of))))

    # --- commands

    def heartbeat(self) -> None:
        broker_id, chance = self.broker(), self.rng.random
        broker = self.cluster.image.brokers.get(broker_id)
        epoch = -1 if broker is None else broker.broker_epoch
        failed = self.directories(broker_id)[:1] if chance() < 0.1 else []
        offset = self.cluster.image.offset - self.rng.choice((0, 0, 0, 5))
        self.cluster.run(
            BrokerHeartbeat(broker_id, epoch, offset, chance() < 0.1, chance() < 0.2, offline_log_dirs=failed)
        )

    def restart(self) -> None:
        """Register a broker again, perhaps before the session of its previous incarnation timed out."""
        broker_id = self.rng.choice(BROKERS)
        if self.rng.random() < 0.7:
            self.cluster.end_sessions()
        previous = self.cluster.image.brokers.get(broker_id)
        is_clean = previous is not None and self.rng.random() < 0.5
        self.cluster.register(
            broker_id,
            previous_broker_epoch=previous.broker_epoch if is_clean and previous else -1,
            log_dirs=self.directories(broker_id),
        )
        if self.rng.random() < 0.7:
            self.cluster.unfence(broker_id)

    def fence(self) -> None:
        broker = self.cluster.image.brokers.get(self.broker())
        if broker is not None:
            self.cluster.run(FenceBroker(broker.broker_id, broker.broker_epoch))

    def alter(self) -> None:
        topic, index, partition = self.partition()
        brokers = self.cluster.image.brokers
        leader = brokers.get(partition.leader)
        if leader is None:
            return
        isr = dict.fromkeys([partition.leader, *self.some(partition.replicas)])
        alteration = PartitionAlteration(
            topic.topic_id,
            index,
            partition.leader_epoch - self.rng.choice((0, 0, 0, 1, -1)),
            partition.partition_epoch - self.rng.choice((0, 0, 0, 1, -1)),
            [(member, brokers[member].broker_epoch if member in brokers else -1) for member in isr],
            self.rng.choice((0, 0, 0, partition.leader_recovery_state)),
        )
        self.cluster.run(AlterPartition(leader.broker_id, leader.broker_epoch, [alteration]))

    def reassign(self) -> None:
        topic, index, _ = self.partition()
        target = None if self.rng.random() < 0.3 else self.some(BROKERS)
        self.cluster.run(AlterPartitionReassignments([(topic.name, index, target)]))

    def elect(self) -> None:
        election = self.rng.choice((Election.PREFERRED, Election.UNCLEAN))
        if self.rng.random() < 0.5:
            self.cluster.run(RunPeriodicElection(election))
        else:
            topic, index, _ = self.partition()
            self.cluster.run(ElectLeaders(election, [(topic.name, [index])]))

    def configure(self) -> None:
        topic, _, _ = self.partition()
        name, value = self.rng.choice(
            [
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "3"),
                ("unclean.leader.election.enable", "true"),
                ("unclean.leader.election.enable", "false"),
            ]
        )
        change = ResourceChange(RESOURCE_TOPIC, topic.name, [ConfigChange(name, AlterOperation.SET, value)])
        self.cluster.run(IncrementalAlterConfigs([change]))

    def add_partitions(self) -> None:
        topic, _, _ = self.partition()
        if len(topic.partitions) < 6:
            count = len(topic.partitions) + 1
            self.cluster.run(CreatePartitions([CreatePartitionsTopic(name=topic.name, count=count)]))

    def unregister(self) -> None:
        if self.rng.random() < 0.3:
            self.cluster.run(UnregisterBroker(self.broker()))


def check(before: MetadataImage, after: MetadataImage) -> None:
    """Check the invariants of every partition and of its last change."""
    for topic in after.topics.values():
        previous = before.topics.get(topic.name)
        for index, partition in enumerate(topic.partitions):
            where = f"{topic.name}-{index} is {partition}"
            check_partition(after, partition, where)
            if previous is not None and index < len(previous.partitions):
                check_change(previous.partitions[index], partition, where)


def check_partition(image: MetadataImage, partition: PartitionImage, where: str) -> None:
    replicas, isr = set(partition.replicas), set(partition.isr)
    assert len(replicas) == len(partition.replicas) > 0, where
    assert len(isr) == len(partition.isr), where
    assert isr <= replicas, where
    assert not isr & set(partition.elr), where
    assert len(partition.directories) in (0, len(replicas)), where
    assert {*partition.adding_replicas, *partition.removing_replicas} <= replicas, where
    assert len(partition.last_known_elr) <= 1, where
    if not image.elr_enabled:
        assert isr, where
        assert not partition.elr, where
    if partition.leader != NO_LEADER:
        assert partition.leader in isr, where
        assert not partition.last_known_elr, where
        for member in partition.isr:
            assert image.brokers[member].is_active, where
        directory = partition.directory_of(partition.leader)
        assert directory is None or image.brokers[partition.leader].has_online_directory(directory), where


def check_change(before: PartitionImage, after: PartitionImage, where: str) -> None:
    if after == before:
        return
    where = f"{where}, and was {before}"
    changes_only_elr = after == before._replace(elr=after.elr, last_known_elr=after.last_known_elr)
    assert after.partition_epoch > before.partition_epoch or changes_only_elr, where
    assert after.leader_epoch >= before.leader_epoch, where
    if after.leader != before.leader or not set(before.replicas) <= set(after.replicas):
        assert after.leader_epoch > before.leader_epoch, where


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("seed", range(15))
def test_invariants_hold_after_random_commands(bare_cluster: Any, features: Any, seed: int) -> None:
    commands = RandomCommands(bare_cluster() if features is None else bare_cluster(features), seed)
    accepted = refused = 0
    for _ in range(STEPS):
        before = commands.cluster.image
        step = commands.rng.choice(commands.steps)
        try:
            step()
            accepted += 1
        except ApiError:
            refused += 1
        check(before, commands.cluster.image)
    assert accepted > 10 * refused
