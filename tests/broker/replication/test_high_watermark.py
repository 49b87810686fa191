"""The high watermark is the least of the ends of all in-sync replicas."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.high_watermark import UNKNOWN_OFFSET, InSyncReplicas


def in_sync(isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)) -> InSyncReplicas:
    made = InSyncReplicas()
    made.take(PartitionImage(replicas=replicas, isr=isr, leader=1))
    return made


def test_of_one_replica_it_is_the_end_of_its_log() -> None:
    assert in_sync((1,), (1,)).high_watermark(7, 1) == 7


def test_it_is_where_the_slowest_is_and_never_beyond_the_leader() -> None:
    replicas = in_sync((1, 2, 3))
    assert replicas.high_watermark(9, 1) == UNKNOWN_OFFSET, "nothing is known of the others yet"
    assert replicas.fetched(2, 5)
    assert replicas.high_watermark(9, 1) == UNKNOWN_OFFSET
    assert replicas.fetched(3, 8)
    assert replicas.high_watermark(9, 1) == 5
    assert replicas.fetched(2, 12)
    assert replicas.high_watermark(9, 1) == 8
    assert replicas.high_watermark(4, 1) == 4


def test_nobody_waits_for_a_replica_that_is_not_in_sync() -> None:
    replicas = in_sync((1, 2))
    assert not replicas.fetched(3, 1)
    assert replicas.fetched(2, 6)
    assert replicas.high_watermark(9, 1) == 6


def test_what_is_known_of_a_follower_stays_as_long_as_it_is_in_sync() -> None:
    replicas = in_sync((1, 2, 3))
    replicas.fetched(2, 5)
    replicas.fetched(3, 6)
    replicas.take(PartitionImage(replicas=(1, 2, 3), isr=(1, 3), leader=1))
    assert replicas.high_watermark(9, 1) == 6
    replicas.take(PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1))
    assert replicas.high_watermark(9, 1) == UNKNOWN_OFFSET
    replicas.forget()
    replicas.take(PartitionImage(replicas=(1, 2, 3), isr=(1, 3), leader=1))
    assert replicas.high_watermark(9, 1) == UNKNOWN_OFFSET


@pytest.mark.parametrize(
    ("isr", "replicas", "least", "too_few"),
    [
        ((1,), (1,), 3, False),
        ((1,), (1, 2), 1, False),
        ((1,), (1, 2), 2, True),
        ((1, 2), (1, 2), 3, False),
        ((1, 2), (1, 2, 3), 2, False),
        ((1, 2), (1, 2, 3), 3, True),
    ],
)
def test_too_few_in_sync_keep_it_where_it_is(
    isr: tuple[int, ...], replicas: tuple[int, ...], least: int, *, too_few: bool
) -> None:
    """KIP-966. No topic can ask for more replicas than it has."""
    found = in_sync(isr, replicas)
    for broker_id in isr[1:]:
        found.fetched(broker_id, 9)
    assert found.are_too_few(least) == too_few
    assert found.high_watermark(9, least) == (UNKNOWN_OFFSET if too_few else 9)
