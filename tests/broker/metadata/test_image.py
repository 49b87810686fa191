"""Queries on a metadata image."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    has_collision_chars,
    unify_collision_chars,
)
from kwire.wire.primitives import Uuid

FIRST, SECOND, THIRD = (Uuid(bytes([number]) * 16) for number in (7, 8, 9))


def broker(broker_id: int = 1, **state: Any) -> BrokerImage:
    return BrokerImage(broker_id, 0, FIRST, {}, {})._replace(**state)


def test_an_unknown_partition_is_none() -> None:
    image = MetadataImage()
    partition = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    topic = TopicImage("t", FIRST, (partition,))
    image.topics, image.topics_by_id = {"t": topic}, {FIRST: topic}
    assert image.partition("t", 0) is partition
    assert [image.partition(*partition_id) for partition_id in (("t", 1), ("t", -1), ("u", 0))] == [None] * 3
    assert (image.name_of(FIRST), image.name_of(SECOND)) == ("t", None)
    assert image.config(2, "t") == {}


def test_directory_of_returns_the_directory_of_each_replica() -> None:
    partition = PartitionImage((2, 1), (1,), 1, 0, 0)._replace(directories=(FIRST, SECOND))
    assert [partition.directory_of(broker_id) for broker_id in (1, 2, 3)] == [SECOND, FIRST, None]


@pytest.mark.parametrize(
    ("directory", "known", "unknown"),
    [
        (FIRST, True, True),
        (THIRD, False, True),
        (DIRECTORY_LOST, False, False),
        (DIRECTORY_UNASSIGNED, True, True),
        (DIRECTORY_MIGRATING, True, True),
    ],
)
def test_a_directory_is_offline_if_the_broker_registered_only_others(
    directory: Uuid, known: bool, unknown: bool
) -> None:
    assert broker(log_dirs=(FIRST, SECOND)).has_online_directory(directory) is known
    assert broker().has_online_directory(directory) is unknown


def test_a_broker_in_controlled_shutdown_is_alive_and_not_active() -> None:
    image = MetadataImage()
    image.brokers = {
        3: broker(3, fenced=False),
        2: broker(2, fenced=False, in_controlled_shutdown=True),
        1: broker(1),
    }
    assert [one.broker_id for one in image.alive_brokers()] == [2, 3]
    assert [one.is_active for one in image.brokers.values()] == [True, False, False]


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert [has_collision_chars(name) for name in ("a", "a.b", "a_b", "a-b")] == [False, True, True, False]
    assert unify_collision_chars("a.b_c.d") == unify_collision_chars("a_b.c_d") == "a_b_c_d"
