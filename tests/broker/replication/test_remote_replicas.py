"""A led partition and its followers: the high watermark, who joins the ISR, and who has to leave it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.remote_replicas import RemoteReplicas
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.replication.cluster import Cluster

PLACE = (Uuid(bytes(15) + b"\1"), 0)
THREE = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)


class RemoteReplicasHarness:
    """Broker 1 leads; its log ends where the test says."""

    def __init__(self, image: PartitionImage = THREE, end_offset: int = 0) -> None:
        self.host = VirtualHost(seed=1)
        self.cluster = Cluster(self.host)
        self.led = RemoteReplicas(self.cluster.leading)
        self.take(image, end_offset)

    def take(self, image: PartitionImage, end_offset: int = 0) -> None:
        self.led.update(image, end_offset, self.host.monotonic_ms())

    def fetched(self, broker_id: int, offset: int, end_offset: int, *, epoch: int | None = None) -> None:
        self.led.followers[broker_id].record_fetch(
            offset,
            log_start_offset=0,
            broker_epoch=10 * broker_id if epoch is None else epoch,
            leader_end_offset=end_offset,
            now_ms=self.host.monotonic_ms(),
            session_partition=None,
        )

    def high_watermark(self, end_offset: int, min_insync_replicas: int = 1) -> int:
        return self.led.high_watermark(end_offset, end_offset, min_insync_replicas)

    def joins(self, broker_id: int, high_watermark: int) -> tuple[int, ...] | None:
        pending = self.led.prepare_expand(PLACE, self.led.followers[broker_id], high_watermark)
        return None if pending is None else pending.isr

    def stay(self, end_offset: int) -> tuple[int, ...] | None:
        pending = self.led.prepare_shrink(PLACE, end_offset, self.host.monotonic_ms())
        return None if pending is None else pending.isr


def alone(end_offset: int = 0) -> RemoteReplicasHarness:
    """In an ISR of the leader alone, whose log ended there when it began to lead."""
    return RemoteReplicasHarness(THREE._replace(isr=(1,)), end_offset)


def test_the_high_watermark_is_where_the_slowest_is_and_never_beyond_the_leader() -> None:
    harness = RemoteReplicasHarness()
    assert harness.high_watermark(9) == -1, "nothing is known of the others yet"
    harness.fetched(2, 5, 9)
    assert harness.high_watermark(9) == -1
    harness.fetched(3, 8, 9)
    assert harness.high_watermark(9) == 5
    harness.fetched(2, 9, 9)
    assert harness.high_watermark(9) == 8
    assert harness.high_watermark(4) == 4


def test_nobody_waits_for_who_is_behind_and_not_in_the_isr() -> None:
    harness = RemoteReplicasHarness(THREE._replace(isr=(1, 2)))
    harness.fetched(3, 1, 6)
    harness.fetched(2, 6, 6)
    assert harness.high_watermark(6) == 6


@pytest.mark.parametrize("why", ["it may", "fenced", "leaving", "an earlier life", "lagging"])
def test_who_is_caught_up_is_waited_for_before_it_is_in_the_isr(why: str) -> None:
    harness = alone()
    harness.fetched(2, 5, 5, epoch=19 if why == "an earlier life" else 20)
    harness.cluster.live(
        1, 2, 3, fenced=[2] if why == "fenced" else (), leaving=[2] if why == "leaving" else ()
    )
    harness.host.advance(30_001 if why == "lagging" else 30_000)
    assert harness.high_watermark(9) == (5 if why == "it may" else 9)


def test_nobody_waits_for_who_has_lost_the_directory_of_its_replica() -> None:
    """Its broker lives, and it was caught up a moment ago."""
    ours, lost, fresh = (Uuid(bytes(15) + bytes([number])) for number in (101, 102, 103))
    harness = RemoteReplicasHarness(THREE._replace(directories=(ours, lost, fresh)))
    for broker_id in (2, 3):
        harness.fetched(broker_id, 5, 5)
    harness.fetched(3, 9, 9)
    assert harness.high_watermark(9) == 5
    brokers = harness.cluster.image.brokers
    harness.cluster.image.brokers = {**brokers, 2: brokers[2]._replace(log_dirs=(fresh,))}
    assert harness.high_watermark(9) == 5, "in the ISR it is waited for all the same"
    harness.take(THREE._replace(directories=(ours, lost, fresh), isr=(1, 3), partition_epoch=1))
    assert harness.high_watermark(9) == 9


@pytest.mark.parametrize(
    ("isr", "replicas", "least", "too_few"),
    [
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
    harness = RemoteReplicasHarness(PartitionImage(replicas=replicas, isr=isr, leader=1))
    for broker_id in isr[1:]:
        harness.fetched(broker_id, 9, 9)
    assert harness.led.is_under_min_isr(least) == harness.led.is_maximal_isr_under_min(least) == too_few
    assert harness.high_watermark(9, least) == (-1 if too_few else 9)


def test_a_follower_joins_once_it_has_what_was_committed_and_where_the_epoch_began() -> None:
    harness = alone(end_offset=5)
    harness.fetched(2, 4, 9)
    assert harness.joins(2, high_watermark=3) is None, "what the leader began with may have been committed"
    harness.fetched(2, 6, 9)
    assert harness.joins(2, high_watermark=7) is None
    assert harness.joins(2, high_watermark=6) == (1, 2)
    assert harness.joins(2, high_watermark=6) is None, "it has been asked for"
    assert harness.led.pending is not None
    assert harness.led.pending.change.new_isr == ((1, 10), (2, 20))


def test_who_is_about_to_join_is_waited_for_whatever_becomes_of_it() -> None:
    harness = alone()
    harness.fetched(2, 5, 9)
    assert harness.joins(2, high_watermark=5)
    harness.cluster.live(1, 3)
    harness.host.advance(60_000)
    assert harness.high_watermark(9) == 5
    assert (harness.led.is_under_min_isr(2), harness.led.is_maximal_isr_under_min(2)) == (True, False)
    harness.take(THREE._replace(isr=(1,), partition_epoch=1))
    assert harness.high_watermark(9) == 9


@pytest.mark.parametrize("epoch", [19, 21, None])
def test_another_life_of_a_broker_does_not_join(epoch: int | None) -> None:
    harness = alone()
    if epoch is not None:
        harness.fetched(2, 5, 5, epoch=epoch)
    assert harness.joins(2, high_watermark=0) is None
    harness.fetched(2, 5, 5, epoch=-1)
    assert harness.joins(2, high_watermark=0) == (1, 2), "an old one that tells no epoch"


def test_who_lags_for_too_long_has_to_leave() -> None:
    harness = RemoteReplicasHarness()
    harness.fetched(2, 5, 5)
    harness.host.advance(30_000)
    harness.fetched(2, 7, 9)
    assert harness.stay(9) is None
    harness.host.advance(1)
    harness.fetched(3, 8, 9)
    assert harness.stay(9) == (1,), "at its last fetch it had but what there was at the one before"
    assert harness.high_watermark(9) == 7, "who is to leave is waited for until the controller agrees"
    harness.host.advance(60_000)
    assert harness.stay(9) is None


def test_who_has_all_of_the_log_stays_without_fetching() -> None:
    harness = RemoteReplicasHarness()
    harness.fetched(2, 5, 5)
    harness.fetched(3, 5, 5)
    harness.host.advance(600_000)
    assert harness.stay(5) is None
    assert harness.stay(6) == (1,)


def test_appends_faster_than_fetches_keep_nobody_out() -> None:
    harness = RemoteReplicasHarness()
    for end_offset in range(10, 200, 10):
        harness.fetched(2, end_offset - 10, end_offset)
        harness.fetched(3, 0, end_offset)
        harness.host.advance(10_000)
    assert harness.stay(200) == (1, 2)


def test_a_new_epoch_gives_time_to_who_is_in_sync_and_to_nobody_else() -> None:
    harness = RemoteReplicasHarness(THREE._replace(isr=(1, 2)))
    harness.fetched(3, 5, 5)
    harness.host.advance(100_000)
    harness.take(THREE._replace(isr=(1, 2), leader_epoch=1, partition_epoch=1), 5)
    harness.host.advance(30_000)
    assert harness.stay(6) is None
    assert harness.high_watermark(6) == -1, "3 is not waited for, 2 is"
    harness.host.advance(1)
    assert harness.stay(6) == (1,)


def test_what_is_known_of_followers_outlives_a_change_of_the_isr() -> None:
    harness = RemoteReplicasHarness()
    harness.fetched(2, 5, 9)
    harness.fetched(3, 6, 9)
    harness.take(THREE._replace(isr=(1, 3), partition_epoch=1))
    harness.host.advance(30_001)
    assert harness.high_watermark(9) == 6
    harness.take(THREE._replace(partition_epoch=2))
    assert harness.high_watermark(9) == 5
    harness.take(THREE._replace(replicas=(1, 3, 4), isr=(1, 3), partition_epoch=3))
    assert sorted(harness.led.followers) == [3, 4]


def test_an_image_that_the_answer_has_overtaken_changes_nothing() -> None:
    harness = alone()
    harness.fetched(2, 0, 0)
    assert harness.joins(2, high_watermark=0)
    pending = harness.led.pending
    assert pending is not None
    harness.take(THREE._replace(isr=(1,)))
    assert harness.led.pending is pending, "another partition of its topic has changed"
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.led.handle_alter_partition(pending, answer))
    )
    harness.cluster.answer()
    assert (harness.led.isr, harness.led.partition_epoch, harness.led.pending) == ((1, 2), 1, None)
    harness.take(THREE._replace(isr=(1,)))
    assert harness.led.isr == (1, 2)
    # The controller has ended a reassignment with it: of that the answer says nothing.
    harness.take(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, partition_epoch=1))
    assert list(harness.led.followers) == [2]


@pytest.mark.parametrize(
    ("error", "stays", "again"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.FENCED_LEADER_EPOCH, True, False),
        (ErrorCode.INVALID_UPDATE_VERSION, True, False),
        (ErrorCode.INVALID_REQUEST, True, False),
        (ErrorCode.NEW_LEADER_ELECTED, True, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, True, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, True),
    ],
)
def test_a_refusal(error: ErrorCode, *, stays: bool, again: bool) -> None:
    harness = alone()
    harness.fetched(2, 0, 0)
    harness.joins(2, high_watermark=0)
    pending = harness.led.pending
    assert pending is not None
    heard: list[bool] = []
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: heard.append(harness.led.handle_alter_partition(pending, answer))
    )
    harness.cluster.answer(error)
    assert (heard, harness.led.pending is pending, harness.led.isr) == ([again], stays, (1,))


def test_the_fetches_of_who_was_refused_are_seen_again() -> None:
    """They had become quiet when it was about to join: it may join when it fetches next."""

    class Seen:
        fetched_ms = 0
        wakes: ClassVar[list[bool]] = []

        def changed(self, *, wake: bool) -> None:
            self.wakes.append(wake)

    harness = alone()
    harness.fetched(2, 0, 0)
    harness.led.followers[2].session_partition = Seen()
    harness.joins(2, high_watermark=0)
    pending = harness.led.pending
    assert pending is not None
    assert not Seen.wakes
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.led.handle_alter_partition(pending, answer))
    )
    harness.cluster.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert Seen.wakes == [False]
    assert harness.joins(2, high_watermark=0) == (1, 2)


@pytest.mark.parametrize("fields", [{"leader_epoch": 1}, {"partition_epoch": -1}])
def test_an_answer_of_another_epoch_is_left_to_the_metadata(fields: dict[str, int]) -> None:
    harness = alone()
    harness.fetched(2, 0, 0)
    harness.joins(2, high_watermark=0)
    pending = harness.led.pending
    assert pending is not None
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.led.handle_alter_partition(pending, answer))
    )
    harness.cluster.answer(**fields)
    assert (harness.led.isr, harness.led.pending) == ((1,), pending)


def test_the_low_watermark_is_of_those_that_live() -> None:
    harness = RemoteReplicasHarness()
    assert harness.led.low_watermark(7) == -1
    harness.led.followers[2].log_start_offset = 5
    harness.cluster.live(1, 2, 3, fenced=[3])
    assert (harness.led.low_watermark(7), harness.led.low_watermark(4)) == (5, 4)
