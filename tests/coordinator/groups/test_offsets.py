"""Offsets of groups: commit, fetch, delete and expire."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.partitioner import partition_of
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.groups import OffsetCommitValue
from tests.coordinator.coordinator_harness import PARTITIONS, Config, CoordinatorHarness, Reply, subscription

WEEK_MS = 10_080 * 60_000
CHECK_MS = 600_000


def delete(harness: CoordinatorHarness, *groups: str) -> dict[str, ErrorCode]:
    reply = Reply()
    harness.service.delete_groups(groups, reply)
    harness.host.run_pending()
    return dict(reply.value)


def delete_offsets(
    harness: CoordinatorHarness, *partitions: tuple[str, int]
) -> tuple[ErrorCode, dict[tuple[str, int], int]]:
    reply = Reply()
    harness.service.delete_offsets("g", partitions, reply)
    harness.host.run_pending()
    code, outcome = reply.value
    return code, dict(outcome)


def test_offsets_are_committed_without_members(harness: CoordinatorHarness) -> None:
    assert harness.offsets() == {}
    assert harness.commit(5).value == ErrorCode.NONE
    assert harness.commit(7, partition=1).value == ErrorCode.NONE
    assert harness.offsets() == {("t", 0): 5, ("t", 1): 7}
    assert harness.state() == "Empty"


def test_commit_checks_member_and_generation(harness: CoordinatorHarness) -> None:
    assert harness.commit(1, generation=1, member="m").value == ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.commit(1, generation=1, member="m", version=8).value == ErrorCode.ILLEGAL_GENERATION
    (member,) = harness.stable()
    assert harness.commit(1).value == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit(1, generation=1, member="m").value == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit(1, generation=0, member=member.member_id).value == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit(1, generation=1, member=member.member_id).value == ErrorCode.NONE
    # Members may commit while the group rebalances, but not in a new generation before the sync.
    harness.new_member()
    assert harness.commit(2, generation=1, member=member.member_id).value == ErrorCode.NONE
    again = harness.join(member=member.member_id).value
    result = harness.commit(3, generation=again.generation_id, member=member.member_id)
    assert result.value == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.offsets() == {("t", 0): 2}


def test_empty_commit_creates_no_group(harness: CoordinatorHarness) -> None:
    reply = Reply()
    harness.service.commit_offsets(OffsetCommit("g", -1, "", None, [], None, 9), reply)
    harness.host.run_pending()
    assert reply.value == ErrorCode.NONE
    assert harness.state() is None


def test_offset_is_stored_with_its_topic_id_unless_retention_is_given(
    harness: CoordinatorHarness,
) -> None:
    topic_id = Uuid(bytes(range(16)))
    commits = [PartitionCommit("t", 0, 5, 3, "m", topic_id)]
    for retention_ms in (None, 1_000):
        harness.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, retention_ms, 4), Reply())
    harness.host.run_pending()
    values = [value for _, value in harness.records() if isinstance(value, OffsetCommitValue)]
    now_ms = harness.host.now_ms()
    assert [(one.leader_epoch, one.expire_timestamp, one.topic_id) for one in values] == [
        (3, -1, topic_id),
        (-1, now_ms + 1_000, ZERO_UUID),
    ]


def test_uncommitted_offsets_are_not_returned(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    harness.ports.held = []
    writing = harness.commit(2)
    stable = Reply()
    harness.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, stable, require_stable=True)
    for _ in range(2):
        assert (writing.pending, stable.pending) == (True, True)
        assert harness.offsets() == {("t", 0): 1}
        harness.host.run_pending()
    harness.ports.release()
    assert writing.value == ErrorCode.NONE
    assert stable.value == (ErrorCode.NONE, 2), "a require_stable fetch waits for earlier appends"
    assert harness.offsets() == {("t", 0): 2}


def test_fetch_returns_the_last_committed_offset_while_appends_wait(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    harness.commit(5, topic="u")
    harness.host.run_pending()
    harness.ports.held = []
    for offset in (2, 3):
        harness.commit(offset)
        harness.host.run_pending()
    harness.commit(4, topic="new")
    harness.service.delete_offsets("g", [("u", 0)], Reply())
    harness.host.run_pending()
    assert harness.offsets() == {("t", 0): 1, ("u", 0): 5}
    for expected in (2, 3):
        held, harness.ports.held = harness.ports.held, harness.ports.held[:1]
        harness.ports.release()
        harness.ports.held = held[1:]
        assert harness.offsets() == {("t", 0): expected, ("u", 0): 5}
    harness.ports.release()
    assert harness.offsets() == {("t", 0): 3, ("new", 0): 4}


def test_commit_times_out_while_replicas_are_behind(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    writing = harness.commit(1)
    harness.advance(5_000)
    assert writing.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.ports.release()
    assert harness.offsets() == {("t", 0): 1}


def test_refused_append_changes_nothing(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    harness.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    assert harness.commit(2).value == ErrorCode.UNKNOWN_SERVER_ERROR
    harness.ports.refuse = None
    assert harness.offsets() == {("t", 0): 1}


def test_offsets_of_a_subscribed_topic_are_not_deleted(harness: CoordinatorHarness) -> None:
    assert delete_offsets(harness, ("t", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    harness.commit(1)
    harness.commit(1, topic="u")
    harness.stable(protocols=(("range", subscription("t")),))
    assert delete_offsets(harness, ("t", 0), ("u", 0), ("u", 9)) == (
        ErrorCode.NONE,
        {
            ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("u", 0): ErrorCode.NONE,
            ("u", 9): ErrorCode.NONE,
        },
    )
    assert harness.offsets() == {("t", 0): 1}
    harness.restart()
    assert harness.offsets() == {("t", 0): 1}


def test_groups_without_members_are_deleted_with_their_offsets(harness: CoordinatorHarness) -> None:
    harness.commit(1, group="simple")
    harness.stable("busy")
    assert delete(harness, "simple", "busy", "nobody") == {
        "simple": ErrorCode.NONE,
        "busy": ErrorCode.NON_EMPTY_GROUP,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert harness.state("simple") is None
    assert harness.offsets("simple") == {}
    harness.restart()
    assert harness.state("simple") is None
    assert harness.state("busy") == "Stable"


def test_offsets_of_a_simple_group_expire_after_their_commit(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    harness.advance(WEEK_MS - CHECK_MS)
    harness.commit(2, partition=1)
    harness.advance(CHECK_MS)
    assert harness.offsets() == {("t", 1): 2}
    harness.advance(WEEK_MS)
    assert harness.offsets() == {}
    assert harness.state() is None
    harness.restart()
    assert harness.state() is None


def test_offsets_of_a_group_expire_from_when_it_became_empty(harness: CoordinatorHarness) -> None:
    (member,) = harness.stable(protocols=(("range", subscription("t")),), session_ms=1_800_000)
    harness.commit(1, generation=1, member=member.member_id)
    for _ in range(2 * WEEK_MS // 1_200_000):
        harness.advance(1_200_000)
        assert harness.heartbeat(member) == ErrorCode.NONE
    assert harness.offsets() == {("t", 0): 1}
    harness.leave((member.member_id, None))
    harness.advance(WEEK_MS - CHECK_MS)
    assert harness.offsets() == {("t", 0): 1}
    harness.advance(2 * CHECK_MS)
    assert harness.offsets() == {}
    assert harness.state() is None


def test_unused_member_id_does_not_keep_the_group(harness: CoordinatorHarness) -> None:
    member = harness.join(session_ms=2 * CHECK_MS).value.member_id
    assert harness.state() == "Empty"
    harness.advance(CHECK_MS)
    assert harness.state() is None
    assert harness.join(member=member).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_retention_time_of_an_old_commit_request_is_used(harness: CoordinatorHarness) -> None:
    harness.commit(1, retention_ms=CHECK_MS, version=4)
    harness.restart()
    harness.advance(2 * CHECK_MS)
    assert harness.offsets() == {}


def test_offset_with_a_pending_transactional_offset_does_not_expire(harness: CoordinatorHarness) -> None:
    harness.commit(1, retention_ms=CHECK_MS, version=4)
    harness.commit(1, partition=1, retention_ms=CHECK_MS, version=4)
    commits = [PartitionCommit("t", 0, 2, -1, "")]
    harness.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, None, 0), Reply(), (7, 0))
    harness.service.commit_offsets(OffsetCommit("new", -1, "", None, commits, None, 0), Reply(), (7, 0))
    harness.advance(3 * CHECK_MS)
    assert harness.offsets() == {("t", 0): 1}
    assert [harness.state(group) for group in ("g", "new")] == ["Empty", "Empty"]
    for group in ("g", "new"):
        harness.service.on_transaction_completed(partition_of(group, PARTITIONS), 7, commit=False)
    harness.advance(2 * CHECK_MS)
    assert harness.offsets() == {}
    assert [harness.state(group) for group in ("g", "new")] == [None, None]


def test_topic_deletion_deletes_its_offsets(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    harness.commit(2, topic="u")
    harness.service.on_topics_deleted({"t": Uuid(b"t" * 16)})
    assert harness.offsets() == {("u", 0): 2}
    harness.restart()
    assert harness.offsets() == {("u", 0): 2}


FIRST, SECOND = Uuid(b"1" * 16), Uuid(b"2" * 16)


def commit_in_transaction(
    harness: CoordinatorHarness, *commits: PartitionCommit, group: str = "g", producer_id: int = 7
) -> None:
    reply = Reply()
    commit = OffsetCommit(group, -1, "", None, commits, None, 0)
    harness.service.commit_offsets(commit, reply, (producer_id, 0))
    harness.host.run_pending()
    assert reply.value == ErrorCode.NONE


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("deleted", ["topic", "offset", "group"])
def test_commit_of_an_open_transaction_does_not_restore_deleted_offsets(
    harness: CoordinatorHarness, deleted: str, restarts: bool
) -> None:
    harness.commit(1)
    commit_in_transaction(harness, *(PartitionCommit("t", partition, 2, -1, "") for partition in (0, 1)))
    commit_in_transaction(harness, PartitionCommit("u", 0, 3, -1, ""), group="h")
    if deleted == "topic":
        harness.service.on_topics_deleted({"t": FIRST})
    elif deleted == "offset":
        assert delete_offsets(harness, ("t", 0), ("t", 1))[0] == ErrorCode.NONE
    else:
        assert delete(harness, "g") == {"g": ErrorCode.NONE}
    assert harness.service.unstable_offsets("h") == {("u", 0)}
    if restarts:
        harness.restart()
    assert harness.service.unstable_offsets("g") == set()
    for group in ("g", "h"):
        harness.service.on_transaction_completed(partition_of(group, PARTITIONS), 7, commit=True)
    assert harness.offsets() == {}
    assert harness.offsets("h") == {("u", 0): 3}


@pytest.mark.parametrize("ends", [(1, 2), (2, 1)])
def test_last_written_transactional_offset_wins_in_any_commit_order(
    harness: CoordinatorHarness, ends: tuple[int, int]
) -> None:
    commit_in_transaction(harness, PartitionCommit("t", 0, 5, -1, ""), producer_id=1)
    commit_in_transaction(harness, PartitionCommit("t", 0, 9, -1, ""), producer_id=2)
    harness.restart()
    for producer_id in ends:
        assert harness.service.unstable_offsets("g") == {("t", 0)}
        harness.service.on_transaction_completed(partition_of("g", PARTITIONS), producer_id, commit=True)
    assert harness.offsets() == {("t", 0): 9}
    assert harness.service.unstable_offsets("g") == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_transaction_does_not_overwrite_a_later_plain_commit(
    harness: CoordinatorHarness, restarts: bool
) -> None:
    commit_in_transaction(harness, *(PartitionCommit("t", partition, 5, -1, "") for partition in (0, 1)))
    harness.commit(9)
    if restarts:
        harness.restart()
    assert harness.service.unstable_offsets("g") == {("t", 0), ("t", 1)}
    harness.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert harness.offsets() == {("t", 0): 9, ("t", 1): 5}
    commit_in_transaction(harness, PartitionCommit("t", 0, 3, -1, ""))
    harness.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert harness.offsets() == {("t", 0): 3, ("t", 1): 5}


def test_offsets_of_a_recreated_topic_with_the_same_name_stay(harness: CoordinatorHarness) -> None:
    held = [PartitionCommit("t", 0, 1, -1, "", FIRST), PartitionCommit("t", 1, 2, -1, "", SECOND)]
    commit_in_transaction(harness, *held)
    harness.service.on_topics_deleted({"t": FIRST})
    assert harness.service.unstable_offsets("g") == {("t", 1)}
    harness.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert harness.offsets() == {("t", 1): 2}
    harness.service.on_topics_deleted({"t": FIRST})
    assert harness.offsets() == {("t", 1): 2}
    harness.service.on_topics_deleted({"t": SECOND})
    assert harness.offsets() == {}


def test_many_tombstones_are_written_in_several_batches() -> None:
    harness = CoordinatorHarness(Config())
    for partition in range(1_500):
        harness.commit(1, partition=partition)
    before = sum(len(log) for log in harness.ports.logs.values())
    assert delete(harness, "g") == {"g": ErrorCode.NONE}
    assert sum(len(log) for log in harness.ports.logs.values()) == before + 2
    harness.restart()
    assert harness.offsets() == {}
