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


class Rig:
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
def rig() -> Rig:
    return Rig()


def test_with_one_replica_both_promises_are_kept_in_the_turn(rig: Rig) -> None:
    rig.partition.become_leader(ALONE)
    timers = rig.host.timers
    rig.append("one", to_all=False)
    rig.append("all", to_all=True, timeout_ms=1_000)
    assert rig.staged == [rig.partition]
    assert (rig.news(), rig.partition.high_watermark) == ([], 0)
    assert rig.commit() == [("one", None), ("all", None)]
    assert (rig.partition.high_watermark, rig.host.timers) == (2, timers)


def test_written_is_before_replicated(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    rig.append("first", to_all=True, timeout_ms=1_000)
    rig.append("one", to_all=False)
    rig.append("second", to_all=True)
    assert rig.commit() == [("one", None)]
    rig.partition.record_follower_fetch(2, 0)
    rig.partition.record_follower_fetch(3, 9)
    assert rig.news() == []
    rig.partition.record_follower_fetch(2, 1)
    assert (rig.news(), rig.partition.high_watermark) == ([("first", None)], 1)
    rig.host.advance(2_000)
    assert rig.news() == [], "its timer is gone, and who gives no limit waits on"
    rig.partition.record_follower_fetch(2, 3)
    assert rig.news() == [("second", None)]


def test_an_in_sync_set_that_shrinks_keeps_promises(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    rig.append("all", to_all=True)
    assert rig.commit() == []
    rig.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert rig.news() == [("all", None)]


def test_one_that_shrinks_too_far_does_not(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(min_insync_replicas=2)
    rig.partition.become_leader(TWO)
    rig.append("all", to_all=True, timeout_ms=500)
    rig.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert rig.commit() == []
    with pytest.raises(ApiError) as refused:
        rig.append("more", to_all=True)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    rig.host.advance(500)
    assert rig.news() == [("all", ErrorCode.REQUEST_TIMED_OUT)]
    assert rig.log.log_end_offset == 1


def test_what_is_below_the_high_watermark_and_has_too_few_replicas_by_now_is_told_so(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(min_insync_replicas=2)
    rig.partition.become_leader(TWO)
    rig.append("all", to_all=True)
    rig.partition.record_follower_fetch(2, 1)
    rig.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    rig.log.high_watermark = 1
    assert rig.commit() == [("all", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


def send_again(rig: Rig, name: str, *, to_all: bool) -> None:
    """The same batch of one producer, whenever it is sent."""
    told = rig.tell(name)
    rig.partition.append(
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0),
        now_ms=rig.host.now_ms(),
        on_written=None if to_all else told,
        on_replicated=told if to_all else None,
    )


def test_a_batch_that_is_sent_again_waits_for_what_it_waited_for(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    send_again(rig, "first", to_all=True)
    assert rig.commit() == []
    send_again(rig, "again", to_all=True)
    send_again(rig, "again, for one", to_all=False)
    assert rig.news() == [("again, for one", None)]
    rig.partition.record_follower_fetch(2, 1)
    assert rig.news() == [("first", None), ("again", None)]
    send_again(rig, "once more", to_all=True)
    assert rig.news() == [("once more", None)]


def test_one_that_is_sent_again_while_the_first_is_on_its_way_to_the_disk_waits_for_the_disk(
    rig: Rig,
) -> None:
    rig.log.config = rig.log.config._replace(flush_messages=1)
    rig.partition.become_leader(ALONE)
    held = rig.host.hold_work()
    send_again(rig, "first", to_all=False)
    assert rig.commit() == []
    send_again(rig, "again", to_all=False)
    assert rig.commit() == []
    while held:
        held.pop().deliver()
        rig.host.run_pending()
    assert rig.news() == [("first", None), ("again", None)]


def test_nothing_is_promised_before_a_sync_that_is_asked_for(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(flush_messages=1)
    rig.partition.become_leader(ALONE)
    rig.append("one", to_all=False)
    rig.append("all", to_all=True)
    rig.partition.commit()
    assert (rig.news(), rig.partition.high_watermark) == ([], 0)
    rig.host.run_pending()
    assert rig.news() == [("one", None), ("all", None)]
    assert rig.partition.high_watermark == rig.log.recovery_point == 2


def test_how_long_ago_the_last_sync_was_is_not_told_by_the_clock_on_the_wall(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(flush_ms=1_000)
    rig.partition.become_leader(ALONE)
    rig.append("first", to_all=False)
    rig.commit()
    rig.host.skew_ms = 3_600_000  # somebody sets the clock
    rig.append("second", to_all=False)
    rig.commit()
    assert rig.log.recovery_point == 0
    rig.host.skew_ms = -3_600_000
    rig.host.advance(1_000)
    rig.append("third", to_all=False)
    rig.commit()
    assert rig.log.recovery_point == 3


@pytest.fixture
def new() -> Rig:
    """Of a log that is not in its place yet."""
    return Rig(Uuid(b"\7" * 16))


def place(rig: Rig) -> None:
    name(rig.log)
    rig.waiting.pop()()


def test_nothing_is_promised_of_a_log_that_is_not_in_its_place(new: Rig) -> None:
    new.partition.become_leader(ALONE)
    assert new.waiting == []  # for nothing is in it
    for value in ("one", "two"):
        new.append(value, to_all=value == "two")
        assert new.commit() == []
    assert (new.partition.high_watermark, len(new.waiting)) == (0, 1)
    place(new)
    assert (new.news(), new.partition.high_watermark) == ([("one", None), ("two", None)], 2)


def test_a_flush_that_is_asked_for_comes_after_that(new: Rig) -> None:
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


def test_who_comes_to_lead_shows_nothing_before_that(new: Rig) -> None:
    new.partition.become_follower(ELSEWHERE)
    new.log.append_stored(batch(b"fetched"))
    new.log.commit()
    new.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert (new.partition.high_watermark, len(new.waiting)) == (0, 1)
    place(new)
    assert new.partition.high_watermark == 1


def test_a_follower_serves_nobody_and_keeps_its_log(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    poll = Poll()
    rig.partition.delayed_fetches[poll] = None
    rig.append("late", to_all=True, timeout_ms=1_000)
    assert rig.commit() == []
    rig.append("staged", to_all=True)
    rig.append("written", to_all=False)
    rig.partition.become_follower(ELSEWHERE)
    assert rig.news() == [
        ("written", None),
        ("late", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("staged", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    assert (rig.partition.role, rig.partition.leader_epoch, rig.log.log_end_offset) == (Role.FOLLOWER, 1, 3)
    assert rig.log.latest_epoch == 0, "epochs begin with leaders"
    assert poll.woken
    with pytest.raises(ApiError) as refused:
        rig.append("refused", to_all=False)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.host.advance(1_000)
    assert rig.commit() == []


def test_a_leader_epoch_never_goes_back(rig: Rig) -> None:
    rig.partition.become_leader(ALONE._replace(leader_epoch=5))
    rig.partition.become_follower(ELSEWHERE)
    assert rig.partition.leader_epoch == 5
    rig.partition.become_leader(ALONE)
    assert rig.partition.leader_epoch == 5


def test_a_follower_can_lead_again_and_knows_nothing_of_others(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    rig.append("one", to_all=False)
    rig.commit()
    rig.partition.record_follower_fetch(2, 1)
    rig.partition.become_follower(ELSEWHERE)
    rig.partition.record_follower_fetch(2, 9)
    rig.partition.become_leader(TWO._replace(leader_epoch=2, partition_epoch=2))
    rig.append("all", to_all=True)
    assert rig.commit()[1:] == []
    assert (rig.partition.high_watermark, rig.log.leader_epochs) == (1, [(0, 0), (2, 1)])
    rig.partition.record_follower_fetch(2, 2)
    assert rig.news() == [("all", None)]


def test_a_sync_that_ends_after_the_lead_is_lost_moves_nothing(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(flush_messages=1)
    rig.partition.become_leader(ALONE)
    rig.append("one", to_all=False)
    rig.partition.commit()
    rig.partition.become_follower(ELSEWHERE)
    assert rig.news() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    rig.host.run_pending()
    assert (rig.news(), rig.partition.high_watermark, rig.log.recovery_point) == ([], 0, 1)


def test_who_waits_for_a_log_that_fails_is_told_so_once(rig: Rig) -> None:
    rig.partition.become_leader(TWO)
    rig.append("late", to_all=True)
    rig.commit()
    rig.append("staged", to_all=False)
    for _ in range(2):
        rig.log.fail(StorageError("broken"))
        rig.partition.fail(StorageError("broken"))
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.commit() == [("late", failed), ("staged", failed)]
    assert len(rig.offline) == 1
    for again in (rig.partition.become_leader, rig.partition.become_follower):
        again(ALONE._replace(leader_epoch=5))
        assert rig.partition.role is Role.OFFLINE
    with pytest.raises(ApiError) as refused:
        rig.append("refused", to_all=False)
    assert refused.value.code == failed


@pytest.mark.parametrize("take_up", [Partition.become_leader, Partition.become_follower])
def test_a_log_that_has_failed_is_not_taken_up(
    rig: Rig, take_up: Callable[[Partition, PartitionImage], None]
) -> None:
    rig.log.fail(StorageError("broken"))
    with pytest.raises(StorageError):
        take_up(rig.partition, ALONE)


def test_a_replica_that_has_left_takes_no_role_again(rig: Rig) -> None:
    rig.partition.become_leader(ALONE)
    rig.append("staged", to_all=False)
    rig.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert rig.commit() == [("staged", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with pytest.raises(AssertionError):
        rig.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_who_leads_again_shows_nothing_that_is_still_on_its_way_to_the_disk(rig: Rig) -> None:
    rig.log.config = rig.log.config._replace(flush_messages=1)
    held = rig.host.hold_work()
    rig.partition.become_leader(ALONE)
    rig.append("one", to_all=False)
    assert rig.commit() == []
    rig.partition.become_follower(ELSEWHERE)
    assert rig.news() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    rig.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert rig.partition.high_watermark == 0
    held[0].run()
    held[0].deliver()
    rig.host.run_pending()
    assert (rig.partition.high_watermark, rig.news()) == (1, [])


def test_an_acknowledgement_that_fails_holds_up_nobody(rig: Rig) -> None:
    def fails(error: ApiError | None) -> None:
        raise ValueError(error)

    rig.partition.become_leader(ALONE)
    rig.partition.append(batch(b"v"), now_ms=rig.host.now_ms(), on_written=fails)
    rig.append("next", to_all=False)
    assert rig.commit() == [("next", None)]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_clients_of_another_epoch_are_fenced(rig: Rig, epoch: int, code: ErrorCode | None) -> None:
    rig.partition.become_leader(ALONE._replace(leader_epoch=3))
    if code is None:
        rig.partition.check_leader_epoch(epoch)
    else:
        with pytest.raises(ApiError) as refused:
            rig.partition.check_leader_epoch(epoch)
        assert refused.value.code == code


def test_a_controller_that_is_behind_is_asked_again_after_a_while(rig: Rig) -> None:
    rig.partition.become_leader(TWO._replace(isr=(1,)))
    rig.partition.record_follower_fetch(2, 0, broker_epoch=20)
    assert rig.cluster.wanted() == [(1, 2)]
    rig.cluster.answer(ErrorCode.NOT_CONTROLLER)
    assert rig.cluster.wanted() == []
    rig.host.advance(50)
    assert rig.cluster.wanted() == [(1, 2)]
    rig.cluster.answer(ErrorCode.NOT_CONTROLLER)
    rig.partition.become_leader(TWO._replace(partition_epoch=1))
    rig.host.advance(50)
    assert rig.cluster.wanted() == [], "the metadata has told meanwhile"


def test_the_isr_grows_and_shrinks_as_the_controller_agrees(rig: Rig) -> None:
    rig.partition.become_leader(TWO._replace(isr=(1,)))
    rig.append("alone", to_all=True)
    assert rig.commit() == [("alone", None)]
    rig.partition.record_follower_fetch(2, 1, broker_epoch=20)
    rig.append("waits for both", to_all=True)
    assert rig.commit() == [], "before it is known whether the controller agrees"
    rig.cluster.answer()
    assert rig.news() == []
    leading = rig.cluster.leading
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 0)
    rig.host.advance(30_001)
    rig.partition.maybe_shrink_isr()
    assert rig.cluster.wanted() == [(1,)]
    assert rig.news() == []
    rig.cluster.answer()
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 1)
    assert rig.news() == [("waits for both", None)]
