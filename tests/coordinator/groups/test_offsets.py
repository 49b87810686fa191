"""Scripts of offsets that are committed, fetched, deleted and forgotten."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.runtime import partition_of
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.groups import OffsetCommitValue
from tests.coordinator.scripting import PARTITIONS, Cluster, Config, Reply, subscription

WEEK_MS = 10_080 * 60_000
CHECK_MS = 600_000


def delete(cluster: Cluster, *groups: str) -> dict[str, ErrorCode]:
    reply = Reply()
    cluster.service.delete_groups(groups, reply)
    cluster.host.run_pending()
    return dict(reply.value)


def delete_offsets(
    cluster: Cluster, *partitions: tuple[str, int]
) -> tuple[ErrorCode, dict[tuple[str, int], int]]:
    reply = Reply()
    cluster.service.delete_offsets("g", partitions, reply)
    cluster.host.run_pending()
    code, outcome = reply.value
    return code, dict(outcome)


def test_a_consumer_without_a_group_keeps_offsets(cluster: Cluster) -> None:
    assert cluster.offsets() == {}
    assert cluster.commit(5).value == ErrorCode.NONE
    assert cluster.commit(7, partition=1).value == ErrorCode.NONE
    assert cluster.offsets() == {("t", 0): 5, ("t", 1): 7}
    assert cluster.state() == "Empty"


def test_who_may_commit(cluster: Cluster) -> None:
    assert cluster.commit(1, generation=1, member="m").value == ErrorCode.GROUP_ID_NOT_FOUND
    assert cluster.commit(1, generation=1, member="m", version=8).value == ErrorCode.ILLEGAL_GENERATION
    (member,) = cluster.stable()
    assert cluster.commit(1).value == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.commit(1, generation=1, member="m").value == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.commit(1, generation=0, member=member.member_id).value == ErrorCode.ILLEGAL_GENERATION
    assert cluster.commit(1, generation=1, member=member.member_id).value == ErrorCode.NONE
    # While the group rebalances, members may still store how far they came; with a new generation not yet.
    cluster.new_member()
    assert cluster.commit(2, generation=1, member=member.member_id).value == ErrorCode.NONE
    again = cluster.join(member=member.member_id).value
    answer = cluster.commit(3, generation=again.generation_id, member=member.member_id)
    assert answer.value == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.offsets() == {("t", 0): 2}


def test_a_commit_of_nothing_makes_no_group(cluster: Cluster) -> None:
    reply = Reply()
    cluster.service.commit_offsets(OffsetCommit("g", -1, "", None, [], None, 9), reply)
    cluster.host.run_pending()
    assert reply.value == ErrorCode.NONE
    assert cluster.state() is None


def test_an_offset_is_stored_with_the_id_of_its_topic_unless_an_old_client_says_how_long(
    cluster: Cluster,
) -> None:
    topic_id = Uuid(bytes(range(16)))
    commits = [PartitionCommit("t", 0, 5, 3, "m", topic_id)]
    for retention_ms in (None, 1_000):
        cluster.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, retention_ms, 4), Reply())
    cluster.host.run_pending()
    values = [value for _, value in cluster.records() if isinstance(value, OffsetCommitValue)]
    now_ms = cluster.host.now_ms()
    assert [(one.leader_epoch, one.expire_timestamp, one.topic_id) for one in values] == [
        (3, -1, topic_id),
        (-1, now_ms + 1_000, ZERO_UUID),
    ]


def test_nothing_is_told_before_it_is_committed(cluster: Cluster) -> None:
    cluster.commit(1)
    cluster.ports.held = []
    writing = cluster.commit(2)
    stable = Reply()
    cluster.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, stable, require_stable=True)
    for _ in range(2):
        assert (writing.pending, stable.pending) == (True, True)
        assert cluster.offsets() == {("t", 0): 1}
        cluster.host.run_pending()
    cluster.ports.release()
    assert writing.value == ErrorCode.NONE
    assert stable.value == (ErrorCode.NONE, 2), "who wants what is stable waits for what comes before"
    assert cluster.offsets() == {("t", 0): 2}


def test_while_replicas_are_waited_for_what_was_committed_last_is_told(cluster: Cluster) -> None:
    cluster.commit(1)
    cluster.commit(5, topic="u")
    cluster.host.run_pending()
    cluster.ports.held = []
    for offset in (2, 3):
        cluster.commit(offset)
        cluster.host.run_pending()
    cluster.commit(4, topic="new")
    cluster.service.delete_offsets("g", [("u", 0)], Reply())
    cluster.host.run_pending()
    assert cluster.offsets() == {("t", 0): 1, ("u", 0): 5}
    for expected in (2, 3):
        held, cluster.ports.held = cluster.ports.held, cluster.ports.held[:1]
        cluster.ports.release()
        cluster.ports.held = held[1:]
        assert cluster.offsets() == {("t", 0): expected, ("u", 0): 5}
    cluster.ports.release()
    assert cluster.offsets() == {("t", 0): 3, ("new", 0): 4}


def test_a_commit_that_takes_too_long_is_answered_anyway(cluster: Cluster) -> None:
    cluster.ports.held = []
    writing = cluster.commit(1)
    cluster.advance(5_000)
    assert writing.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.ports.release()
    assert cluster.offsets() == {("t", 0): 1}


def test_a_refused_append_changes_nothing(cluster: Cluster) -> None:
    cluster.commit(1)
    cluster.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    assert cluster.commit(2).value == ErrorCode.UNKNOWN_SERVER_ERROR
    cluster.ports.refuse = None
    assert cluster.offsets() == {("t", 0): 1}


def test_offsets_are_deleted_unless_the_topic_is_consumed(cluster: Cluster) -> None:
    assert delete_offsets(cluster, ("t", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    cluster.commit(1)
    cluster.commit(1, topic="u")
    cluster.stable(protocols=(("range", subscription("t")),))
    assert delete_offsets(cluster, ("t", 0), ("u", 0), ("u", 9)) == (
        ErrorCode.NONE,
        {
            ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("u", 0): ErrorCode.NONE,
            ("u", 9): ErrorCode.NONE,
        },
    )
    assert cluster.offsets() == {("t", 0): 1}
    cluster.restart()
    assert cluster.offsets() == {("t", 0): 1}


def test_groups_without_members_are_deleted_with_their_offsets(cluster: Cluster) -> None:
    cluster.commit(1, group="simple")
    cluster.stable("busy")
    assert delete(cluster, "simple", "busy", "nobody") == {
        "simple": ErrorCode.NONE,
        "busy": ErrorCode.NON_EMPTY_GROUP,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert cluster.state("simple") is None
    assert cluster.offsets("simple") == {}
    cluster.restart()
    assert cluster.state("simple") is None
    assert cluster.state("busy") == "Stable"


def test_offsets_of_a_simple_group_expire_after_their_commit(cluster: Cluster) -> None:
    cluster.commit(1)
    cluster.advance(WEEK_MS - CHECK_MS)
    cluster.commit(2, partition=1)
    cluster.advance(CHECK_MS)
    assert cluster.offsets() == {("t", 1): 2}
    cluster.advance(WEEK_MS)
    assert cluster.offsets() == {}
    assert cluster.state() is None
    cluster.restart()
    assert cluster.state() is None


def test_offsets_of_a_group_expire_from_when_it_became_empty(cluster: Cluster) -> None:
    (member,) = cluster.stable(protocols=(("range", subscription("t")),), session_ms=1_800_000)
    cluster.commit(1, generation=1, member=member.member_id)
    for _ in range(2 * WEEK_MS // 1_200_000):
        cluster.advance(1_200_000)
        assert cluster.heartbeat(member) == ErrorCode.NONE
    assert cluster.offsets() == {("t", 0): 1}
    cluster.leave((member.member_id, None))
    cluster.advance(WEEK_MS - CHECK_MS)
    assert cluster.offsets() == {("t", 0): 1}
    cluster.advance(2 * CHECK_MS)
    assert cluster.offsets() == {}
    assert cluster.state() is None


def test_a_member_that_was_given_an_id_does_not_keep_its_group(cluster: Cluster) -> None:
    member = cluster.join(session_ms=2 * CHECK_MS).value.member_id
    assert cluster.state() == "Empty"
    cluster.advance(CHECK_MS)
    assert cluster.state() is None
    assert cluster.join(member=member).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_old_clients_say_how_long_an_offset_lasts(cluster: Cluster) -> None:
    cluster.commit(1, retention_ms=CHECK_MS, version=4)
    cluster.restart()
    cluster.advance(2 * CHECK_MS)
    assert cluster.offsets() == {}


def test_nothing_expires_that_an_open_transaction_has_an_offset_for(cluster: Cluster) -> None:
    cluster.commit(1, retention_ms=CHECK_MS, version=4)
    cluster.commit(1, partition=1, retention_ms=CHECK_MS, version=4)
    commits = [PartitionCommit("t", 0, 2, -1, "")]
    cluster.service.commit_transactional_offsets(
        OffsetCommit("g", -1, "", None, commits, None, 0), (7, 0), Reply()
    )
    cluster.service.commit_transactional_offsets(
        OffsetCommit("new", -1, "", None, commits, None, 0), (7, 0), Reply()
    )
    cluster.advance(3 * CHECK_MS)
    assert cluster.offsets() == {("t", 0): 1}
    assert [cluster.state(group) for group in ("g", "new")] == ["Empty", "Empty"]
    for group in ("g", "new"):
        cluster.service.on_transaction_completed(partition_of(group, PARTITIONS), 7, commit=False)
    cluster.advance(2 * CHECK_MS)
    assert cluster.offsets() == {}
    assert [cluster.state(group) for group in ("g", "new")] == [None, None]


def test_offsets_go_with_their_topic(cluster: Cluster) -> None:
    cluster.commit(1)
    cluster.commit(2, topic="u")
    cluster.service.on_topics_deleted({"t": Uuid(b"t" * 16)})
    assert cluster.offsets() == {("u", 0): 2}
    cluster.restart()
    assert cluster.offsets() == {("u", 0): 2}


FIRST, SECOND = Uuid(b"1" * 16), Uuid(b"2" * 16)


def commit_in_transaction(
    cluster: Cluster, *commits: PartitionCommit, group: str = "g", producer_id: int = 7
) -> None:
    reply = Reply()
    commit = OffsetCommit(group, -1, "", None, commits, None, 0)
    cluster.service.commit_transactional_offsets(commit, (producer_id, 0), reply)
    cluster.host.run_pending()
    assert reply.value == ErrorCode.NONE


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ["topic", "offset", "group"])
def test_what_is_deleted_does_not_come_back_by_a_transaction_that_was_open(
    cluster: Cluster, how: str, restarts: bool
) -> None:
    cluster.commit(1)
    commit_in_transaction(cluster, *(PartitionCommit("t", partition, 2, -1, "") for partition in (0, 1)))
    commit_in_transaction(cluster, PartitionCommit("u", 0, 3, -1, ""), group="h")
    if how == "topic":
        cluster.service.on_topics_deleted({"t": FIRST})
    elif how == "offset":
        assert delete_offsets(cluster, ("t", 0), ("t", 1))[0] == ErrorCode.NONE
    else:
        assert delete(cluster, "g") == {"g": ErrorCode.NONE}
    assert cluster.service.unstable_offsets("h") == {("u", 0)}
    if restarts:
        cluster.restart()
    assert cluster.service.unstable_offsets("g") == set()
    for group in ("g", "h"):
        cluster.service.on_transaction_completed(partition_of(group, PARTITIONS), 7, commit=True)
    assert cluster.offsets() == {}
    assert cluster.offsets("h") == {("u", 0): 3}


@pytest.mark.parametrize("ends", [(1, 2), (2, 1)])
def test_the_offset_that_was_written_last_counts_whichever_transaction_ends_first(
    cluster: Cluster, ends: tuple[int, int]
) -> None:
    commit_in_transaction(cluster, PartitionCommit("t", 0, 5, -1, ""), producer_id=1)
    commit_in_transaction(cluster, PartitionCommit("t", 0, 9, -1, ""), producer_id=2)
    cluster.restart()
    for producer_id in ends:
        assert cluster.service.unstable_offsets("g") == {("t", 0)}
        cluster.service.on_transaction_completed(partition_of("g", PARTITIONS), producer_id, commit=True)
    assert cluster.offsets() == {("t", 0): 9}
    assert cluster.service.unstable_offsets("g") == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_transaction_does_not_take_back_what_was_committed_after_its_offset(
    cluster: Cluster, restarts: bool
) -> None:
    commit_in_transaction(cluster, *(PartitionCommit("t", partition, 5, -1, "") for partition in (0, 1)))
    cluster.commit(9)
    if restarts:
        cluster.restart()
    assert cluster.service.unstable_offsets("g") == {("t", 0), ("t", 1)}
    cluster.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert cluster.offsets() == {("t", 0): 9, ("t", 1): 5}
    commit_in_transaction(cluster, PartitionCommit("t", 0, 3, -1, ""))
    cluster.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert cluster.offsets() == {("t", 0): 3, ("t", 1): 5}


def test_offsets_of_another_topic_of_the_name_stay(cluster: Cluster) -> None:
    held = [PartitionCommit("t", 0, 1, -1, "", FIRST), PartitionCommit("t", 1, 2, -1, "", SECOND)]
    commit_in_transaction(cluster, *held)
    cluster.service.on_topics_deleted({"t": FIRST})
    assert cluster.service.unstable_offsets("g") == {("t", 1)}
    cluster.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert cluster.offsets() == {("t", 1): 2}
    cluster.service.on_topics_deleted({"t": FIRST})
    assert cluster.offsets() == {("t", 1): 2}
    cluster.service.on_topics_deleted({"t": SECOND})
    assert cluster.offsets() == {}


def test_many_tombstones_take_several_batches() -> None:
    cluster = Cluster(Config())
    for partition in range(1_500):
        cluster.commit(1, partition=partition)
    before = sum(len(log) for log in cluster.ports.logs.values())
    assert delete(cluster, "g") == {"g": ErrorCode.NONE}
    assert sum(len(log) for log in cluster.ports.logs.values()) == before + 2
    cluster.restart()
    assert cluster.offsets() == {}
