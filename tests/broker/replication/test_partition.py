"""A replica in its roles: what is promised of appends, who is told what when it loses the lead or its log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.replication.cluster import Cluster
from tests.broker.storage.log_bench import LogBench, batch, name

ALONE = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0)
TWO = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0)
ELSEWHERE = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1, partition_epoch=1)


class Poll:
    """A long poll that counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def partition_grew(self) -> None:
        self.woken += 1

    complete = partition_grew


class PartitionHarness:
    def __init__(self, topic_id: Uuid | None = None) -> None:
        self.host = VirtualHost(seed=1)
        self.cluster = Cluster(self.host)
        self.log = LogBench(MemoryDisk()).open(topic_id=topic_id)
        self.staged: list[Partition] = []
        self.offline: list[StorageError] = []
        self.told: list[tuple[str, ErrorCode | None]] = []
        self.waiting: list[Callable[[], None]] = []
        """Who waits for the log to be in its place."""
        self.partition = Partition(
            self.log,
            host=self.host,
            stage=self.staged.append,
            when_recoverable=lambda log, host, tell: self.waiting.append(tell),
            on_offline=lambda _, error: self.offline.append(error),
            leader_partitions=self.cluster.leading,
        )

    def tell(self, name: str) -> Callable[[ApiError | None], None]:
        return lambda error: self.told.append((name, None if error is None else ErrorCode(error.code)))

    def append(self, name: str, *, to_all: bool, timeout_ms: int | None = None) -> None:
        told = self.tell(name)
        self.partition.append(
            batch(name.encode()),
            now_ms=self.host.now_ms(),
            on_written=None if to_all else told,
            on_replicated=told if to_all else None,
            timeout_ms=timeout_ms,
        )

    def commit(self) -> list[tuple[str, ErrorCode | None]]:
        self.partition.commit()
        self.host.run_pending()
        return self.news()

    def news(self) -> list[tuple[str, ErrorCode | None]]:
        told, self.told = self.told, []
        return told


@pytest.fixture
def harness() -> PartitionHarness:
    return PartitionHarness()


def test_with_one_replica_both_promises_are_kept_in_the_turn(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE)
    timers = harness.host.timers
    harness.append("one", to_all=False)
    harness.append("all", to_all=True, timeout_ms=1_000)
    assert harness.staged == [harness.partition]
    assert (harness.news(), harness.partition.high_watermark) == ([], 0)
    assert harness.commit() == [("one", None), ("all", None)]
    assert (harness.partition.high_watermark, harness.host.timers) == (2, timers)


def test_written_is_before_replicated(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("first", to_all=True, timeout_ms=1_000)
    harness.append("one", to_all=False)
    harness.append("second", to_all=True)
    assert harness.commit() == [("one", None)]
    harness.partition.record_follower_fetch(2, 0)
    harness.partition.record_follower_fetch(3, 9)
    assert harness.news() == []
    harness.partition.record_follower_fetch(2, 1)
    assert (harness.news(), harness.partition.high_watermark) == ([("first", None)], 1)
    harness.host.advance(2_000)
    assert harness.news() == [], "its timer is gone, and who gives no limit waits on"
    harness.partition.record_follower_fetch(2, 3)
    assert harness.news() == [("second", None)]


def test_an_in_sync_set_that_shrinks_keeps_promises(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("all", to_all=True)
    assert harness.commit() == []
    harness.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert harness.news() == [("all", None)]


def test_one_that_shrinks_too_far_does_not(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(min_insync_replicas=2)
    harness.partition.become_leader(TWO)
    harness.append("all", to_all=True, timeout_ms=500)
    harness.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert harness.commit() == []
    with pytest.raises(ApiError) as refused:
        harness.append("more", to_all=True)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    harness.host.advance(500)
    assert harness.news() == [("all", ErrorCode.REQUEST_TIMED_OUT)]
    assert harness.log.log_end_offset == 1


def test_what_is_below_the_high_watermark_and_has_too_few_replicas_by_now_is_told_so(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(min_insync_replicas=2)
    harness.partition.become_leader(TWO)
    harness.append("all", to_all=True)
    harness.partition.record_follower_fetch(2, 1)
    harness.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    harness.log.high_watermark = 1
    assert harness.commit() == [("all", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


def send_again(harness: PartitionHarness, name: str, *, to_all: bool) -> None:
    """The same batch of one producer, whenever it is sent."""
    told = harness.tell(name)
    harness.partition.append(
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0),
        now_ms=harness.host.now_ms(),
        on_written=None if to_all else told,
        on_replicated=told if to_all else None,
    )


def test_a_batch_that_is_sent_again_waits_for_what_it_waited_for(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    send_again(harness, "first", to_all=True)
    assert harness.commit() == []
    send_again(harness, "again", to_all=True)
    send_again(harness, "again, for one", to_all=False)
    assert harness.news() == [("again, for one", None)]
    harness.partition.record_follower_fetch(2, 1)
    assert harness.news() == [("first", None), ("again", None)]
    send_again(harness, "once more", to_all=True)
    assert harness.news() == [("once more", None)]


def test_one_that_is_sent_again_while_the_first_is_on_its_way_to_the_disk_waits_for_the_disk(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    harness.partition.become_leader(ALONE)
    held = harness.host.hold_work()
    send_again(harness, "first", to_all=False)
    assert harness.commit() == []
    send_again(harness, "again", to_all=False)
    assert harness.commit() == []
    while held:
        held.pop().deliver()
        harness.host.run_pending()
    assert harness.news() == [("first", None), ("again", None)]


def test_nothing_is_promised_before_a_sync_that_is_asked_for(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    harness.append("all", to_all=True)
    harness.partition.commit()
    assert (harness.news(), harness.partition.high_watermark) == ([], 0)
    harness.host.run_pending()
    assert harness.news() == [("one", None), ("all", None)]
    assert harness.partition.high_watermark == harness.log.recovery_point == 2


def test_how_long_ago_the_last_sync_was_is_not_told_by_the_clock_on_the_wall(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(flush_ms=1_000)
    harness.partition.become_leader(ALONE)
    harness.append("first", to_all=False)
    harness.commit()
    harness.host.skew_ms = 3_600_000  # somebody sets the clock
    harness.append("second", to_all=False)
    harness.commit()
    assert harness.log.recovery_point == 0
    harness.host.skew_ms = -3_600_000
    harness.host.advance(1_000)
    harness.append("third", to_all=False)
    harness.commit()
    assert harness.log.recovery_point == 3


@pytest.fixture
def new() -> PartitionHarness:
    """Of a log that is not in its place yet."""
    return PartitionHarness(Uuid(b"\7" * 16))


def place(harness: PartitionHarness) -> None:
    name(harness.log)
    harness.waiting.pop()()


def test_nothing_is_promised_of_a_log_that_is_not_in_its_place(new: PartitionHarness) -> None:
    new.partition.become_leader(ALONE)
    assert new.waiting == []  # for nothing is in it
    for value in ("one", "two"):
        new.append(value, to_all=value == "two")
        assert new.commit() == []
    assert (new.partition.high_watermark, len(new.waiting)) == (0, 1)
    place(new)
    assert (new.news(), new.partition.high_watermark) == ([("one", None), ("two", None)], 2)


def test_a_flush_that_is_asked_for_comes_after_that(new: PartitionHarness) -> None:
    new.partition.become_leader(ALONE)
    new.log.config = new.log.config._replace(flush_messages=1)
    held = new.host.hold_work()
    new.append("one", to_all=False)
    assert (new.commit(), len(new.waiting), held) == ([], 1, [])
    place(new)
    assert (new.commit(), len(held)) == ([], 1)
    held.pop().deliver()
    new.host.run_pending()
    assert new.news() == [("one", None)]


def test_who_comes_to_lead_shows_nothing_before_that(new: PartitionHarness) -> None:
    new.partition.become_follower(ELSEWHERE)
    new.log.append_stored(batch(b"fetched"))
    new.log.commit()
    new.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert (new.partition.high_watermark, len(new.waiting)) == (0, 1)
    place(new)
    assert new.partition.high_watermark == 1


def test_a_follower_serves_nobody_and_keeps_its_log(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    poll = Poll()
    harness.partition.delayed_fetches[poll] = None
    harness.append("late", to_all=True, timeout_ms=1_000)
    assert harness.commit() == []
    harness.append("staged", to_all=True)
    harness.append("written", to_all=False)
    harness.partition.become_follower(ELSEWHERE)
    assert harness.news() == [
        ("written", None),
        ("late", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("staged", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    assert (harness.partition.role, harness.partition.leader_epoch, harness.log.log_end_offset) == (
        Role.FOLLOWER,
        1,
        3,
    )
    assert harness.log.latest_epoch == 0, "epochs begin with leaders"
    assert poll.woken
    with pytest.raises(ApiError) as refused:
        harness.append("refused", to_all=False)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.host.advance(1_000)
    assert harness.commit() == []


def test_a_leader_epoch_never_goes_back(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE._replace(leader_epoch=5))
    harness.partition.become_follower(ELSEWHERE)
    assert harness.partition.leader_epoch == 5
    harness.partition.become_leader(ALONE)
    assert harness.partition.leader_epoch == 5


def test_a_follower_can_lead_again_and_knows_nothing_of_others(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("one", to_all=False)
    harness.commit()
    harness.partition.record_follower_fetch(2, 1)
    harness.partition.become_follower(ELSEWHERE)
    harness.partition.record_follower_fetch(2, 9)
    harness.partition.become_leader(TWO._replace(leader_epoch=2, partition_epoch=2))
    harness.append("all", to_all=True)
    assert harness.commit()[1:] == []
    assert (harness.partition.high_watermark, harness.log.leader_epochs) == (1, [(0, 0), (2, 1)])
    harness.partition.record_follower_fetch(2, 2)
    assert harness.news() == [("all", None)]


def test_a_sync_that_ends_after_the_lead_is_lost_moves_nothing(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    harness.partition.commit()
    harness.partition.become_follower(ELSEWHERE)
    assert harness.news() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    harness.host.run_pending()
    assert (harness.news(), harness.partition.high_watermark, harness.log.recovery_point) == ([], 0, 1)


def test_who_waits_for_a_log_that_fails_is_told_so_once(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("late", to_all=True)
    harness.commit()
    harness.append("staged", to_all=False)
    for _ in range(2):
        harness.log.fail(StorageError("broken"))
        harness.partition.fail(StorageError("broken"))
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.commit() == [("late", failed), ("staged", failed)]
    assert len(harness.offline) == 1
    for again in (harness.partition.become_leader, harness.partition.become_follower):
        again(ALONE._replace(leader_epoch=5))
        assert harness.partition.role is Role.OFFLINE
    with pytest.raises(ApiError) as refused:
        harness.append("refused", to_all=False)
    assert refused.value.code == failed


@pytest.mark.parametrize("take_up", [Partition.become_leader, Partition.become_follower])
def test_a_log_that_has_failed_is_not_taken_up(
    harness: PartitionHarness, take_up: Callable[[Partition, PartitionImage], None]
) -> None:
    harness.log.fail(StorageError("broken"))
    with pytest.raises(StorageError):
        take_up(harness.partition, ALONE)


def test_a_replica_that_has_left_takes_no_role_again(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE)
    harness.append("staged", to_all=False)
    harness.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert harness.commit() == [("staged", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with pytest.raises(AssertionError):
        harness.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_who_leads_again_shows_nothing_that_is_still_on_its_way_to_the_disk(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    held = harness.host.hold_work()
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    assert harness.commit() == []
    harness.partition.become_follower(ELSEWHERE)
    assert harness.news() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    harness.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert harness.partition.high_watermark == 0
    held[0].run()
    held[0].deliver()
    harness.host.run_pending()
    assert (harness.partition.high_watermark, harness.news()) == (1, [])


def test_an_acknowledgement_that_fails_holds_up_nobody(harness: PartitionHarness) -> None:
    def fails(error: ApiError | None) -> None:
        raise ValueError(error)

    harness.partition.become_leader(ALONE)
    harness.partition.append(batch(b"v"), now_ms=harness.host.now_ms(), on_written=fails)
    harness.append("next", to_all=False)
    assert harness.commit() == [("next", None)]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_clients_of_another_epoch_are_fenced(
    harness: PartitionHarness, epoch: int, code: ErrorCode | None
) -> None:
    harness.partition.become_leader(ALONE._replace(leader_epoch=3))
    if code is None:
        harness.partition.check_leader_epoch(epoch)
    else:
        with pytest.raises(ApiError) as refused:
            harness.partition.check_leader_epoch(epoch)
        assert refused.value.code == code


def test_a_controller_that_is_behind_is_asked_again_after_a_while(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO._replace(isr=(1,)))
    harness.partition.record_follower_fetch(2, 0, broker_epoch=20)
    assert harness.cluster.wanted() == [(1, 2)]
    harness.cluster.answer(ErrorCode.NOT_CONTROLLER)
    assert harness.cluster.wanted() == []
    harness.host.advance(50)
    assert harness.cluster.wanted() == [(1, 2)]
    harness.cluster.answer(ErrorCode.NOT_CONTROLLER)
    harness.partition.become_leader(TWO._replace(partition_epoch=1))
    harness.host.advance(50)
    assert harness.cluster.wanted() == [], "the metadata has told meanwhile"


def test_the_isr_grows_and_shrinks_as_the_controller_agrees(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO._replace(isr=(1,)))
    harness.append("alone", to_all=True)
    assert harness.commit() == [("alone", None)]
    harness.partition.record_follower_fetch(2, 1, broker_epoch=20)
    harness.append("waits for both", to_all=True)
    assert harness.commit() == [], "before it is known whether the controller agrees"
    harness.cluster.answer()
    assert harness.news() == []
    leading = harness.cluster.leading
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 0)
    harness.host.advance(30_001)
    harness.partition.maybe_shrink_isr()
    assert harness.cluster.wanted() == [(1,)]
    assert harness.news() == []
    harness.cluster.answer()
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 1)
    assert harness.news() == [("waits for both", None)]
