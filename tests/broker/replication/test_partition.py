"""A partition as leader and follower: delayed produces, the high watermark, and failures of its log."""

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
from tests.broker.replication.fake_cluster import FakeCluster
from tests.broker.storage.log_harness import LogHarness, batch, name

ALONE = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0)
TWO = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0)
ELSEWHERE = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1, partition_epoch=1)


class FakeDelayedFetch:
    """A delayed fetch that counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def try_complete(self) -> None:
        self.woken += 1

    complete = try_complete


class PartitionHarness:
    def __init__(self, topic_id: Uuid | None = None) -> None:
        self.host = VirtualHost(seed=1)
        self.cluster = FakeCluster(self.host)
        self.log = LogHarness(MemoryDisk()).open(topic_id=topic_id)
        self.staged: list[Partition] = []
        self.offline: list[StorageError] = []
        self.results: list[tuple[str, ErrorCode | None]] = []
        self.recoverable_callbacks: list[Callable[[], None]] = []
        """Callbacks that wait until the log's directory is durable."""
        self.partition = Partition(
            self.log,
            host=self.host,
            stage=self.staged.append,
            when_recoverable=lambda log, host, done: self.recoverable_callbacks.append(done),
            on_offline=lambda _, error: self.offline.append(error),
            leader_partitions=self.cluster.leading,
        )

    def callback(self, name: str) -> Callable[[ApiError | None], None]:
        return lambda error: self.results.append((name, None if error is None else ErrorCode(error.code)))

    def append(self, name: str, *, to_all: bool, timeout_ms: int | None = None) -> None:
        callback = self.callback(name)
        self.partition.append(
            batch(name.encode()),
            now_ms=self.host.now_ms(),
            on_written=None if to_all else callback,
            on_replicated=callback if to_all else None,
            timeout_ms=timeout_ms,
        )

    def commit(self) -> list[tuple[str, ErrorCode | None]]:
        self.partition.commit()
        self.host.run_pending()
        return self.take_results()

    def take_results(self) -> list[tuple[str, ErrorCode | None]]:
        results, self.results = self.results, []
        return results


@pytest.fixture
def harness() -> PartitionHarness:
    return PartitionHarness()


def test_produce_to_one_replica_completes_within_the_turn(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE)
    timers = harness.host.timers
    harness.append("one", to_all=False)
    harness.append("all", to_all=True, timeout_ms=1_000)
    assert harness.staged == [harness.partition]
    assert (harness.take_results(), harness.partition.high_watermark) == ([], 0)
    assert harness.commit() == [("one", None), ("all", None)]
    assert (harness.partition.high_watermark, harness.host.timers) == (2, timers)


def test_acks_1_completes_before_acks_all(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("first", to_all=True, timeout_ms=1_000)
    harness.append("one", to_all=False)
    harness.append("second", to_all=True)
    assert harness.commit() == [("one", None)]
    harness.partition.record_follower_fetch(2, 0)
    harness.partition.record_follower_fetch(3, 9)
    assert harness.take_results() == []
    harness.partition.record_follower_fetch(2, 1)
    assert (harness.take_results(), harness.partition.high_watermark) == ([("first", None)], 1)
    harness.host.advance(2_000)
    assert harness.take_results() == [], "no timeout for the first anymore, and none for the second"
    harness.partition.record_follower_fetch(2, 3)
    assert harness.take_results() == [("second", None)]


def test_isr_shrink_completes_acks_all(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    harness.append("all", to_all=True)
    assert harness.commit() == []
    harness.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert harness.take_results() == [("all", None)]


def test_isr_below_min_insync_replicas_does_not_complete_acks_all(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(min_insync_replicas=2)
    harness.partition.become_leader(TWO)
    harness.append("all", to_all=True, timeout_ms=500)
    harness.partition.become_leader(TWO._replace(isr=(1,), partition_epoch=1))
    assert harness.commit() == []
    with pytest.raises(ApiError) as raised:
        harness.append("more", to_all=True)
    assert raised.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    harness.host.advance(500)
    assert harness.take_results() == [("all", ErrorCode.REQUEST_TIMED_OUT)]
    assert harness.log.log_end_offset == 1


def test_acks_all_returns_not_enough_replicas_after_append(
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
    """Append the same batch of one producer again."""
    callback = harness.callback(name)
    harness.partition.append(
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0),
        now_ms=harness.host.now_ms(),
        on_written=None if to_all else callback,
        on_replicated=callback if to_all else None,
    )


def test_duplicate_batch_waits_for_the_same_acks(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    send_again(harness, "first", to_all=True)
    assert harness.commit() == []
    send_again(harness, "again", to_all=True)
    send_again(harness, "again with acks=1", to_all=False)
    assert harness.take_results() == [("again with acks=1", None)]
    harness.partition.record_follower_fetch(2, 1)
    assert harness.take_results() == [("first", None), ("again", None)]
    send_again(harness, "once more", to_all=True)
    assert harness.take_results() == [("once more", None)]


def test_duplicate_batch_waits_for_the_flush_of_the_first(
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
    assert harness.take_results() == [("first", None), ("again", None)]


def test_produce_completes_after_the_configured_flush(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    harness.append("all", to_all=True)
    harness.partition.commit()
    assert (harness.take_results(), harness.partition.high_watermark) == ([], 0)
    harness.host.run_pending()
    assert harness.take_results() == [("one", None), ("all", None)]
    assert harness.partition.high_watermark == harness.log.recovery_point == 2


def test_flush_interval_is_measured_on_the_monotonic_clock(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(flush_ms=1_000)
    harness.partition.become_leader(ALONE)
    harness.append("first", to_all=False)
    harness.commit()
    harness.host.skew_ms = 3_600_000  # the wall clock jumps
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
    """Return a partition of a new log whose directory is not durable yet."""
    return PartitionHarness(Uuid(b"\7" * 16))


def make_recoverable(harness: PartitionHarness) -> None:
    name(harness.log)
    harness.recoverable_callbacks.pop()()


def test_produce_to_a_new_log_waits_for_its_directory_to_be_durable(new: PartitionHarness) -> None:
    new.partition.become_leader(ALONE)
    assert new.recoverable_callbacks == []  # the log is empty
    for value in ("one", "two"):
        new.append(value, to_all=value == "two")
        assert new.commit() == []
    assert (new.partition.high_watermark, len(new.recoverable_callbacks)) == (0, 1)
    make_recoverable(new)
    assert (new.take_results(), new.partition.high_watermark) == ([("one", None), ("two", None)], 2)


def test_flush_of_a_new_log_follows_its_directory_sync(new: PartitionHarness) -> None:
    new.partition.become_leader(ALONE)
    new.log.config = new.log.config._replace(flush_messages=1)
    held = new.host.hold_work()
    new.append("one", to_all=False)
    assert (new.commit(), len(new.recoverable_callbacks), held) == ([], 1, [])
    make_recoverable(new)
    assert (new.commit(), len(held)) == ([], 1)
    held.pop().deliver()
    new.host.run_pending()
    assert new.take_results() == [("one", None)]


def test_new_leader_of_a_new_log_waits_for_its_directory(new: PartitionHarness) -> None:
    new.partition.become_follower(ELSEWHERE)
    new.log.append_stored(batch(b"fetched"))
    new.log.commit()
    new.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert (new.partition.high_watermark, len(new.recoverable_callbacks)) == (0, 1)
    make_recoverable(new)
    assert new.partition.high_watermark == 1


def test_becoming_follower_fails_produces_and_keeps_the_log(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO)
    poll = FakeDelayedFetch()
    harness.partition.delayed_fetches[poll] = None
    harness.append("late", to_all=True, timeout_ms=1_000)
    assert harness.commit() == []
    harness.append("staged", to_all=True)
    harness.append("written", to_all=False)
    harness.partition.become_follower(ELSEWHERE)
    assert harness.take_results() == [
        ("written", None),
        ("late", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("staged", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    assert (harness.partition.role, harness.partition.leader_epoch, harness.log.log_end_offset) == (
        Role.FOLLOWER,
        1,
        3,
    )
    assert harness.log.latest_epoch == 0, "only a leader starts an epoch"
    assert poll.woken
    with pytest.raises(ApiError) as raised:
        harness.append("refused", to_all=False)
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.host.advance(1_000)
    assert harness.commit() == []


def test_leader_epoch_never_decreases(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE._replace(leader_epoch=5))
    harness.partition.become_follower(ELSEWHERE)
    assert harness.partition.leader_epoch == 5
    harness.partition.become_leader(ALONE)
    assert harness.partition.leader_epoch == 5


def test_new_leader_forgets_the_follower_offsets_of_its_old_epoch(harness: PartitionHarness) -> None:
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
    assert harness.take_results() == [("all", None)]


def test_flush_that_ends_after_becoming_follower_keeps_the_high_watermark(harness: PartitionHarness) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    harness.partition.commit()
    harness.partition.become_follower(ELSEWHERE)
    assert harness.take_results() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    harness.host.run_pending()
    assert (harness.take_results(), harness.partition.high_watermark, harness.log.recovery_point) == (
        [],
        0,
        1,
    )


def test_log_failure_fails_pending_produces_once(harness: PartitionHarness) -> None:
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
    with pytest.raises(ApiError) as raised:
        harness.append("refused", to_all=False)
    assert raised.value.code == failed


@pytest.mark.parametrize("become", [Partition.become_leader, Partition.become_follower])
def test_failed_log_cannot_become_leader_or_follower(
    harness: PartitionHarness, become: Callable[[Partition, PartitionImage], None]
) -> None:
    harness.log.fail(StorageError("broken"))
    with pytest.raises(StorageError):
        become(harness.partition, ALONE)


def test_removed_replica_has_no_role_change(harness: PartitionHarness) -> None:
    harness.partition.become_leader(ALONE)
    harness.append("staged", to_all=False)
    harness.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert harness.commit() == [("staged", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with pytest.raises(AssertionError):
        harness.partition.remove(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_leader_again_does_not_expose_records_before_their_flush(
    harness: PartitionHarness,
) -> None:
    harness.log.config = harness.log.config._replace(flush_messages=1)
    held = harness.host.hold_work()
    harness.partition.become_leader(ALONE)
    harness.append("one", to_all=False)
    assert harness.commit() == []
    harness.partition.become_follower(ELSEWHERE)
    assert harness.take_results() == [("one", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    harness.partition.become_leader(ALONE._replace(leader_epoch=2))
    assert harness.partition.high_watermark == 0
    held[0].run()
    held[0].deliver()
    harness.host.run_pending()
    assert (harness.partition.high_watermark, harness.take_results()) == (1, [])


def test_exception_in_one_callback_does_not_block_the_next(harness: PartitionHarness) -> None:
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
def test_clients_of_another_leader_epoch_are_fenced(
    harness: PartitionHarness, epoch: int, code: ErrorCode | None
) -> None:
    harness.partition.become_leader(ALONE._replace(leader_epoch=3))
    if code is None:
        harness.partition.check_leader_epoch(epoch)
    else:
        with pytest.raises(ApiError) as raised:
            harness.partition.check_leader_epoch(epoch)
        assert raised.value.code == code


def test_not_controller_retries_the_isr_change(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO._replace(isr=(1,)))
    harness.partition.record_follower_fetch(2, 0, broker_epoch=20)
    assert harness.cluster.requested_isrs() == [(1, 2)]
    harness.cluster.respond(ErrorCode.NOT_CONTROLLER)
    assert harness.cluster.requested_isrs() == []
    harness.host.advance(50)
    assert harness.cluster.requested_isrs() == [(1, 2)]
    harness.cluster.respond(ErrorCode.NOT_CONTROLLER)
    harness.partition.become_leader(TWO._replace(partition_epoch=1))
    harness.host.advance(50)
    assert harness.cluster.requested_isrs() == [], "the metadata has changed meanwhile"


def test_isr_expand_and_shrink_take_effect_with_the_response(harness: PartitionHarness) -> None:
    harness.partition.become_leader(TWO._replace(isr=(1,)))
    harness.append("alone", to_all=True)
    assert harness.commit() == [("alone", None)]
    harness.partition.record_follower_fetch(2, 1, broker_epoch=20)
    harness.append("waits for both", to_all=True)
    assert harness.commit() == [], "before the controller has responded"
    harness.cluster.respond()
    assert harness.take_results() == []
    leading = harness.cluster.leading
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 0)
    harness.host.advance(30_001)
    harness.partition.maybe_shrink_isr()
    assert harness.cluster.requested_isrs() == [(1,)]
    assert harness.take_results() == []
    harness.cluster.respond()
    assert (leading.isr_expands, leading.isr_shrinks) == (1, 1)
    assert harness.take_results() == [("waits for both", None)]
