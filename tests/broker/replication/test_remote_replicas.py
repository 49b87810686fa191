"""The followers of a leader: high watermark, ISR expansion and ISR shrinking."""

from __future__ import annotations

from typing import ClassVar

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.remote_replicas import RemoteReplicas
from kwire.host.host import InternodeTime
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.replication.fake_cluster import FakeCluster

TOPIC_PARTITION = (Uuid(bytes(15) + b"\1"), 0)
THREE = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)


class RemoteReplicasHarness:
    """Broker 1 as the leader, with a log end offset that the test gives."""

    def __init__(self, image: PartitionImage = THREE, end_offset: int = 0) -> None:
        self.host = VirtualHost(seed=1)
        self.cluster = FakeCluster(self.host)
        self.remote = RemoteReplicas(self.cluster.leading)
        self.update(image, end_offset)

    def update(self, image: PartitionImage, end_offset: int = 0) -> None:
        self.remote.update(image, end_offset, self.host.internode_clock.monotonic_ms())

    def fetch_from(self, broker_id: int, offset: int, end_offset: int, *, epoch: int | None = None) -> None:
        self.remote.followers[broker_id].record_fetch(
            offset,
            log_start_offset=0,
            broker_epoch=10 * broker_id if epoch is None else epoch,
            leader_end_offset=end_offset,
            now_ms=self.host.internode_clock.monotonic_ms(),
            session_partition=None,
        )

    def high_watermark(self, end_offset: int, min_insync_replicas: int = 1) -> int:
        return self.remote.high_watermark(end_offset, end_offset, min_insync_replicas)

    def expanded_isr(self, broker_id: int, high_watermark: int) -> tuple[int, ...] | None:
        pending = self.remote.prepare_expand(
            TOPIC_PARTITION, self.remote.followers[broker_id], high_watermark
        )
        return None if pending is None else pending.isr

    def shrunk_isr(self, end_offset: int) -> tuple[int, ...] | None:
        pending = self.remote.prepare_shrink(
            TOPIC_PARTITION, end_offset, self.host.internode_clock.monotonic_ms()
        )
        return None if pending is None else pending.isr


def leader_only(end_offset: int = 0) -> RemoteReplicasHarness:
    """Return a harness with an ISR of the leader only, and this log end offset at its election."""
    return RemoteReplicasHarness(THREE._replace(isr=(1,)), end_offset)


def test_high_watermark_is_the_slowest_replicas_offset() -> None:
    harness = RemoteReplicasHarness()
    assert harness.high_watermark(9) == -1, "the followers have not fetched yet"
    harness.fetch_from(2, 5, 9)
    assert harness.high_watermark(9) == -1
    harness.fetch_from(3, 8, 9)
    assert harness.high_watermark(9) == 5
    harness.fetch_from(2, 9, 9)
    assert harness.high_watermark(9) == 8
    assert harness.high_watermark(4) == 4


def test_replica_outside_the_isr_that_lags_is_ignored() -> None:
    harness = RemoteReplicasHarness(THREE._replace(isr=(1, 2)))
    harness.fetch_from(3, 1, 6)
    harness.fetch_from(2, 6, 6)
    assert harness.high_watermark(6) == 6


@pytest.mark.parametrize("why", ["eligible", "fenced", "shutting down", "old broker epoch", "lagging"])
def test_caught_up_replica_holds_the_high_watermark_before_it_joins(why: str) -> None:
    harness = leader_only()
    harness.fetch_from(2, 5, 5, epoch=19 if why == "old broker epoch" else 20)
    harness.cluster.set_brokers(
        1, 2, 3, fenced=[2] if why == "fenced" else (), shutting_down=[2] if why == "shutting down" else ()
    )
    harness.host.advance(30_001 if why == "lagging" else 30_000)
    assert harness.high_watermark(9) == (5 if why == "eligible" else 9)


def test_replica_whose_directory_is_lost_is_ignored_outside_the_isr() -> None:
    """The broker is alive and was caught up recently."""
    ours, lost, fresh = (Uuid(bytes(15) + bytes([number])) for number in (101, 102, 103))
    harness = RemoteReplicasHarness(THREE._replace(directories=(ours, lost, fresh)))
    for broker_id in (2, 3):
        harness.fetch_from(broker_id, 5, 5)
    harness.fetch_from(3, 9, 9)
    assert harness.high_watermark(9) == 5
    brokers = harness.cluster.image.brokers
    harness.cluster.image.brokers = {**brokers, 2: brokers[2]._replace(log_dirs=(fresh,))}
    assert harness.high_watermark(9) == 5, "an ISR member holds the high watermark in any case"
    harness.update(THREE._replace(directories=(ours, lost, fresh), isr=(1, 3), partition_epoch=1))
    assert harness.high_watermark(9) == 9


@pytest.mark.parametrize(
    ("isr", "replicas", "min_isr", "under_min_isr"),
    [
        ((1,), (1, 2), 1, False),
        ((1,), (1, 2), 2, True),
        ((1, 2), (1, 2), 3, False),
        ((1, 2), (1, 2, 3), 2, False),
        ((1, 2), (1, 2, 3), 3, True),
    ],
)
def test_high_watermark_stays_while_the_isr_is_under_min_isr(
    isr: tuple[int, ...], replicas: tuple[int, ...], min_isr: int, *, under_min_isr: bool
) -> None:
    """KIP-966: min.insync.replicas is limited to the replication factor."""
    harness = RemoteReplicasHarness(PartitionImage(replicas=replicas, isr=isr, leader=1))
    for broker_id in isr[1:]:
        harness.fetch_from(broker_id, 9, 9)
    assert (
        harness.remote.is_under_min_isr(min_isr)
        == harness.remote.is_maximal_isr_under_min(min_isr)
        == under_min_isr
    )
    assert harness.high_watermark(9, min_isr) == (-1 if under_min_isr else 9)


def test_follower_joins_at_the_high_watermark_and_leader_epoch_start() -> None:
    harness = leader_only(end_offset=5)
    harness.fetch_from(2, 4, 9)
    assert harness.expanded_isr(2, high_watermark=3) is None, (
        "records before the leader epoch may be committed"
    )
    harness.fetch_from(2, 6, 9)
    assert harness.expanded_isr(2, high_watermark=7) is None
    assert harness.expanded_isr(2, high_watermark=6) == (1, 2)
    assert harness.expanded_isr(2, high_watermark=6) is None, "the change is pending already"
    assert harness.remote.pending is not None
    assert harness.remote.pending.change.new_isr == ((1, 10), (2, 20))


def test_pending_isr_member_holds_the_high_watermark() -> None:
    harness = leader_only()
    harness.fetch_from(2, 5, 9)
    assert harness.expanded_isr(2, high_watermark=5)
    harness.cluster.set_brokers(1, 3)
    harness.host.advance(60_000)
    assert harness.high_watermark(9) == 5
    assert (harness.remote.is_under_min_isr(2), harness.remote.is_maximal_isr_under_min(2)) == (True, False)
    harness.update(THREE._replace(isr=(1,), partition_epoch=1))
    assert harness.high_watermark(9) == 9


@pytest.mark.parametrize("epoch", [19, 21, None])
def test_follower_with_another_broker_epoch_does_not_join(epoch: int | None) -> None:
    harness = leader_only()
    if epoch is not None:
        harness.fetch_from(2, 5, 5, epoch=epoch)
    assert harness.expanded_isr(2, high_watermark=0) is None
    harness.fetch_from(2, 5, 5, epoch=-1)
    assert harness.expanded_isr(2, high_watermark=0) == (1, 2), "an old broker that sends no broker epoch"


def test_lagging_replica_is_removed_from_the_isr() -> None:
    harness = RemoteReplicasHarness()
    harness.fetch_from(2, 5, 5)
    harness.host.advance(30_000)
    harness.fetch_from(2, 7, 9)
    assert harness.shrunk_isr(9) is None
    harness.host.advance(1)
    harness.fetch_from(3, 8, 9)
    assert harness.shrunk_isr(9) == (1,), "its last fetch reached only the log end of the fetch before"
    assert harness.high_watermark(9) == 7, "a replica counts until the controller has removed it"
    harness.host.advance(60_000)
    assert harness.shrunk_isr(9) is None


def test_replica_at_the_log_end_stays_in_the_isr_without_fetching() -> None:
    harness = RemoteReplicasHarness()
    harness.fetch_from(2, 5, 5)
    harness.fetch_from(3, 5, 5)
    harness.host.advance(600_000)
    assert harness.shrunk_isr(5) is None
    assert harness.shrunk_isr(6) == (1,)


def test_replica_that_reached_the_previous_log_end_stays_in_the_isr() -> None:
    harness = RemoteReplicasHarness()
    for end_offset in range(10, 200, 10):
        harness.fetch_from(2, end_offset - 10, end_offset)
        harness.fetch_from(3, 0, end_offset)
        harness.host.advance(10_000)
    assert harness.shrunk_isr(200) == (1, 2)


def test_new_leader_epoch_resets_the_lag_of_isr_members_only() -> None:
    harness = RemoteReplicasHarness(THREE._replace(isr=(1, 2)))
    harness.fetch_from(3, 5, 5)
    harness.host.advance(100_000)
    harness.update(THREE._replace(isr=(1, 2), leader_epoch=1, partition_epoch=1), 5)
    harness.host.advance(30_000)
    assert harness.shrunk_isr(6) is None
    assert harness.high_watermark(6) == -1, "broker 2 counts, broker 3 does not"
    harness.host.advance(1)
    assert harness.shrunk_isr(6) == (1,)


def test_follower_state_survives_an_isr_change() -> None:
    harness = RemoteReplicasHarness()
    harness.fetch_from(2, 5, 9)
    harness.fetch_from(3, 6, 9)
    harness.update(THREE._replace(isr=(1, 3), partition_epoch=1))
    harness.host.advance(30_001)
    assert harness.high_watermark(9) == 6
    harness.update(THREE._replace(partition_epoch=2))
    assert harness.high_watermark(9) == 5
    harness.update(THREE._replace(replicas=(1, 3, 4), isr=(1, 3), partition_epoch=3))
    assert sorted(harness.remote.followers) == [3, 4]


def test_image_older_than_the_alter_partition_response_is_ignored() -> None:
    harness = leader_only()
    harness.fetch_from(2, 0, 0)
    assert harness.expanded_isr(2, high_watermark=0)
    pending = harness.remote.pending
    assert pending is not None
    harness.update(THREE._replace(isr=(1,)))
    assert harness.remote.pending is pending, "the image changed for another partition of the topic"
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.remote.handle_alter_partition(pending, answer))
    )
    harness.cluster.respond()
    assert (harness.remote.isr, harness.remote.partition_epoch, harness.remote.pending) == ((1, 2), 1, None)  # type: ignore[comparison-overlap]
    harness.update(THREE._replace(isr=(1,)))
    assert harness.remote.isr == (1, 2)
    # The controller completed a reassignment, which the response does not include.
    harness.update(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, partition_epoch=1))
    assert list(harness.remote.followers) == [2]


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
def test_alter_partition_error(error: ErrorCode, *, stays: bool, again: bool) -> None:
    harness = leader_only()
    harness.fetch_from(2, 0, 0)
    harness.expanded_isr(2, high_watermark=0)
    pending = harness.remote.pending
    assert pending is not None
    retries: list[bool] = []
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: retries.append(harness.remote.handle_alter_partition(pending, answer))
    )
    harness.cluster.respond(error)
    assert (retries, harness.remote.pending is pending, harness.remote.isr) == ([again], stays, (1,))


def test_ineligible_replica_may_request_to_join_at_its_next_fetch() -> None:
    """The leader need not record each fetch of a replica in the ISR, nor of one that it is adding.

    If the request to add the replica fails, the leader must record the fetches again.
    """

    class Seen:
        fetched_ms = InternodeTime(0)
        wakes: ClassVar[list[bool]] = []

        def changed(self, *, wake: bool) -> None:
            self.wakes.append(wake)

    harness = leader_only()
    harness.fetch_from(2, 0, 0)
    harness.remote.followers[2].session_partition = Seen()
    harness.expanded_isr(2, high_watermark=0)
    pending = harness.remote.pending
    assert pending is not None
    assert not Seen.wakes
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.remote.handle_alter_partition(pending, answer))
    )
    harness.cluster.respond(ErrorCode.INELIGIBLE_REPLICA)
    assert Seen.wakes == [False]
    assert harness.expanded_isr(2, high_watermark=0) == (1, 2)


@pytest.mark.parametrize("fields", [{"leader_epoch": 1}, {"partition_epoch": -1}])
def test_alter_partition_response_of_another_epoch_is_ignored(fields: dict[str, int]) -> None:
    harness = leader_only()
    harness.fetch_from(2, 0, 0)
    harness.expanded_isr(2, high_watermark=0)
    pending = harness.remote.pending
    assert pending is not None
    harness.cluster.leading.alter_partition.submit(
        pending.change, lambda answer: print(harness.remote.handle_alter_partition(pending, answer))
    )
    harness.cluster.respond(**fields)  # type: ignore[arg-type]
    assert (harness.remote.isr, harness.remote.pending) == ((1,), pending)


def test_low_watermark_ignores_fenced_brokers() -> None:
    harness = RemoteReplicasHarness()
    assert harness.remote.low_watermark(7) == -1
    harness.remote.followers[2].log_start_offset = 5
    harness.cluster.set_brokers(1, 2, 3, fenced=[3])
    assert (harness.remote.low_watermark(7), harness.remote.low_watermark(4)) == (5, 4)
