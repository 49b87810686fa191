"""Placement of new replicas: balanced, across racks, with an active leader."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from kwire.broker.controller.commands import Fault
from kwire.broker.controller.replica_placement import place_replicas
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid

DIRECTORY = Uuid(b"directory-of-one")


def image_of(*brokers: BrokerImage) -> MetadataImage:
    image = MetadataImage()
    image.brokers = {broker.broker_id: broker for broker in brokers}
    return image


def broker(broker_id: int, rack: str | None = None, **state: Any) -> BrokerImage:
    image = BrokerImage(broker_id, broker_id, Uuid(bytes(16)), {}, {}, rack, log_dirs=(DIRECTORY,))
    return image._replace(**{"fenced": False, **state})


def place(image: MetadataImage, count: int, replication_factor: int, seed: int = 1) -> list[list[int]]:
    found = place_replicas(image, count, replication_factor, random.Random(seed))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_partitions_and_leaders_are_spread_over_racks_and_brokers(seed: int) -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    image = image_of(*(broker(broker_id, rack) for broker_id, rack in racks.items()))
    partitions = place(image, 60, 3, seed)
    for replicas in partitions:
        assert {racks[replica] for replica in replicas} == {"a", "b", "c"}
    replica_counts = Counter(replica for replicas in partitions for replica in replicas)
    leader_counts = Counter(replicas[0] for replicas in partitions)
    assert set(replica_counts.values()) == {30}
    assert all(8 <= leader_counts[broker_id] <= 12 for broker_id in racks)


@pytest.mark.parametrize("seed", range(20))
def test_brokers_without_racks_are_balanced(seed: int) -> None:
    partitions = place(image_of(*map(broker, range(1, 4))), 3, 2, seed)
    assert sorted(replicas[0] for replicas in partitions) == [1, 2, 3]
    assert Counter(replica for replicas in partitions for replica in replicas) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("seed", range(20))
def test_fenced_brokers_are_placed_last_and_never_preferred(seed: int) -> None:
    image = image_of(broker(1, "a"), broker(2, "a", fenced=True), broker(3, "b", fenced=True), broker(4, "b"))
    for replicas in place(image, 40, 2, seed):
        assert sorted(replicas) == [1, 4]
    for replicas in place(image, 40, 4, seed):
        assert replicas[0] in (1, 4)
        assert sorted(replicas) == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_each_partition_uses_both_of_two_unequal_racks(seed: int) -> None:
    image = image_of(*(broker(broker_id, "a") for broker_id in range(1, 6)), broker(6, "b"))
    partitions = place(image, 60, 2, seed)
    assert all(6 in replicas for replicas in partitions)
    assert all(len(set(replicas)) == 2 for replicas in partitions)


def test_placement_starts_at_a_random_broker() -> None:
    image = image_of(*map(broker, range(1, 7)))
    assert len({place(image, 1, 1, seed)[0][0] for seed in range(100)}) == 6


def test_a_single_broker_gets_every_replica() -> None:
    assert place(image_of(broker(1)), 100, 1) == [[1]] * 100


def test_brokers_in_shutdown_or_fully_cordoned_get_no_replica() -> None:
    image = image_of(
        broker(1),
        broker(2, in_controlled_shutdown=True),
        broker(3, cordoned_log_dirs=(DIRECTORY,)),
        broker(4, cordoned_log_dirs=()),
    )
    assert {replica for replicas in place(image, 20, 2) for replica in replicas} == {1, 4}


@pytest.mark.parametrize(
    ("brokers", "replication_factor", "text"),
    [
        ([broker(1)], 0, "Invalid replication factor 0: the replication factor must be positive."),
        (
            [broker(1, fenced=True)],
            1,
            "All brokers are currently fenced, or have all their log directories cordoned.",
        ),
        (
            [broker(1), broker(2, fenced=True)],
            3,
            "The target replication factor of 3 cannot be reached because only 2 broker(s) are registered or "
            "some brokers have all their log directories cordoned.",
        ),
    ],
)
def test_an_impossible_placement_is_a_fault(
    brokers: list[BrokerImage], replication_factor: int, text: str
) -> None:
    found = place_replicas(image_of(*brokers), 1, replication_factor, random.Random(1))
    assert found == Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
