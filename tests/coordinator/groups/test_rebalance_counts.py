"""The numbers of rebalances, which are recorded at the same moments as in Apache Kafka."""

from __future__ import annotations

from kwire.wire.errors import ErrorCode
from tests.coordinator.coordinator_harness import CoordinatorHarness
from tests.coordinator.groups.consumer.script import Script


def counts(harness: CoordinatorHarness) -> tuple[int, int]:
    """Return the completed rebalances of classic groups and the rebalances of consumer groups."""
    rebalances = harness.service.rebalances
    return rebalances.classic_completed, rebalances.consumer


def test_classic_rebalance_is_counted_when_the_assignment_is_committed(harness: CoordinatorHarness) -> None:
    _, joining = harness.new_member()
    harness.advance(3_000)
    joined = joining.value
    assert counts(harness) == (0, 0)
    harness.ports.held = []
    harness.sync(joined, {joined.member_id: b"a"})
    assert counts(harness) == (0, 0)
    harness.ports.release()
    harness.host.run_pending()
    assert counts(harness) == (1, 0)
    assert harness.sync(joined).error == ErrorCode.NONE
    assert counts(harness) == (1, 0), "a repeated SyncGroup is no rebalance"


def test_classic_rebalance_is_not_counted_without_a_stored_assignment(harness: CoordinatorHarness) -> None:
    _, joining = harness.new_member()
    harness.advance(3_000)
    joined = joining.value
    harness.ports.held = []
    harness.sync(joined, {joined.member_id: b"a"})
    harness.ports.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.host.run_pending()
    assert counts(harness) == (0, 0)


def test_consumer_rebalances_are_bumps_of_the_group_epoch_by_requests() -> None:
    script = Script()
    for line, rebalances in (
        ("topic t 2", 0),
        ("join a t", 1),
        ("beat a owns=all", 1),
        ("join b t", 2),
        ("leave b", 2),  # the epoch is bumped, but Kafka does not count it
        ("topic t 3", 2),
        ("beat a owns=all", 3),
        ("topic u 1", 3),
        ("beat a regex=u", 3),
        ("wait 0", 4),  # the expression was resolved
    ):
        script.run(line)
        assert counts(script.harness) == (0, rebalances), line


def test_loading_counts_no_rebalances() -> None:
    script = Script()
    script.run("topic t 2")
    script.run("join a t")
    script.harness.stable("classic")
    assert counts(script.harness) == (1, 1)
    script.harness.restart()
    assert len(script.harness.service.list_groups((), ())) == 2
    assert counts(script.harness) == (0, 0)


def test_counts_continue_after_partitions_are_unloaded_and_loaded(harness: CoordinatorHarness) -> None:
    harness.stable()
    for index in harness.ports.logs:
        harness.service.resigned(index, 0)
        harness.service.elected(index, 1)
    harness.host.run_pending()
    assert counts(harness) == (1, 0)
    harness.stable("other")
    assert counts(harness) == (2, 0)
